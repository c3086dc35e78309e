"""Switch the MIG mode of one idle GPU on and off. Called by `partitions`, in its thread; keeps no
state.

In: an open library, a GPU. Out: nothing, or `PartitionRefused` with the fix. Raises NvmlFailed when
the GPU does not answer.
"""

import contextlib

from hami_dra.api.containers import PartitionRefused
from hami_dra.vendors.nvidia.nvml.calls import NOT_SUPPORTED, RESET_REQUIRED, NvmlFailed
from hami_dra.vendors.nvidia.nvml.library import IN_USE, NO_PERMISSION, Handle, Library
from hami_dra.vendors.nvidia.records import MigState


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
