"""resource.k8s.io/v1 objects: devices (ResourceSlice), their classes (DeviceClass), and claims.

Field names and limits: Kubernetes 1.37 `k8s.io/api/resource/v1/types.go`. Includes alpha fields
that the allocator honours behind a feature gate.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hami_dra.api.core import NodeSelector, QuantityText, Toleration
from hami_dra.api.meta import UNREADABLE, Condition, Object, ObjectMeta, Struct

IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass implies, followed by its name (KEP-5004)."""

# --- slices ---------------------------------------------------------------------------------------


class DeviceAttribute(Struct, frozen=True):
    """Exactly one field is set; the plural ones need the gate DRAListTypeAttributes."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRange(Struct, frozen=True):
    min: QuantityText
    max: QuantityText | None = None
    step: QuantityText | None = None


class CapacityRequestPolicy(Struct, frozen=True):
    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Struct, frozen=True):
    value: QuantityText
    request_policy: CapacityRequestPolicy | None = None


class Counter(Struct, frozen=True):
    value: QuantityText


class CounterSet(Struct, frozen=True):
    name: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class DeviceCounterConsumption(Struct, frozen=True):
    counter_set: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(Struct, frozen=True):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Device(Struct, frozen=True):
    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(Struct, frozen=True):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Struct, frozen=True):
    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(Object, frozen=True, kw_only=True):
    spec: ResourceSliceSpec


# --- classes, requests, claims --------------------------------------------------------------------


class CELDeviceSelector(Struct, frozen=True):
    expression: str


class DeviceSelector(Struct, frozen=True):
    cel: CELDeviceSelector | None = None


class OpaqueDeviceConfiguration(Struct, frozen=True):
    driver: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceClassConfiguration(Struct, frozen=True):
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Struct, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()

    @property
    def extended_resources(self) -> tuple[str, ...]:
        """The names under which pods may request the class (KEP-5004)."""
        implicit, named = f"{IMPLICIT_RESOURCE}{self.metadata.name}", self.spec.extended_resource_name
        return (implicit, named) if named else (implicit,)


class CapacityRequirements(Struct, frozen=True):
    requests: dict[str, QuantityText] = msgspec.field(default_factory=dict)


class DeviceDerivedAttribute(Struct, frozen=True):
    name: str
    expression: str


class ExactDeviceRequest(Struct, frozen=True):
    """A request for one class of devices.

    Also the structure of `DeviceSubRequest`, where `name` is set and `admin_access` never is.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceRequest(Struct, frozen=True):
    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[ExactDeviceRequest, ...] = ()

    @property
    def choices(self) -> tuple[ExactDeviceRequest, ...]:
        """What may be allocated: one thing, or the alternatives of a prioritized list."""
        return self.first_available if self.exactly is None else (self.exactly, *self.first_available)


class DeviceConstraint(Struct, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Struct, frozen=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Struct, frozen=True):
    requests_or_null: tuple[DeviceRequest, ...] | None = msgspec.field(default=(), name="requests")
    """The value on the wire: the API server writes null for a claim without requests."""
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()

    @property
    def requests(self) -> tuple[DeviceRequest, ...]:
        return self.requests_or_null or ()


class ResourceClaimSpec(Struct, frozen=True):
    devices: DeviceClaim = DeviceClaim()
    unreadable: str = msgspec.field(default="", name=UNREADABLE)
    """Why the object is incomplete (`hami_dra.kube.salvage`, `api.oversized`): such a claim cannot be
    allocated or prepared.
    """


class DeviceRequestAllocationResult(Struct, frozen=True, kw_only=True):
    request: str = ""
    """Always set in a cluster; a file that describes devices in use may leave it out."""
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, QuantityText] = msgspec.field(default_factory=dict)

    @property
    def device_id(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class DeviceAllocationConfiguration(Struct, frozen=True):
    source: str
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Struct, frozen=True):
    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Struct, frozen=True):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "AllocationResult":
        """Convert plain JSON, through text, because opaque parameters are kept as text."""
        return msgspec.json.decode(msgspec.json.encode(raw), type=cls, strict=False)


class ConsumerReference(Struct, frozen=True):
    resource: str
    name: str
    uid: str
    api_group: str = ""


class AllocatedDeviceStatus(Struct, frozen=True):
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions_or_null: tuple[Condition, ...] | None = msgspec.field(default=(), name="conditions")
    """The value on the wire: the API server writes null if a driver sets none."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.conditions_or_null or ()


class ResourceClaimStatus(Struct, frozen=True):
    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Object, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def results(self) -> tuple[DeviceRequestAllocationResult, ...]:
        """What is allocated; nothing before the claim is."""
        allocation = self.status.allocation
        return allocation.devices.results if allocation is not None else ()


class ResourceClaimTemplateSpec(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object, frozen=True):
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# --- taint rules ----------------------------------------------------------------------------------


class DeviceTaintSelector(Struct, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True):
    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(Object, frozen=True, kw_only=True):
    spec: DeviceTaintRuleSpec
