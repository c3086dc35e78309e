"""NVIDIA GPUs, as a back end: NVML opened once, cards read on request, health from events and checks.

Called by the node driver, one call at a time (calls wait for each other). A call that hangs is
given up after a time (`visits`).

An XID that reports a hardware error stays a fault until the machine is booted (`NotedFaults`):
nothing reports when a GPU is healthy again. XIDs that come from the programs on the GPU are no
faults.

A GPU is lost when NVML reports it, or does not know its uuid any more. Any other error of one call
says nothing about the GPU: it is unreadable.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from hami_dra.api.hardware import Fault
from hami_dra.discovery.backend import Findings, Health
from hami_dra.discovery.durable import DurableFile, NotStored, boot_id
from hami_dra.discovery.errors import DiscoveryError, ToolFailed
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.memory import CARDS_FILE, LOST, UNREADABLE, CardMemory, Listing
from hami_dra.discovery.sysfs import SYS
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed
from hami_dra.vendors.nvidia.nvml.cards import REMAPPING_FAILED, VENDOR, read_all
from hami_dra.vendors.nvidia.nvml.library import (
    EVENT_DOUBLE_BIT_ECC,
    EVENT_XID,
    NOT_FOUND,
    Handle,
    Library,
    NvmlEvent,
    same,
)
from hami_dra.vendors.nvidia.nvml.mig import permission_fault
from hami_dra.vendors.nvidia.nvml.partitions import NvmlPartitioner
from hami_dra.vendors.nvidia.nvml.unpartitioned import UNPARTITIONED_FILE, UnpartitionedCards, as_cut
from hami_dra.vendors.nvidia.nvml.visits import Visits, open_library
from hami_dra.vendors.nvidia.records import GpuRecord, MigState

NOTED_FAULTS_FILE: Final = "noted-faults.json"


class _FaultsFile(msgspec.Struct, frozen=True):
    boot: str
    faults: dict[str, dict[str, str]]
    """Uuid → code → message."""


class NotedFaults:
    """Faults that NVIDIA's driver reported once, stored until the machine is booted, so that an update of
    our driver does not call a broken GPU healthy. After a reset without a reboot, remove the file and
    restart the driver. `file`: may be missing; None: kept in memory only. Not thread-safe.
    """

    def __init__(self, file: Path | None = None, *, boot: str | None = None) -> None:
        self._file = DurableFile(file)
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
        try:
            text = self._file.read()
            found = None if text is None else msgspec.json.decode(text, type=_FaultsFile)
        except (NotStored, msgspec.MsgspecError) as error:
            self._file.set_aside()
            self.problem = f"hardware errors that were noted before are lost: {self._file.path}: {error}"
            return {}
        return {} if found is None or found.boot != self._boot else found.faults


T = TypeVar("T")

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Caused by programs (illegal access, reset channel, ...): the list of NVIDIA's device plugin."""
_WANTED: Final = EVENT_XID | EVENT_DOUBLE_BIT_ECC
_MOST_EVENTS: Final = 1000
"""Maximum for one call of `health`; a failing GPU can send them faster than they are read."""
_NO_INSTANCE: Final = 0xFFFFFFFF


class _State(NamedTuple):
    """The state of one GPU."""

    faults: tuple[Fault, ...]
    lost: bool = False


def _state_of(failed: NvmlFailed, *, lost: bool) -> _State:
    return _State((Fault(code=LOST if lost else UNREADABLE, message=str(failed)),), lost)


class NvmlBackend:
    """Implements `hami_dra.discovery.backend.Backend`."""

    vendor = VENDOR
    tells_events = True

    def __init__(
        self,
        sys: Path = SYS,
        *,
        timeout: float = 60.0,
        harmless_xids: Collection[int] = APPLICATION_XIDS,
        unpartitioned: UnpartitionedCards | None = None,
        memory: CardMemory | None = None,
        noted: NotedFaults | None = None,
        open_library: Callable[[], Library] = open_library,
    ) -> None:
        """Set up the back end. `timeout`: seconds for one visit to the hardware, beyond the
        patience of `health`. `unpartitioned`: GPUs whose MIG mode is off for a time; they are
        reported as partitionable.
        """
        self._sys = sys
        self._unpartitioned = unpartitioned or UnpartitionedCards()
        self._memory = memory or CardMemory(GpuRecord)
        self._noted = noted or NotedFaults()
        self._open_library = open_library
        self._harmless = frozenset(harmless_xids)
        self._lock = threading.Lock()
        self._visits = Visits(timeout, lambda: self._library.current if self._library else "nvmlInitWithFlags")
        self._library: Library | None = None
        self._events: Handle | None = None
        self._handles: dict[str, Handle] = {}

    @classmethod
    def at(cls, state_folder: Path | None = None) -> "NvmlBackend":
        """Return the back end. `state_folder`: for state that must outlive the program; None: nothing does."""
        if state_folder is None:
            return cls()
        return cls(
            unpartitioned=UnpartitionedCards(state_folder / UNPARTITIONED_FILE),
            memory=CardMemory(GpuRecord, state_folder / CARDS_FILE),
            noted=NotedFaults(state_folder / NOTED_FAULTS_FILE),
        )

    def discover(self) -> Findings:
        with self._lock:
            return self._visits.run(self._discover)

    def health(self, patience: float = 0.0) -> Health:
        with self._lock:
            return self._visits.run(lambda: self._health(patience), patience)

    def close(self) -> None:
        with self._lock:
            if self._library and not self._visits.hangs:
                self._visits.run(self._let_go)

    def look(self, read: Callable[[Library, Mapping[str, Handle]], T]) -> T:
        """Return the result of `read` for the discovered GPUs, by uuid, with NVML locked: for
        readings other than discovery.

        Raises DiscoveryError.
        """

        def visit() -> T:
            if self._library is None:
                raise ToolFailed("NVML: nothing was discovered yet, or the GPUs were released")
            return read(self._library, self._handles)

        with self._lock:
            return self._visits.run(visit)

    def partitioner(self) -> NvmlPartitioner:
        return NvmlPartitioner(unpartitioned=self._unpartitioned, aside=self._aside)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Release all GPUs meanwhile: one that is open, if only for events, cannot be reset. Raises DiscoveryError."""
        with self._lock:
            was_open = self._library is not None
            if was_open:
                self._visits.run(self._let_go)
            try:
                yield
            finally:
                if was_open:
                    with contextlib.suppress(DiscoveryError):  # the next discovery reports it again
                        self._visits.run(self._discover)

    def _let_go(self) -> None:
        library, events = self._library, self._events
        self._library, self._events, self._handles = None, None, {}
        if library:
            if events is not None:
                with contextlib.suppress(NvmlFailed):
                    library.free_event_set(events)
            library.close()

    def _discover(self) -> Findings:
        library = self._open()
        unpartitioned = self._unpartitioned.known()
        try:
            reading = read_all(library, self._sys)
        except NvmlFailed:
            self._start_again(library)
            raise
        # before and after: a mode that is switched meanwhile is read with a note in one of them
        unpartitioned = {**self._unpartitioned.known(), **unpartitioned}
        cards = {index: as_cut(card, unpartitioned) for index, card in reading.cards.items()}
        self._handles = {card.uuid: reading.handles[index] for index, card in cards.items()}
        listing = Listing(tuple(cards[index] for index in sorted(cards)), tuple(reading.problems), tuple(reading.seen))
        judged = self._memory.judge(listing, lambda: self._answering(library), confirmed=True)
        found, problems = self._memory.update(judged)
        troubles = self._listen(library)
        shown = tuple(replace(card, faults=card.faults + self._noted.of(card.uuid)) for card in found)
        return Findings(shown, (*listing.problems, *problems, *troubles, *self._noted_problems()))

    def _answering(self, library: Library) -> Iterator[Trace]:
        """Yield known GPUs that no number leads to, but that NVML knows."""
        for uuid in self._memory.cards:
            if uuid not in self._handles and not self._look(library, uuid).lost:
                yield Trace(uuid=uuid)

    def _health(self, patience: float) -> Health:
        library = self._open()
        problems = self._hear(library, patience)
        faults: dict[str, tuple[Fault, ...]] = {}
        back = False
        for uuid, card in self._memory.cards.items():
            state = self._look(library, uuid, card.mig if isinstance(card, GpuRecord) else None)
            faults[uuid] = (*state.faults, *self._noted.of(uuid))
            back = back or (not card.present and not state.lost)
        return Health(faults, (*problems, *self._noted_problems()), outdated=back)

    def _look(self, library: Library, uuid: str, mig: MigState | None = None) -> "_State":
        """Return the state that is visible without an event. `mig`: as last read."""
        try:
            handle = self._handle(library, uuid)
        except NvmlFailed as failed:
            return _state_of(failed, lost=failed.lost or failed.code == NOT_FOUND)
        try:
            permission = permission_fault(library, handle, mig)
        except NvmlFailed as failed:
            return _state_of(failed, lost=failed.lost)
        try:
            remapping = (REMAPPING_FAILED,) if library.remapping_failed(handle) else ()
        except NvmlFailed as failed:
            return _State(permission) if failed.absent else _state_of(failed, lost=failed.lost)
        return _State((*remapping, *permission))

    def _handle(self, library: Library, uuid: str) -> Handle:
        """Return a handle of this GPU: an old one may lead to others. Raises NvmlFailed, NOT_FOUND if missing."""
        handle = self._handles.get(uuid)
        if handle is not None:
            try:
                if library.uuid(handle) == uuid:
                    return handle
            except NvmlFailed as failed:
                if not failed.absent:
                    raise
        return library.gpu_of(uuid)

    def _noted_problems(self) -> tuple[str, ...]:
        return (self._noted.problem,) if self._noted.problem else ()

    def _open(self) -> Library:
        if self._library is None:
            self._library = self._open_library()
        return self._library

    def _start_again(self, library: Library) -> None:
        """Close NVML after it failed as a whole, such as a reloaded driver; the next call opens it. No handle stays."""
        self._library, self._events, self._handles = None, None, {}
        with contextlib.suppress(NvmlFailed):
            library.close()

    # --- events ---

    def _listen(self, library: Library) -> list[str]:
        """Listen to all present GPUs. Returns problems of GPUs without events."""
        problems = []
        old, self._events = self._events, library.event_set()
        for uuid, handle in self._handles.items():
            try:
                library.register_events(handle, library.supported_events(handle) & _WANTED, self._events)
            except NvmlFailed as failed:
                if not failed.lost:
                    index = self._memory.cards[uuid].index
                    problems.append(f"NVML, GPU {index}: hardware errors will not be noticed: {failed}")
        if old is not None:
            self._drain(library, old, 0)
            library.free_event_set(old)
        return problems

    def _hear(self, library: Library, patience: float) -> list[str]:
        if self._events is None:
            return ["NVML: nothing was discovered yet, so there are no events"]
        return self._drain(library, self._events, int(patience * 1000))

    def _drain(self, library: Library, events: Handle, milliseconds: int) -> list[str]:
        """Read all pending events, after waiting for the first."""
        for _ in range(_MOST_EVENTS):
            try:
                event = library.wait(events, milliseconds)
            except NvmlFailed as failed:
                return [] if failed.lost else [f"NVML: {failed}"]
            if event is None:
                break
            self._note(library, event)
            milliseconds = 0
        return []

    def _note(self, library: Library, event: NvmlEvent) -> None:
        if event.type == EVENT_XID and event.data in self._harmless:
            return
        inside = "" if event.gpu_instance == _NO_INSTANCE else f" in GPU instance {event.gpu_instance}"
        if event.type == EVENT_XID:
            fault = Fault(code=f"xid-{event.data}", message=f"XID {event.data}{inside}")
        else:
            fault = Fault(code="ecc-double-bit", message=f"uncorrectable memory error{inside}")
        for uuid in self._meant(library, event):
            self._noted.note(uuid, fault)

    def _meant(self, library: Library, event: NvmlEvent) -> list[str]:
        """Return the GPU of the event; all of them, if it is unknown (as NVIDIA's device plugin does)."""
        for uuid, handle in self._handles.items():
            if same(handle, event.device):
                return [uuid]
        try:
            uuid = library.uuid(event.device)
        except NvmlFailed:
            return list(self._handles)
        return [uuid] if uuid in self._handles else list(self._handles)
