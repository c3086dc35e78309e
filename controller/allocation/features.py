"""Kubernetes feature gates that change what the allocator does.

Created by the CLI (`--feature-gates A=true,B=false`) or left at the defaults; read by
`controller.allocation` and by the code that gathers pools for it. Defaults are those of
Kubernetes 1.37 (k8s.io/kubernetes v1.37.1 pkg/features/kube_features.go).
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.inventory.pools import PoolGates
from hami_dra.api.booleans import parse_bool


class UnknownGate(ValueError):
    """A name that is no gate of DRA, or a value that is not true or false; the message lists the gates."""


class FeatureGates(Struct, frozen=True, cache_hash=True):
    """The state of every gate. Gates that only the API server, kubelet or kube-scheduler read are
    accepted and ignored.
    """

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    consumable_capacity: bool = True
    device_taints: bool = True
    device_binding_conditions: bool = True
    claim_device_status: bool = True
    fractional_capacity_range: bool = False
    list_type_attributes: bool = False
    compatibility_groups: bool = False
    derived_attributes: bool = False
    optional_node_operations: bool = False

    @property
    def binding_conditions(self) -> bool:
        """Whether devices with binding conditions may be used: needs two gates, as in kube-scheduler."""
        return self.device_binding_conditions and self.claim_device_status

    @property
    def experimental(self) -> bool:
        """Whether an alpha gate makes kube-scheduler use the variant of its allocator that implements all of them."""
        return (
            self.list_type_attributes
            or self.compatibility_groups
            or self.derived_attributes
            or self.optional_node_operations
        )

    @property
    def pool_gates(self) -> PoolGates:
        """The gates that the inventory reads."""
        return PoolGates(self.partitionable_devices, self.compatibility_groups)

    @classmethod
    def parse(cls, text: str) -> "FeatureGates":
        """Parse `A=true,B=false`: later entries win, empty = defaults. Raises UnknownGate.

        >>> FeatureGates.parse("DRAAdminAccess=false").admin_access
        False
        """
        changes: dict[str, bool] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            if name not in GATES and name not in _WITHOUT_EFFECT:
                raise UnknownGate(
                    f"unknown feature gate {name!r}; known: {', '.join(sorted({*GATES, *_WITHOUT_EFFECT}))}"
                )
            enabled = parse_bool(value)
            if enabled is None:
                raise UnknownGate(f"feature gate {name}: {value!r} is not a value; write {name}=true or {name}=false")
            if name in GATES:
                changes[GATES[name]] = enabled
        return replace(cls(), **changes)


GATES: Final = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRADeviceTaints": "device_taints",
    "DRADeviceBindingConditions": "device_binding_conditions",
    "DRAResourceClaimDeviceStatus": "claim_device_status",
    "DRAFractionalCapacityRange": "fractional_capacity_range",
    "DRAListTypeAttributes": "list_type_attributes",
    "DRADeviceCompatibilityGroups": "compatibility_groups",
    "DRADerivedAttributes": "derived_attributes",
    "DRAOptionalNodeOperations": "optional_node_operations",
}
"""Gate → field of FeatureGates."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "DynamicResourceAllocation",
        "DRADeviceTaintRules",
        "DRAExtendedResource",
        "DRANodeAllocatableResources",
        "DRAPartitionableDevicesType",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRAResourcePoolStatus",
        "DRASchedulerFilterTimeout",
        "DRAWorkloadResourceClaims",
    }
)
