"""Cards that can be cut and are used as one for a time: that their MIG mode is off because of us, and how they can be cut.

Written by partitioners before they switch the mode off, forgotten after they switched it on again. Read by the back end at each
discovery, since NVML says of such a GPU that it is not in MIG mode, and need not tell its profiles: it goes on being published as it was.
Kept in a file, so that it outlives the program and the machine. Raises ToolFailed when the file cannot be used: nobody may then take a
card for one that cannot be cut.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from hami_dra.api.hardware import MigState
from hami_dra.discovery.durable import DurableFile, NotStored
from hami_dra.discovery.errors import ToolFailed
from hami_dra.vendors.nvidia.records import GpuRecord

UNCUT_FILE: Final = "uncut-cards.json"


class UnpartitionedCards:
    """`file`: need not be there; None: kept in memory only. Safe to use from threads."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = None if file is None else DurableFile(file)
        self._memory: dict[str, MigState] = {}
        self._lock = threading.Lock()

    def known(self) -> Mapping[str, MigState]:
        """By uuid, as they were before."""
        if self._file is None:
            return dict(self._memory)
        try:
            text = self._file.read()
            return {} if text is None else msgspec.json.decode(text, type=dict[str, MigState])
        except (NotStored, msgspec.MsgspecError) as error:
            raise ToolFailed(
                f"{self._file.path}, which says of which GPUs this driver switched MIG mode off, cannot be read: {error}: look at `nvidia-smi "
                "--query-gpu=uuid,mig.mode.current --format=csv`, switch it on where it is to be on (nvidia-smi -i UUID -mig 1), and remove the file"
            ) from error

    def note(self, card_uuid: str, before: MigState) -> None:
        """On the disk when this returns. What is noted already stays."""
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
        if self._file is None:
            self._memory = known
            return
        try:
            self._file.write(msgspec.json.encode(known))
        except NotStored as error:
            raise ToolFailed(str(error)) from error


def as_cut(card: GpuRecord, uncut: Mapping[str, MigState]) -> GpuRecord:
    """The card as it will be again. A card whose mode is on is as NVML says."""
    before = uncut.get(card.uuid)
    if before is None or (card.mig is not None and card.mig.enabled):
        return card
    return replace(card, mig=replace(before, enabled=True, pending=True))
