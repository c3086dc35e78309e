"""Partitionable cards that are used as one for a time: a note that this driver switched their MIG
mode off, and their profiles.

Written by partitioners before they switch the mode off, forgotten after they switched it on again.
Read by the back end at each discovery, since NVML reports that such a GPU is not in MIG mode, and
need not report its profiles: it is still published as before. Kept in a file, so that it outlives
the program and the machine. Raises ToolFailed when the file cannot be used: the card must not be
taken for one without MIG then.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from hami_dra.discovery.durable import DurableFile, NotStored
from hami_dra.discovery.errors import ToolFailed
from hami_dra.vendors.nvidia.records import GpuRecord, MigState

UNPARTITIONED_FILE: Final = "uncut-cards.json"


class UnpartitionedCards:
    """The notes. `file`: may be missing; None: kept in memory only. Thread-safe."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = DurableFile(file)
        self._lock = threading.Lock()

    def known(self) -> Mapping[str, MigState]:
        """Return the cards by uuid, as they were before."""
        try:
            text = self._file.read()
            return {} if text is None else msgspec.json.decode(text, type=dict[str, MigState])
        except (NotStored, msgspec.MsgspecError) as error:
            raise ToolFailed(
                f"{self._file.path}, which lists the GPUs whose MIG mode this driver switched off, cannot be read: {error}: check `nvidia-smi "
                "--query-gpu=uuid,mig.mode.current --format=csv`, switch it on where it should be on (nvidia-smi -i UUID -mig 1), and remove the file"
            ) from error

    def note(self, card_uuid: str, before: MigState) -> None:
        """Store a note, which is on the disk on return. An existing one stays."""
        with self._lock:
            known = dict(self.known())
            if card_uuid not in known:
                self._write(known | {card_uuid: replace(before, instances=())})

    def forget(self, card_uuid: str) -> None:
        with self._lock:
            known = dict(self.known())
            if known.pop(card_uuid, None) is not None:
                self._write(known)

    def _write(self, known: dict[str, MigState]) -> None:
        try:
            self._file.write(msgspec.json.encode(known))
        except NotStored as error:
            raise ToolFailed(str(error)) from error


def as_cut(card: GpuRecord, unpartitioned: Mapping[str, MigState]) -> GpuRecord:
    """Return the card as it will be again. A card whose mode is on is returned as read from NVML."""
    before = unpartitioned.get(card.uuid)
    if before is None or (card.mig is not None and card.mig.enabled):
        return card
    return replace(card, mig=replace(before, enabled=True, pending=True))
