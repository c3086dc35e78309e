"""MIG instances created and removed through NVML: the `Partitioner` of NVIDIA's cards.

Called by the node driver when a claim is prepared and unprepared, from any thread (calls wait for
each other). A partition is a GPU instance with one compute instance that spans it; existing parts
of it are kept, so an interrupted call can be repeated.

A GPU that is used as one has its MIG mode switched off, and on again before it is partitioned: only
GPUs whose mode is on when a claim needs them as one, and only while they are unused. That this
driver switched the mode off is noted (`UnpartitionedCards`) before the switch, and forgotten after
it is on again. GPUs before Hopper are reset for that, which NVML does itself and refuses if any
process has the GPU open.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from hami_dra.api.containers import PartitionPlace, PartitionRefused
from hami_dra.api.hardware import PartitionPlacement
from hami_dra.discovery.errors import ToolFailed
from hami_dra.vendors.nvidia.nvml.calls import NOT_SUPPORTED, RESET_REQUIRED, NvmlFailed
from hami_dra.vendors.nvidia.nvml.library import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_PERMISSION,
    NOT_FOUND,
    PROFILE_NUMBERS,
    Handle,
    Library,
)
from hami_dra.vendors.nvidia.nvml.mig import compute_instances, mig_state
from hami_dra.vendors.nvidia.nvml.unpartitioned import UnpartitionedCards
from hami_dra.vendors.nvidia.nvml.visits import Visits, open_library
from hami_dra.vendors.nvidia.records import MigInstance, MigProfile, MigState


class NotSwitched(PartitionRefused):
    """The switch failed. `as_before`: the MIG mode is unchanged; else a new one waits for a reset."""

    as_before = False


def check_unused(card_uuid: str, state: MigState, *, ours: bool) -> None:
    """Check that the GPU is unused. `ours`: this driver had begun to switch the mode off."""
    what = f"GPU {card_uuid} cannot be used as one"
    if state.enabled != state.pending and not ours:
        raise PartitionRefused(
            f"{what}: another program changed its MIG mode, which waits for a reset of the GPU: stop what uses it and reset it "
            f"(nvidia-smi --gpu-reset -i {card_uuid}), or restart the machine"
        )
    if state.instances:
        found = ", ".join(f"{each.id} ({each.uuid or 'without a compute instance'})" for each in state.instances)
        raise PartitionRefused(
            f"{what} while it has GPU instances, which no claim holds and this driver did not make: {found}: remove them with the "
            f"vendor's tool (nvidia-smi mig -i {card_uuid} -dci; nvidia-smi mig -i {card_uuid} -dgi), or take the card out of this driver's pool"
        )


def switch(library: Library, gpu: Handle, card_uuid: str, *, enabled: bool) -> None:
    """Switch the mode. On a refusal, no change is left pending, if NVML allows that."""
    try:
        _check_idle(library, gpu)
        library.set_mig_mode(gpu, enabled=enabled)
    except NvmlFailed as failed:
        if failed.lost and failed.code != RESET_REQUIRED:
            raise
        why = _why_not_switched(failed, card_uuid)
        refused = NotSwitched(
            f"GPU {card_uuid}: MIG mode was not switched {'on' if enabled else 'off'}: {why} ({failed})"
        )
        with contextlib.suppress(NvmlFailed):
            if library.mig_mode(gpu) == (not enabled, enabled):
                library.set_mig_mode(gpu, enabled=not enabled)
            refused.as_before = library.mig_mode(gpu) == (not enabled, not enabled)
        raise refused from failed


def _check_idle(library: Library, gpu: Handle) -> None:
    """Check for processes, because NVML itself does not report them."""
    processes = library.process_ids(gpu)
    if processes:
        shown = ", ".join(map(str, processes))
        raise NvmlFailed("nvmlDeviceSetMigMode was not called, which", IN_USE, f"processes {shown} run on the GPU")


def _why_not_switched(failed: NvmlFailed, card_uuid: str) -> str:
    if failed.code == NO_PERMISSION:
        return "the driver is not allowed to: it must run as root, in a privileged container"
    if failed.code == NOT_SUPPORTED:
        return "this machine does not allow it (a GPU passed through to a virtual machine cannot be reset): set the mode on the host"
    return (
        f"the GPU is in use: end the programs that have it open (nvidia-smi -i {card_uuid}; monitors such as DCGM and nvidia-persistenced "
        "count too), or restart the machine; it is tried again"
    )


T = TypeVar("T")

_WHY: Final = {
    NO_PERMISSION: "the driver is not allowed to: it must run as root with the host's /proc/driver/nvidia/capabilities",
    INSUFFICIENT_RESOURCES: "it does not fit next to the existing instances",
    IN_USE: "programs still run on it",
}


class _Gone(PartitionRefused):
    """The GPU is missing."""


class NvmlPartitioner:
    """Implements `hami_dra.api.containers.Partitioner`."""

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        unpartitioned: UnpartitionedCards | None = None,
        aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Set up the partitioner. `timeout`: seconds for one visit. `aside`: while it is entered,
        nothing else in this process has a GPU open.
        """
        self._unpartitioned = unpartitioned or UnpartitionedCards()
        self._aside = aside
        self._lock = threading.Lock()
        self._current: Library | None = None
        self._visits = Visits(timeout, lambda: self._current.current if self._current else "nvmlInitWithFlags")

    def create(self, place: PartitionPlace) -> MigInstance:
        self.repartition(place.card_uuid)
        return self._visit(place.card_uuid, lambda library, gpu: _create(library, gpu, place))

    def destroy(self, card_uuid: str, instance_id: int) -> None:
        self._visit(card_uuid, lambda library, gpu: _destroy(library, gpu, card_uuid, instance_id))

    def existing(self, card_uuid: str) -> tuple[MigInstance, ...]:
        unpartitioned = card_uuid in self._unpartitioned.known()
        return self._visit(
            card_uuid, lambda library, gpu: _existing(library, gpu, card_uuid, unpartitioned=unpartitioned)
        )

    def unpartition(self, card_uuid: str) -> None:
        ours = card_uuid in self._unpartitioned.known()
        state = self._visit(card_uuid, lambda library, gpu: _wholly_read(library, gpu, card_uuid))
        if state is None or not (state.enabled or state.pending):
            return
        check_unused(card_uuid, state, ours=ours)
        self._unpartitioned.note(card_uuid, state)
        if not self._switched(card_uuid, enabled=False):
            raise PartitionRefused(f"GPU {card_uuid}: NVML does not know this GPU any more")

    def repartition(self, card_uuid: str) -> None:
        if card_uuid in self._unpartitioned.known() and self._switched(card_uuid, enabled=True):
            self._unpartitioned.forget(card_uuid)

    def unpartitioned_cards(self) -> frozenset[str]:
        return frozenset(self._unpartitioned.known())

    def _switched(self, card_uuid: str, *, enabled: bool) -> bool:
        """Switch the mode; return False without the GPU. Raises PartitionRefused if its mode cannot be changed now."""
        try:
            if self._visit(card_uuid, lambda library, gpu: library.mig_mode(gpu)) == (enabled, enabled):
                return True
            with self._aside():
                self._visit(card_uuid, lambda library, gpu: switch(library, gpu, card_uuid, enabled=enabled))
        except _Gone:
            return False
        except NotSwitched as refused:
            # an unchanged mode needs no note; a pending one must be repaired by this driver
            if not enabled and refused.as_before:
                self._unpartitioned.forget(card_uuid)
            raise
        return True

    def _visit(self, card_uuid: str, work: Callable[[Library, Handle], T]) -> T:
        def visit() -> T:
            library = self._current = open_library()
            try:
                return work(library, _gpu(library, card_uuid))
            finally:
                with contextlib.suppress(NvmlFailed):
                    library.close()

        with self._lock:
            return self._visits.run(visit)


def _gpu(library: Library, card_uuid: str) -> Handle:
    try:
        return library.gpu_of(card_uuid)
    except NvmlFailed as failed:
        if failed.absent:
            raise _Gone(f"GPU {card_uuid}: NVML does not know this GPU any more ({failed})") from failed
        raise


def _create(library: Library, gpu: Handle, place: PartitionPlace) -> MigInstance:
    what = f"GPU {place.card_uuid}: MIG instance {place.profile} at memory slice {place.start}"
    there = _existing(library, gpu, place.card_uuid)
    profile, placement = _wanted(library, gpu, place, what)
    half = [found for found in there if (found.profile_id, found.placement) == (profile.id, placement)]
    if half and half[0].uuid:
        return half[0]
    try:
        handle = (
            library.gpu_instance_of(gpu, half[0].id) if half else library.create_gpu_instance(gpu, profile, placement)
        )
    except NvmlFailed as failed:
        raise _refused(f"{what} was not created{_beside(there)}", failed) from failed
    instance_id, lies_at = library.gpu_instance(handle)
    try:
        library.create_compute_instance(handle)
    except NvmlFailed as failed:
        _take_back(library, gpu, place.card_uuid, instance_id)
        raise _refused(f"{what} was not created: its compute instance failed", failed) from failed
    made = [found for found in _existing(library, gpu, place.card_uuid) if found.id == instance_id and found.uuid]
    if not made or lies_at != placement:
        _take_back(library, gpu, place.card_uuid, instance_id)
        raise PartitionRefused(f"{what}: NVML reported that it created it, and shows {made or 'nothing'} at {lies_at}")
    return made[0]


def _take_back(library: Library, gpu: Handle, card_uuid: str, instance_id: int) -> None:
    """Remove a half created instance if possible; otherwise the next call completes it."""
    with contextlib.suppress(NvmlFailed, PartitionRefused):
        _destroy(library, gpu, card_uuid, instance_id)


def _wanted(library: Library, gpu: Handle, place: PartitionPlace, what: str) -> tuple[MigProfile, PartitionPlacement]:
    known: list[str] = []
    for number in PROFILE_NUMBERS:
        try:
            profile = library.mig_profile(gpu, number)
        except NvmlFailed as failed:
            if not failed.absent:
                raise
            continue
        if profile.name == place.profile:
            for placement in profile.placements:
                if placement.start == place.start:
                    return profile, placement
            starts = ", ".join(str(placement.start) for placement in profile.placements) or "none"
            raise PartitionRefused(f"{what}: this GPU can have that profile only at {starts}")
        known.append(profile.name)
    raise PartitionRefused(f"{what}: this GPU has no such profile; it has {', '.join(known) or 'none'}")


def _wholly_read(library: Library, gpu: Handle, card_uuid: str) -> MigState | None:
    problems: list[str] = []
    state = mig_state(library, gpu, problems.append)
    if problems:  # not a refusal: unseen instances must not be taken for removed
        raise ToolFailed(f"GPU {card_uuid}: its MIG instances are not known for certain: {'; '.join(problems)}")
    return state


def _existing(library: Library, gpu: Handle, card_uuid: str, *, unpartitioned: bool = False) -> tuple[MigInstance, ...]:
    """Return the instances. `unpartitioned`: this driver switched its MIG mode off."""
    state = _wholly_read(library, gpu, card_uuid)
    if unpartitioned and state is not None and not state.enabled:
        return ()
    if state is None or not state.enabled:
        raise PartitionRefused(
            f"GPU {card_uuid} is not in MIG mode, so it has no instances: enable it (nvidia-smi -i {card_uuid} -mig 1) "
            "and restart the driver"
        )
    return state.instances


def _destroy(library: Library, gpu: Handle, card_uuid: str, instance_id: int) -> None:
    what = f"GPU {card_uuid}: MIG instance {instance_id}"
    try:
        handle = library.gpu_instance_of(gpu, instance_id)
    except NvmlFailed as failed:
        if failed.code in (NOT_FOUND, NOT_SUPPORTED):  # the second: MIG mode is off, which ends all instances
            return
        raise
    try:
        for compute_id in compute_instances(library, gpu, instance_id):
            library.destroy_compute_instance(handle, compute_id)
        library.destroy_gpu_instance(handle)
    except NvmlFailed as failed:
        if failed.lost:
            raise
        raise _refused(f"{what} was not removed", failed) from failed


def _refused(what: str, failed: NvmlFailed) -> PartitionRefused:
    why = _WHY.get(failed.code)
    return PartitionRefused(f"{what}: {why} ({failed})" if why else f"{what}: {failed}")


def _beside(there: Sequence[MigInstance]) -> str:
    """Describe the other instances on the GPU for people."""
    if not there:
        return ""
    ends = [(found.placement.start, found.placement.start + found.placement.size - 1) for found in there]
    taken = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in sorted(ends))
    return f" (memory slices in use: {taken})"
