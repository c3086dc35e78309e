"""NVML with types: the functions used by discovery and the node driver, as values or NvmlFailed.

nvidia-ml-py has no types and answers with ctypes; only opaque handles leave this module. NVML loads
nothing but `libnvidia-ml.so.1`, once in a process.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec import Struct

from hami_dra.api.hardware import PartitionPlacement
from hami_dra.vendors.nvidia.nvml.calls import NOT_SUPPORTED, RESET_REQUIRED, Calls, NvmlFailed
from hami_dra.vendors.nvidia.records import NO_FABRIC, FabricPlace, MigProfile

Handle = Any
"""Handle of a GPU, an instance, a MIG device or an event set: opaque."""
T = TypeVar("T")

NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
_NO_SUCH_VERSION: Final = {13, 25}
"""FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: an older driver."""

PROFILE_NUMBERS: Final = range(0x12)
"""NVML_GPU_INSTANCE_PROFILE_COUNT."""
_COMPUTE_PROFILE_NUMBERS: Final = range(8)
"""NVML_COMPUTE_INSTANCE_PROFILE_COUNT."""
_MEDIA_EXTENSIONS: Final = {7, 8}
"""Profile numbers named +me (1_SLICE_REV1, 2_SLICE_REV1), if the driver has no name."""
MAX_LANES: Final = 36
"""NVML_NVLINK_MAX_LINKS."""
SWITCH: Final = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
EVENT_DOUBLE_BIT_ECC: Final = 0x2
EVENT_XID: Final = 0x8
_MIB: Final = 1 << 20
_BITS: Final = 64


class NvmlEvent(Struct, frozen=True):
    """The result of nvmlEventSetWait."""

    device: Handle
    type: int
    data: int
    """The number of the XID, for XIDs."""
    gpu_instance: int
    """0xffffffff = none."""


def _method(function: str, convert: Callable[[Any], T]) -> Callable[..., T]:
    """Return the method that calls a function of NVML. `convert`: makes its answer a value."""
    return lambda library, *arguments: convert(library.call(function, *arguments))


def _opaque(function: str) -> Callable[..., Handle]:
    return _method(function, lambda answer: answer)


class Library(Calls):
    """NVML, loaded on creation. Raises NvmlFailed, also from every method."""

    def __init__(self) -> None:
        super().__init__()
        self.call("nvmlInitWithFlags", 0)

    def close(self) -> None:
        self.call("nvmlShutdown")

    # --- the system ---

    driver_version = _method("nvmlSystemGetDriverVersion", str)
    count = _method("nvmlDeviceGetCount", int)
    gpu = _opaque("nvmlDeviceGetHandleByIndex")
    gpu_of = _opaque("nvmlDeviceGetHandleByUUID")

    def cuda_version(self) -> str:
        """Return the version: 12040 → 12.4"""
        number = int(self.call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{number // 1000}.{number % 1000 // 10}"

    # --- one GPU ---

    uuid = _method("nvmlDeviceGetUUID", str)
    name = _method("nvmlDeviceGetName", str)
    serial = _method("nvmlDeviceGetSerial", str)
    minor = _method("nvmlDeviceGetMinorNumber", int)
    brand = _method("nvmlDeviceGetBrand", int)
    architecture = _method("nvmlDeviceGetArchitecture", int)

    def memory(self, gpu: Handle) -> int:
        """Return all bytes."""
        return int(self.call("nvmlDeviceGetMemoryInfo", gpu).total)

    def bus_id(self, gpu: Handle) -> str:
        """Return the id: `00000000:1B:00.0`"""
        return str(self._field(self.call("nvmlDeviceGetPciInfo", gpu), "busId"))

    def compute_capability(self, gpu: Handle) -> str:
        major, minor = self.call("nvmlDeviceGetCudaComputeCapability", gpu)
        return f"{major}.{minor}"

    def numa_node(self, gpu: Handle) -> int | None:
        """Return the nearest node; None when several or none are."""
        nodes = sum(
            word << (_BITS * place) for place, word in enumerate(self.call("nvmlDeviceGetMemoryAffinity", gpu, 4, 0))
        )
        return nodes.bit_length() - 1 if nodes.bit_count() == 1 else None

    def remapping_failed(self, gpu: Handle) -> bool:
        """Return whether a broken row of the memory could not be replaced by a spare one."""
        return bool(self.call("nvmlDeviceGetRemappedRows", gpu)[3])

    def fabric(self, gpu: Handle) -> FabricPlace:
        """Return the place in a fabric that spans machines; NO_FABRIC until the GPU is registered
        there: as NVIDIA's DRA driver and GPU feature discovery see it.
        """
        info = self._fabric_info(gpu)
        uuid = UUID(bytes=bytes(info.clusterUuid))
        registered = info.state == self._nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == 0
        return (
            FabricPlace(cluster_uuid=str(uuid), clique_id=int(info.cliqueId)) if registered and uuid.int else NO_FABRIC
        )

    def _fabric_info(self, gpu: Handle) -> Any:
        """Return nvmlGpuFabricInfo; drivers before 545 have no version of it with more fields."""
        info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self.call("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info))
        except NvmlFailed as failed:
            if failed.code not in _NO_SUCH_VERSION:
                raise
            info = self._nvml.c_nvmlGpuFabricInfo_t()
            self.call("nvmlDeviceGetGpuFabricInfo", gpu, ctypes.byref(info))
        return info

    # --- one GPU at work ---

    power = _method("nvmlDeviceGetPowerUsage", int)
    """Milliwatts."""
    fan = _method("nvmlDeviceGetFanSpeed", int)
    """Percent of the maximum speed."""

    def memory_in_use(self, gpu: Handle) -> tuple[int, int]:
        """Return bytes in use and all bytes. Drivers before 510 count their reserve as in use."""
        function = "nvmlDeviceGetMemoryInfo"
        try:
            found = self.call(function, gpu, self._nvml.nvmlMemory_v2)
        except NvmlFailed as failed:
            if failed.code not in _NO_SUCH_VERSION:
                raise
            found = self.call(function, gpu)
        return int(found.used), int(found.total)

    def utilization(self, gpu: Handle) -> tuple[int, int]:
        """Return percent of the last moment: of the GPU, of its memory controller."""
        found = self.call("nvmlDeviceGetUtilizationRates", gpu)
        return int(found.gpu), int(found.memory)

    def temperature(self, gpu: Handle) -> int:
        """Return degrees Celsius."""
        return int(self.call("nvmlDeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU))

    def memory_temperature(self, gpu: Handle) -> int:
        """Return degrees Celsius."""
        function = "nvmlDeviceGetFieldValues"
        (found,) = self.call(function, gpu, [self._nvml.NVML_FI_DEV_MEMORY_TEMP])
        if found.nvmlReturn:
            raise NvmlFailed(f"{function}, MEMORY_TEMP", found.nvmlReturn, str(self._nvml.NVMLError(found.nvmlReturn)))
        return int(found.value.uiVal)

    def ecc_errors(self, gpu: Handle, *, corrected: bool) -> int:
        """Return errors in memory since the driver was loaded."""
        kind = (
            self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED if corrected else self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        )
        return int(self.call("nvmlDeviceGetTotalEccErrors", gpu, kind, self._nvml.NVML_VOLATILE_ECC))

    # --- topology ---

    common_ancestor = _method("nvmlDeviceGetTopologyCommonAncestor", int)
    lane_is_up = _method("nvmlDeviceGetNvLinkState", bool)
    lane_type = _method("nvmlDeviceGetNvLinkRemoteDeviceType", int)

    def lane_bus_id(self, gpu: Handle, lane: int) -> str:
        """Return the id of the device at the other end."""
        return str(self._field(self.call("nvmlDeviceGetNvLinkRemotePciInfo", gpu, lane), "busId"))

    # --- MIG ---

    most_mig_devices = _method("nvmlDeviceGetMaxMigDeviceCount", int)
    mig_device = _opaque("nvmlDeviceGetMigDeviceHandleByIndex")
    gpu_instance_of = _opaque("nvmlDeviceGetGpuInstanceById")

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return the mode now, and after the next reset."""
        current, pending = self.call("nvmlDeviceGetMigMode", gpu)
        return bool(current), bool(pending)

    def mig_profile(self, gpu: Handle, number: int) -> MigProfile:
        """Return a profile. `number`: one of PROFILE_NUMBERS."""
        try:
            info = self.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, number)
            name = str(self._field(info, "name")).removeprefix("MIG ")
        except NvmlFailed as failed:
            if failed.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            info = self.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, number, 1)
            name = f"{info.sliceCount}g.{-(-info.memorySizeMB // 1024)}gb{'+me' if number in _MEDIA_EXTENSIONS else ''}"
        return MigProfile(
            id=info.id,
            name=name,
            memory=info.memorySizeMB * _MIB,
            slices=info.sliceCount,
            instances=info.instanceCount,
            placements=self._placements(gpu, info.id),
        )

    def _placements(self, gpu: Handle, profile_id: int) -> tuple[PartitionPlacement, ...]:
        count = ctypes.c_uint()
        function = "nvmlDeviceGetGpuInstancePossiblePlacements"
        self.call(function, gpu, profile_id, None, ctypes.byref(count))
        places = (self._nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self.call(function, gpu, profile_id, places, ctypes.byref(count))
        return tuple(sorted(PartitionPlacement(start=place.start, size=place.size) for place in places[: count.value]))

    def gpu_instances(self, gpu: Handle, profile: MigProfile) -> list[Handle]:
        count = ctypes.c_uint()
        found = (self._nvml.c_nvmlGpuInstance_t * max(profile.instances, 1))()
        self.call("nvmlDeviceGetGpuInstances", gpu, profile.id, found, ctypes.byref(count))
        return list(found[: count.value])

    def gpu_instance(self, instance: Handle) -> tuple[int, PartitionPlacement]:
        info = self.call("nvmlGpuInstanceGetInfo", instance)
        return int(info.id), PartitionPlacement(start=info.placement.start, size=info.placement.size)

    def instance_ids(self, mig_device: Handle) -> tuple[int, int]:
        return (
            int(self.call("nvmlDeviceGetGpuInstanceId", mig_device)),
            int(self.call("nvmlDeviceGetComputeInstanceId", mig_device)),
        )

    def process_ids(self, gpu: Handle) -> list[int]:
        """Return the programs on the GPU or its parts; empty if the driver lists none."""
        found: set[int] = set()
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            try:
                found |= {int(process.pid) for process in self.call(function, gpu)}
            except NvmlFailed as failed:
                if not failed.absent and failed.code != NO_PERMISSION:
                    raise
        return sorted(found)

    # --- MIG, changes ---

    destroy_gpu_instance = _opaque("nvmlGpuInstanceDestroy")

    def set_mig_mode(self, gpu: Handle, *, enabled: bool) -> None:
        """Raises NvmlFailed also for a pending mode: its reset (before Hopper) failed."""
        function = "nvmlDeviceSetMigMode"
        status = int(self.call(function, gpu, int(enabled)))
        if status:
            raise NvmlFailed(f"{function}, activation", status, str(self._nvml.NVMLError(status)))
        if self.mig_mode(gpu) != (enabled, enabled):
            raise NvmlFailed(function, RESET_REQUIRED, "the new mode waits for a reset of the GPU")

    def create_gpu_instance(self, gpu: Handle, profile: MigProfile, placement: PartitionPlacement) -> Handle:
        place = self._nvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        function = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return self.call(function, gpu, profile.id, ctypes.byref(place))

    def create_compute_instance(self, instance: Handle) -> None:
        """Create the one that spans its GPU instance: its largest compute profile."""
        function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        found = []
        for number in _COMPUTE_PROFILE_NUMBERS:
            try:
                found.append(self._compute_profile(function, instance, number))
            except NvmlFailed as failed:
                if not failed.absent:
                    raise
        if not found:
            raise NvmlFailed(function, NOT_SUPPORTED, "this GPU instance has no compute profile")
        _, profile_id = max(found)
        self.call("nvmlGpuInstanceCreateComputeInstance", instance, profile_id)

    def _compute_profile(self, function: str, instance: Handle, number: int) -> tuple[int, int]:
        """Return slices, id of the profile."""
        try:
            info = self.call(function, instance, number, 0)
        except NvmlFailed as failed:
            if failed.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            info = self.call(function, instance, number, 0, 1)
        return int(info.sliceCount), int(info.id)

    def destroy_compute_instance(self, instance: Handle, compute_id: int) -> None:
        compute = self.call("nvmlGpuInstanceGetComputeInstanceById", instance, compute_id)
        self.call("nvmlComputeInstanceDestroy", compute)

    # --- events ---

    event_set = _opaque("nvmlEventSetCreate")
    free_event_set = _opaque("nvmlEventSetFree")
    supported_events = _method("nvmlDeviceGetSupportedEventTypes", int)
    register_events = _opaque("nvmlDeviceRegisterEvents")

    def wait(self, events: Handle, milliseconds: int) -> NvmlEvent | None:
        """Wait for an event; return None after that time."""
        try:
            data = self.call("nvmlEventSetWait_v2", events, milliseconds)
        except NvmlFailed as failed:
            if failed.code == TIMEOUT:
                return None
            raise
        return NvmlEvent(data.device, data.eventType, data.eventData, data.gpuInstanceId)


def same(one: Handle, other: Handle) -> bool:
    """Return whether two handles refer to one object."""

    def address(handle: Handle) -> int | None:
        return ctypes.cast(handle, ctypes.c_void_p).value

    return address(one) is not None and address(one) == address(other)
