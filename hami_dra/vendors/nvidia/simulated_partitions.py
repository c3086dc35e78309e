"""Partitions of simulated cards: a `Partitioner` in memory, for simulated machines and for tests.

Called by the node driver. It follows the hardware's rules: instances lie where the profile allows,
without overlap, and with no more compute slices than the card has. With a file they outlive the
process, as those of real GPUs do. The MIG mode of a card is off while it is noted as unpartitioned,
in a file next to it.
"""

import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from hami_dra.api.containers import PartitionPlace, PartitionRefused
from hami_dra.api.hardware import Card, PartitionPlacement
from hami_dra.discovery.errors import ToolFailed
from hami_dra.vendors.nvidia.mig import compute_slices, profiles
from hami_dra.vendors.nvidia.nvml.unpartitioned import UNPARTITIONED_FILE, UnpartitionedCards
from hami_dra.vendors.nvidia.records import MigInstance, MigProfile, MigState

_UUIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "partitions.simulated.hami.io")


class SimulatedPartitioner:
    """Implements `hami_dra.api.containers.Partitioner`; safe to call from threads."""

    def __init__(self, cards: Iterable[Card], file: Path | None = None) -> None:
        """Set up the partitioner. `file`: may be missing; read at each call, since another process
        may have written it (one at a time).
        """
        self._cards = {card.uuid: card for card in cards}
        self._file = file
        self._unpartitioned = UnpartitionedCards(file.with_name(UNPARTITIONED_FILE) if file else None)
        self._memory: dict[str, dict[int, MigInstance]] = {}
        self._lock = threading.Lock()

    def create(self, place: PartitionPlace) -> MigInstance:
        what = f"GPU {place.card_uuid}: MIG instance {place.profile} at memory slice {place.start}"
        with self._lock:
            card = self._card(place.card_uuid)
            known = self._stored()
            there = known.setdefault(place.card_uuid, {})
            profile, placement = _wanted(card, place, what)
            self._unpartitioned.forget(place.card_uuid)
            for found in there.values():
                if (found.profile_id, found.placement) == (profile.id, placement):
                    return found
            slices = {each.id: each.slices for each in profiles(card)}
            used = sum(slices[found.profile_id] for found in there.values())
            overlapping = [found.id for found in there.values() if _overlap(found.placement, placement)]
            if overlapping or used + profile.slices > compute_slices(card):
                raise PartitionRefused(f"{what} was not created: it does not fit next to {sorted(there)}")
            number = next(number for number in range(1, len(there) + 2) if number not in there)
            there[number] = MigInstance(
                id=number,
                profile_id=profile.id,
                placement=placement,
                uuid=f"MIG-{uuid.uuid5(_UUIDS, f'{place.card_uuid}/{place.profile}/{place.start}')}",
                compute_instance_id=0,
            )
            self._store(known)
            return there[number]

    def destroy(self, card_uuid: str, instance_id: int) -> None:
        with self._lock:
            self._card(card_uuid)
            known = self._stored()
            if known.get(card_uuid, {}).pop(instance_id, None) is not None:
                self._store(known)

    def existing(self, card_uuid: str) -> tuple[MigInstance, ...]:
        with self._lock:
            self._card(card_uuid)
            return tuple(found for _, found in sorted(self._stored().get(card_uuid, {}).items()))

    def unpartition(self, card_uuid: str) -> None:
        with self._lock:
            card = self._card(card_uuid)
            there = sorted(self._stored().get(card_uuid, {}))
            if there:
                raise PartitionRefused(
                    f"GPU {card_uuid} cannot be used as one while it has GPU instances, which no claim holds: {there}: remove them from "
                    f"{self._file or 'memory'}"
                )
            self._unpartitioned.note(card_uuid, MigState(enabled=True, pending=True, profiles=profiles(card)))

    def repartition(self, card_uuid: str) -> None:
        with self._lock:
            self._unpartitioned.forget(card_uuid)

    def unpartitioned_cards(self) -> frozenset[str]:
        return frozenset(self._unpartitioned.known())

    def _stored(self) -> dict[str, dict[int, MigInstance]]:
        """Return instances by card, by id."""
        if self._file is None:
            return self._memory
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, dict[int, MigInstance]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise ToolFailed(f"the file of simulated partitions, {self._file}, cannot be read: {error}") from error

    def _store(self, known: dict[str, dict[int, MigInstance]]) -> None:
        if self._file is None:
            self._memory = known
            return
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(known))
            new.replace(self._file)
        except OSError as error:
            raise ToolFailed(f"the file of simulated partitions, {self._file}, cannot be written: {error}") from error

    def _card(self, card_uuid: str) -> Card:
        card = self._cards.get(card_uuid)
        if card is None:
            raise PartitionRefused(f"GPU {card_uuid}: this machine has no such GPU")
        if not profiles(card):
            raise PartitionRefused(f"GPU {card_uuid} is not in MIG mode, so it has no instances")
        return card


def _wanted(card: Card, place: PartitionPlace, what: str) -> tuple[MigProfile, PartitionPlacement]:
    known = profiles(card)
    profile = next((each for each in known if each.name == place.profile), None)
    if profile is None:
        raise PartitionRefused(f"{what}: this GPU has no such profile; it has {', '.join(each.name for each in known)}")
    placement = next((each for each in profile.placements if each.start == place.start), None)
    if placement is None:
        starts = ", ".join(str(each.start) for each in profile.placements)
        raise PartitionRefused(f"{what}: this GPU can have that profile only at {starts}")
    return profile, placement


def _overlap(one: PartitionPlacement, other: PartitionPlacement) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size
