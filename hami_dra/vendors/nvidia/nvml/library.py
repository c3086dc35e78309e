"""NVML with types: the functions used by discovery and the node driver, as values or NvmlFailed.

nvidia-ml-py has no types and answers with ctypes; only opaque handles leave this module. NVML loads
nothing but `libnvidia-ml.so.1`, once in a process.
"""

import ctypes
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
_P2P_READ: Final = 0  # pynvml.NVML_P2P_CAPS_INDEX_READ is a tuple by mistake
_P2P_OK: Final = 0
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


class Library(Calls):
    """NVML, loaded on creation. Raises NvmlFailed, also from every method."""

    def __init__(self) -> None:
        super().__init__()
        self._call("nvmlInitWithFlags", 0)

    def close(self) -> None:
        self._call("nvmlShutdown")

    # --- the system ---

    def driver_version(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        """Return the version: 12040 → 12.4"""
        number = int(self._call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def gpu(self, index: int) -> Handle:
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def gpu_of(self, uuid: str) -> Handle:
        return self._call("nvmlDeviceGetHandleByUUID", uuid)

    # --- one GPU ---

    def uuid(self, device: Handle) -> str:
        return str(self._call("nvmlDeviceGetUUID", device))

    def name(self, gpu: Handle) -> str:
        return str(self._call("nvmlDeviceGetName", gpu))

    def serial(self, gpu: Handle) -> str:
        return str(self._call("nvmlDeviceGetSerial", gpu))

    def minor(self, gpu: Handle) -> int:
        return int(self._call("nvmlDeviceGetMinorNumber", gpu))

    def memory(self, gpu: Handle) -> int:
        """Return all bytes."""
        return int(self._call("nvmlDeviceGetMemoryInfo", gpu).total)

    def bus_id(self, gpu: Handle) -> str:
        """Return the id: `00000000:1B:00.0`"""
        return str(self._field(self._call("nvmlDeviceGetPciInfo", gpu), "busId"))

    def brand(self, gpu: Handle) -> int:
        return int(self._call("nvmlDeviceGetBrand", gpu))

    def architecture(self, gpu: Handle) -> int:
        return int(self._call("nvmlDeviceGetArchitecture", gpu))

    def compute_capability(self, gpu: Handle) -> str:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", gpu)
        return f"{major}.{minor}"

    def numa_node(self, gpu: Handle) -> int | None:
        """Return the nearest node; None when several or none are."""
        nodes = sum(
            word << (_BITS * place) for place, word in enumerate(self._call("nvmlDeviceGetMemoryAffinity", gpu, 4, 0))
        )
        return nodes.bit_length() - 1 if nodes.bit_count() == 1 else None

    def remapping_failed(self, gpu: Handle) -> bool:
        """Return whether a broken row of the memory could not be replaced by a spare one."""
        return bool(self._call("nvmlDeviceGetRemappedRows", gpu)[3])

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
            self._call("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info))
        except NvmlFailed as failed:
            if failed.code not in _NO_SUCH_VERSION:
                raise
            info = self._nvml.c_nvmlGpuFabricInfo_t()
            self._call("nvmlDeviceGetGpuFabricInfo", gpu, ctypes.byref(info))
        return info

    # --- one GPU at work ---

    def memory_in_use(self, gpu: Handle) -> tuple[int, int]:
        """Return bytes in use and all bytes. Drivers before 510 count their reserve as in use."""
        function = "nvmlDeviceGetMemoryInfo"
        try:
            found = self._call(function, gpu, self._nvml.nvmlMemory_v2)
        except NvmlFailed as failed:
            if failed.code not in _NO_SUCH_VERSION:
                raise
            found = self._call(function, gpu)
        return int(found.used), int(found.total)

    def utilization(self, gpu: Handle) -> tuple[int, int]:
        """Return percent of the last moment: of the GPU, of its memory controller."""
        found = self._call("nvmlDeviceGetUtilizationRates", gpu)
        return int(found.gpu), int(found.memory)

    def temperature(self, gpu: Handle) -> int:
        """Return degrees Celsius."""
        return int(self._call("nvmlDeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU))

    def memory_temperature(self, gpu: Handle) -> int:
        """Return degrees Celsius."""
        function = "nvmlDeviceGetFieldValues"
        (found,) = self._call(function, gpu, [self._nvml.NVML_FI_DEV_MEMORY_TEMP])
        if found.nvmlReturn:
            raise NvmlFailed(f"{function}, MEMORY_TEMP", found.nvmlReturn, str(self._nvml.NVMLError(found.nvmlReturn)))
        return int(found.value.uiVal)

    def power(self, gpu: Handle) -> int:
        """Return milliwatts."""
        return int(self._call("nvmlDeviceGetPowerUsage", gpu))

    def fan(self, gpu: Handle) -> int:
        """Return percent of the maximum speed."""
        return int(self._call("nvmlDeviceGetFanSpeed", gpu))

    def ecc_errors(self, gpu: Handle, *, corrected: bool) -> int:
        """Return errors in memory since the driver was loaded."""
        kind = (
            self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED if corrected else self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        )
        return int(self._call("nvmlDeviceGetTotalEccErrors", gpu, kind, self._nvml.NVML_VOLATILE_ECC))

    # --- topology ---

    def common_ancestor(self, one: Handle, other: Handle) -> int:
        return int(self._call("nvmlDeviceGetTopologyCommonAncestor", one, other))

    def peer_access(self, one: Handle, other: Handle) -> bool:
        return int(self._call("nvmlDeviceGetP2PStatus", one, other, _P2P_READ)) == _P2P_OK

    def lane_is_up(self, gpu: Handle, lane: int) -> bool:
        return bool(self._call("nvmlDeviceGetNvLinkState", gpu, lane))

    def lane_bus_id(self, gpu: Handle, lane: int) -> str:
        """Return the id of the device at the other end."""
        return str(self._field(self._call("nvmlDeviceGetNvLinkRemotePciInfo", gpu, lane), "busId"))

    def lane_type(self, gpu: Handle, lane: int) -> int:
        return int(self._call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, lane))

    # --- MIG ---

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return the mode now, and after the next reset."""
        current, pending = self._call("nvmlDeviceGetMigMode", gpu)
        return bool(current), bool(pending)

    def mig_profile(self, gpu: Handle, number: int) -> MigProfile:
        """Return a profile. `number`: one of PROFILE_NUMBERS."""
        try:
            info = self._call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, number)
            name = str(self._field(info, "name")).removeprefix("MIG ")
        except NvmlFailed as failed:
            if failed.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            info = self._call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, number, 1)
            name = f"{info.sliceCount}g.{-(-info.memorySizeMB // 1024)}gb{'+me' if number in _MEDIA_EXTENSIONS else ''}"
        return MigProfile(
            id=info.id,
            name=name,
            memory=info.memorySizeMB * _MIB,
            slices=info.sliceCount,
            instances=info.instanceCount,
            placements=self._placements(gpu, info.id),
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        )

    def _placements(self, gpu: Handle, profile_id: int) -> tuple[PartitionPlacement, ...]:
        count = ctypes.c_uint()
        function = "nvmlDeviceGetGpuInstancePossiblePlacements"
        self._call(function, gpu, profile_id, None, ctypes.byref(count))
        places = (self._nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._call(function, gpu, profile_id, places, ctypes.byref(count))
        return tuple(sorted(PartitionPlacement(start=place.start, size=place.size) for place in places[: count.value]))

    def gpu_instances(self, gpu: Handle, profile: MigProfile) -> list[Handle]:
        count = ctypes.c_uint()
        found = (self._nvml.c_nvmlGpuInstance_t * max(profile.instances, 1))()
        self._call("nvmlDeviceGetGpuInstances", gpu, profile.id, found, ctypes.byref(count))
        return list(found[: count.value])

    def gpu_instance(self, instance: Handle) -> tuple[int, PartitionPlacement]:
        info = self._call("nvmlGpuInstanceGetInfo", instance)
        return int(info.id), PartitionPlacement(start=info.placement.start, size=info.placement.size)

    def most_mig_devices(self, gpu: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", gpu))

    def mig_device(self, gpu: Handle, number: int) -> Handle:
        return self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)

    def instance_ids(self, mig_device: Handle) -> tuple[int, int]:
        return (
            int(self._call("nvmlDeviceGetGpuInstanceId", mig_device)),
            int(self._call("nvmlDeviceGetComputeInstanceId", mig_device)),
        )

    def process_ids(self, gpu: Handle) -> list[int]:
        """Return the programs on the GPU or its parts; empty if the driver lists none."""
        found: set[int] = set()
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            try:
                found |= {int(process.pid) for process in self._call(function, gpu)}
            except NvmlFailed as failed:
                if not failed.absent and failed.code != NO_PERMISSION:
                    raise
        return sorted(found)

    # --- MIG, changes ---

    def set_mig_mode(self, gpu: Handle, *, enabled: bool) -> None:
        """Raises NvmlFailed also for a pending mode: its reset (before Hopper) failed."""
        function = "nvmlDeviceSetMigMode"
        status = int(self._call(function, gpu, int(enabled)))
        if status:
            raise NvmlFailed(f"{function}, activation", status, str(self._nvml.NVMLError(status)))
        if self.mig_mode(gpu) != (enabled, enabled):
            raise NvmlFailed(function, RESET_REQUIRED, "the new mode waits for a reset of the GPU")

    def create_gpu_instance(self, gpu: Handle, profile: MigProfile, placement: PartitionPlacement) -> Handle:
        place = self._nvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        function = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return self._call(function, gpu, profile.id, ctypes.byref(place))

    def gpu_instance_of(self, gpu: Handle, instance_id: int) -> Handle:
        return self._call("nvmlDeviceGetGpuInstanceById", gpu, instance_id)

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
        self._call("nvmlGpuInstanceCreateComputeInstance", instance, profile_id)

    def _compute_profile(self, function: str, instance: Handle, number: int) -> tuple[int, int]:
        """Return slices, id of the profile."""
        try:
            info = self._call(function, instance, number, 0)
        except NvmlFailed as failed:
            if failed.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            info = self._call(function, instance, number, 0, 1)
        return int(info.sliceCount), int(info.id)

    def destroy_compute_instance(self, instance: Handle, compute_id: int) -> None:
        compute = self._call("nvmlGpuInstanceGetComputeInstanceById", instance, compute_id)
        self._call("nvmlComputeInstanceDestroy", compute)

    def destroy_gpu_instance(self, instance: Handle) -> None:
        self._call("nvmlGpuInstanceDestroy", instance)

    # --- events ---

    def event_set(self) -> Handle:
        return self._call("nvmlEventSetCreate")

    def free_event_set(self, events: Handle) -> None:
        self._call("nvmlEventSetFree", events)

    def supported_events(self, gpu: Handle) -> int:
        return int(self._call("nvmlDeviceGetSupportedEventTypes", gpu))

    def register_events(self, gpu: Handle, types: int, events: Handle) -> None:
        self._call("nvmlDeviceRegisterEvents", gpu, types, events)

    def wait(self, events: Handle, milliseconds: int) -> NvmlEvent | None:
        """Wait for an event; return None after that time."""
        try:
            data = self._call("nvmlEventSetWait_v2", events, milliseconds)
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
