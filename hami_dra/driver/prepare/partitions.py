"""Partitions that exist only while a claim holds them: created, found again, and removed, but never
those of other programs.

While claims hold a partitionable card as a whole, its MIG mode is off.

Called by `artifacts`. In: the partitions in records, the vendor's `Partitioner`. Out: instances.
Blocks. Raises Refused, NotWritten (the hardware did not answer, or the partition is in use; a retry
may succeed).

The checkpoint says who owns an instance. The intent (a partition without an id) is on the disk
before anything is created, and is written only if no instance is there. So an instance in the place
of a recorded partition without an id belongs to this driver; for a partition with an id, only the
instance with that id and uuid does.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from hami_dra.api.containers import Partitioner, PartitionPlace, PartitionRefused
from hami_dra.api.hardware import PartitionInstance
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.driver.prepare.errors import NotWritten, Refused
from hami_dra.driver.prepare.records import GrantedDevice, Partition


class Partitions:
    """Manage partitions. `partitioner`: None for vendors whose cards are not partitioned."""

    def __init__(self, partitioner: Partitioner | None) -> None:
        self._partitioner = partitioner

    def check_free(self, claim: str, held: GrantedDevice) -> None:
        """Check, before the intent is written, that the place of the partition is free. `claim`: `namespace/name`."""
        wanted = held.own_partition
        if wanted is None:
            return
        with _retried(claim, held):
            lying = self._at(self._required(claim, held), wanted)
        if lying:
            raise Refused(
                f"ResourceClaim {claim}: device {held.device}: card {wanted.card} has a GPU instance (id {lying[0].id}, "
                f"{lying[0].uuid or 'without a compute instance'}) at memory slice {wanted.start} already, which no claim holds and this "
                "driver did not make: remove it with the vendor's tool, or take the card out of this driver's pool"
            )

    def made(self, claim: str, held: GrantedDevice) -> GrantedDevice:
        """Return the device with its partition, which exists now.

        The intent is on the disk: an instance that is already there is this driver's own, half
        created.
        """
        wanted = held.own_partition
        if wanted is None or wanted.id is not None:
            return held
        place = PartitionPlace(card_uuid=wanted.card, profile=wanted.profile, start=wanted.start)
        with _retried(claim, held):
            try:
                found = self._required(claim, held).create(place)
            except PartitionRefused as error:
                raise Refused(f"ResourceClaim {claim}: device {held.device}: {error}") from error
        made = replace(
            wanted, id=found.id, uuid=found.uuid, compute_id=found.compute_instance_id, size=found.placement.size
        )
        return replace(held, partition=made)

    def is_lost(self, claim: str, held: GrantedDevice) -> bool:
        """Return whether its partition was created and does not exist any more."""
        wanted = held.own_partition
        made = wanted is not None and wanted.id is not None
        return made and self.instance(claim, held) is None

    def instance(self, claim: str, held: GrantedDevice) -> PartitionInstance | None:
        """Return the instance in the machine; None if there is none, or the container runtime creates it."""
        wanted = held.partition
        if wanted is None or wanted.by_runtime:
            return None
        with _retried(claim, held):
            try:
                lying = self._at(self._required(claim, held), wanted)
            except PartitionRefused:  # the card is missing
                return None
        return next((found for found in lying if _is(found, wanted)), None)

    def remove(self, claim: str, held: GrantedDevice) -> None:
        """Remove a partition. A missing one is no error, nor is a missing card."""
        wanted = held.own_partition
        if wanted is None or self._partitioner is None:
            return
        with _retried(claim, held):
            try:
                lying = self._at(self._partitioner, wanted)
            except PartitionRefused:
                return
            for found in lying:
                if wanted.id is None or _is(found, wanted):
                    self._partitioner.destroy(wanted.card, found.id)

    # --- cards themselves ---

    def unpartition(self, claim: str, held: GrantedDevice) -> None:
        """Put the card out of MIG mode, so that it can be used as one. The intent is on the disk."""
        if held.unpartitioned:
            with _retried(claim, held):
                self._required(claim, held).unpartition(held.card)

    def repartition(self, claim: str, held: GrantedDevice) -> None:
        """Restore the card after its last holder. A missing one is no error."""
        if held.unpartitioned and self._partitioner is not None:
            with _retried(claim, held):
                self._partitioner.repartition(held.card)

    def recut_all_but(self, cards: Collection[str]) -> None:
        """Restore cards that an earlier instance put out of MIG mode and no claim holds."""
        if self._partitioner is None:
            return
        try:
            for card in sorted(self._partitioner.unpartitioned_cards() - frozenset(cards)):
                self._partitioner.repartition(card)
        except (PartitionRefused, DiscoveryError) as error:
            raise NotWritten(f"a card that no claim holds any more could not be restored: {error}") from error

    def _required(self, claim: str, held: GrantedDevice) -> Partitioner:
        if self._partitioner is None:
            raise Refused(
                f"ResourceClaim {claim}: device {held.device} is a part of a card, or a partitionable card, which this driver cannot handle "
                "on this node: its library for partitioning cards is missing; install the vendor's driver"
            )
        return self._partitioner

    @staticmethod
    def _at(partitioner: Partitioner, wanted: Partition) -> list[PartitionInstance]:
        return [found for found in partitioner.existing(wanted.card) if found.placement.start == wanted.start]


def _is(found: PartitionInstance, wanted: Partition) -> bool:
    return found.id == wanted.id and (not found.uuid or not wanted.uuid or found.uuid == wanted.uuid)


@contextmanager
def _retried(claim: str, held: GrantedDevice) -> Iterator[None]:
    """Raise what the hardware refuses or does not answer as NotWritten: kubelet asks again."""
    try:
        yield
    except (PartitionRefused, DiscoveryError) as error:
        raise NotWritten(f"ResourceClaim {claim}: device {held.device}: {error}") from error
