"""Parts of cards that exist only while a claim holds them: made, found again, and removed, never anybody else's. Cards that can be cut
are made one while claims hold them as one.

Called by `artifacts`. In: what records say of partitions, the vendor's `Partitioner`. Out: instances. Blocks. Raises Refused, NotWritten (the
hardware did not answer, or the part is in use; again later).

Whose an instance is, the checkpoint says. The intent (a partition without an id) is on the disk before anything is made, and is written
only where nothing lies. So whatever lies where a record has a partition without an id is ours; of one with an id, only the instance
with this id and uuid is.
"""

from collections.abc import Collection
from typing import NoReturn

from msgspec.structs import replace

from hami_dra.api.hardware import MigInstance
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.driver.prepare.errors import NotWritten, Refused
from hami_dra.driver.prepare.records import GrantedDevice, Partition
from hami_dra.vendors.containers import Partitioner, PartitionPlace, PartitionRefused


class Partitions:
    """`partitioner`: None for vendors whose cards are not cut."""

    def __init__(self, partitioner: Partitioner | None) -> None:
        self._partitioner = partitioner

    def check_free(self, claim: str, held: GrantedDevice) -> None:
        """Before the intent is written: nothing lies where the partition is to be. `claim`: `namespace/name`."""
        wanted = held.partition
        if wanted is None or held.admin:
            return
        try:
            lying = self._at(self._required(claim, held), wanted)
        except (PartitionRefused, DiscoveryError) as error:
            _again(claim, held, error)
        if lying:
            raise Refused(
                f"ResourceClaim {claim}: device {held.device}: card {wanted.card} has a GPU instance (id {lying[0].id}, "
                f"{lying[0].uuid or 'without a compute instance'}) at memory slice {wanted.start} already, which no claim holds and this "
                "driver did not make: remove it with the vendor's tool, or take the card out of this driver's pool"
            )

    def made(self, claim: str, held: GrantedDevice) -> GrantedDevice:
        """The same with its partition, which is there now. The intent is on the disk: what lies there already is ours, half made."""
        wanted = held.partition
        if wanted is None or held.admin or wanted.id is not None:
            return held
        try:
            found = self._required(claim, held).create(_place(wanted))
        except PartitionRefused as error:
            raise Refused(f"ResourceClaim {claim}: device {held.device}: {error}") from error
        except DiscoveryError as error:
            _again(claim, held, error)
        return replace(held, partition=replace(wanted, id=found.id, uuid=found.uuid))

    def is_lost(self, claim: str, held: GrantedDevice) -> bool:
        """It was made, and is not there any more."""
        wanted = held.partition
        made = wanted is not None and wanted.id is not None and not held.admin
        return made and self.instance(claim, held) is None

    def instance(self, claim: str, held: GrantedDevice) -> MigInstance | None:
        """As it is in the machine now; None where it is not."""
        wanted = held.partition
        if wanted is None:
            return None
        try:
            return next((found for found in self._at(self._required(claim, held), wanted) if _is(found, wanted)), None)
        except PartitionRefused:  # the card is not there
            return None
        except DiscoveryError as error:
            _again(claim, held, error)

    def remove(self, claim: str, held: GrantedDevice) -> None:
        """What is gone already is no error, nor is a card that is gone with all its parts."""
        wanted = held.partition
        if wanted is None or held.admin or self._partitioner is None:
            return
        try:
            lying = self._at(self._partitioner, wanted)
        except PartitionRefused:
            return
        except DiscoveryError as error:
            _again(claim, held, error)
        try:
            for found in lying:
                if wanted.id is None or _is(found, wanted):
                    self._partitioner.destroy(wanted.card, found.id)
        except (PartitionRefused, DiscoveryError) as error:
            _again(claim, held, error)

    # --- cards themselves ---

    def uncut(self, claim: str, held: GrantedDevice) -> None:
        """The card can be used as one now. The intent is on the disk."""
        if not held.uncut:
            return
        try:
            self._required(claim, held).uncut(held.card)
        except (PartitionRefused, DiscoveryError) as error:
            _again(claim, held, error)

    def recut(self, claim: str, held: GrantedDevice) -> None:
        """Its last holder is gone: the card is as it was found. One that is gone is no error."""
        if not held.uncut or self._partitioner is None:
            return
        try:
            self._partitioner.recut(held.card)
        except (PartitionRefused, DiscoveryError) as error:
            _again(claim, held, error)

    def recut_all_but(self, cards: Collection[str]) -> None:
        """What an earlier instance left uncut and nobody holds."""
        if self._partitioner is None:
            return
        try:
            for card in sorted(self._partitioner.uncut_cards() - frozenset(cards)):
                self._partitioner.recut(card)
        except (PartitionRefused, DiscoveryError) as error:
            raise NotWritten(f"a card that no claim holds any more is not as it was found: {error}") from error

    def _required(self, claim: str, held: GrantedDevice) -> Partitioner:
        if self._partitioner is None:
            raise Refused(
                f"ResourceClaim {claim}: device {held.device} is a part of a card, or a card that can be cut, which this driver cannot make "
                "on this node: its library for cutting cards is missing; install the vendor's driver"
            )
        return self._partitioner

    @staticmethod
    def _at(partitioner: Partitioner, wanted: Partition) -> list[MigInstance]:
        return [found for found in partitioner.existing(wanted.card) if found.placement.start == wanted.start]


def _place(wanted: Partition) -> PartitionPlace:
    return PartitionPlace(card_uuid=wanted.card, profile=wanted.profile, start=wanted.start)


def _is(found: MigInstance, wanted: Partition) -> bool:
    return found.id == wanted.id and (not found.uuid or not wanted.uuid or found.uuid == wanted.uuid)


def _again(claim: str, held: GrantedDevice, error: Exception) -> NoReturn:
    raise NotWritten(f"ResourceClaim {claim}: device {held.device}: {error}") from error
