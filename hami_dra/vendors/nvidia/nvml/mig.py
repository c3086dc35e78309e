"""The MIG profiles and instances of a GPU. Called by `cards` and `partitions`. Reads only."""

from collections.abc import Callable, Iterator
from typing import Final

from hami_dra.api.hardware import Fault
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed, optional, tolerated
from hami_dra.vendors.nvidia.nvml.library import NO_PERMISSION, PROFILE_NUMBERS, Handle, Library
from hami_dra.vendors.nvidia.records import MigInstance, MigProfile, MigState

NOT_PERMITTED: Final = "mig-not-permitted"


def mig_state(library: Library, gpu: Handle, problem: Callable[[str], None]) -> MigState | None:
    """Return the MIG state; None for a GPU without MIG. Raises NvmlFailed when the GPU is lost."""
    mode = optional(lambda: library.mig_mode(gpu), None, problem)
    if mode is None:
        return None
    enabled, pending = mode
    profiles = []
    for number in PROFILE_NUMBERS:
        with tolerated(problem, f"MIG profile {number}: "):
            profiles.append(library.mig_profile(gpu, number))
    profiles.sort(key=lambda profile: profile.id)
    instances = _instances(library, gpu, profiles, problem) if enabled else []
    return MigState(enabled=enabled, pending=pending, profiles=tuple(profiles), instances=tuple(instances))


def permission_fault(library: Library, gpu: Handle, state: MigState | None) -> tuple[Fault, ...]:
    """Return a fault if NVML shows this process no MIG instances of a GPU in MIG mode.

    Then none can be created, and the usage of the GPU is unknown: every claim for it or a part of
    it would be refused. NVIDIA's container runtime hides the instances from containers without
    NVIDIA_MIG_CONFIG_DEVICES. `state`: as last read. Raises NvmlFailed when the GPU is lost.
    """
    if state is None or not state.profiles:
        return ()
    try:
        if library.mig_mode(gpu)[0]:
            library.gpu_instances(gpu, state.profiles[0])
    except NvmlFailed as failed:
        if failed.lost:
            raise
        if failed.code == NO_PERMISSION:
            return (Fault(code=NOT_PERMITTED, message=f"this driver may not list its MIG instances: {failed}"),)
    return ()


def _instances(
    library: Library, gpu: Handle, profiles: list[MigProfile], problem: Callable[[str], None]
) -> list[MigInstance]:
    devices = _devices(library, gpu, problem)
    instances = []
    for profile in profiles:
        with tolerated(problem, f"MIG instances of profile {profile.name}: "):
            for handle in library.gpu_instances(gpu, profile):
                number, placement = library.gpu_instance(handle)
                compute, uuid = devices.get(number, (None, ""))
                instances.append(
                    MigInstance(
                        id=number, profile_id=profile.id, placement=placement, uuid=uuid, compute_instance_id=compute
                    )
                )
    return sorted(instances, key=lambda instance: instance.id)


def _devices(library: Library, gpu: Handle, problem: Callable[[str], None]) -> dict[int, tuple[int, str]]:
    """Return id of the GPU instance → id of its compute instance, uuid of the MIG device (numbered with gaps)."""
    found: dict[int, tuple[int, str]] = {}
    with tolerated(problem, "MIG devices: "):
        for device, instance, compute in _mig_devices(library, gpu):
            found[instance] = (compute, library.uuid(device))
    return found


def compute_instances(library: Library, gpu: Handle, instance: int) -> list[int]:
    """Return ids of the compute instances in a GPU instance; `instance`: its id. Raises NvmlFailed."""
    return [compute for _, owner, compute in _mig_devices(library, gpu) if owner == instance]


def _mig_devices(library: Library, gpu: Handle) -> Iterator[tuple[Handle, int, int]]:
    """Yield MIG device, ids of its GPU and compute instance."""
    for number in range(library.most_mig_devices(gpu)):
        try:
            device = library.mig_device(gpu, number)
        except NvmlFailed as failed:
            if failed.absent:
                continue
            raise
        instance, compute = library.instance_ids(device)
        yield device, instance, compute
