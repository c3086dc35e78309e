"""Faults that NVIDIA's driver reported once, stored until the machine is booted: nothing reports
when a GPU is healthy again.

Used by `backend`. In a file next to the driver's checkpoint, so that an update of the driver does
not call a broken GPU healthy. A reboot resets the GPUs; after a reset without one, remove the file
and restart the driver.
"""

from pathlib import Path
from typing import Final

import msgspec

from hami_dra.api.hardware import Fault
from hami_dra.discovery.durable import DurableFile, NotStored, boot_id

NOTED_FAULTS_FILE: Final = "noted-faults.json"


class _FaultsFile(msgspec.Struct, frozen=True):
    boot: str
    faults: dict[str, dict[str, str]]
    """Uuid → code → message."""


class NotedFaults:
    """The faults. `file`: may be missing; None: kept in memory only. Not thread-safe."""

    def __init__(self, file: Path | None = None, *, boot: str | None = None) -> None:
        self._file = None if file is None else DurableFile(file)
        self._boot = boot_id() if boot is None else boot
        self._noted: dict[str, dict[str, str]] | None = None
        self.problem = ""
        """The reason why they would not outlive the program, or empty."""

    def of(self, uuid: str) -> tuple[Fault, ...]:
        """Return the faults of one GPU, oldest first."""
        return tuple(Fault(code=code, message=message) for code, message in self._known.get(uuid, {}).items())

    def note(self, uuid: str, fault: Fault) -> None:
        known = self._known.setdefault(uuid, {})
        if known.get(fault.code) == fault.message:
            return
        known[fault.code] = fault.message
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(_FaultsFile(self._boot, self._known)))
            self.problem = ""
        except NotStored as error:
            self.problem = f"hardware errors would be forgotten by a restart: {error}"

    @property
    def _known(self) -> dict[str, dict[str, str]]:
        if self._noted is None:
            self._noted = self._read()
        return self._noted

    def _read(self) -> dict[str, dict[str, str]]:
        if self._file is None:
            return {}
        try:
            text = self._file.read()
            found = None if text is None else msgspec.json.decode(text, type=_FaultsFile)
        except (NotStored, msgspec.MsgspecError) as error:
            self._file.set_aside()
            self.problem = f"hardware errors that were noted before are lost: {self._file.path}: {error}"
            return {}
        return {} if found is None or found.boot != self._boot else found.faults
