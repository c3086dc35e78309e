"""The names available to a device selector: the variable `device`, and the types.

Three forms of the environment exist (k8s.io/dynamic-resource-allocation/cel, compile.go):
kube-scheduler evaluates stored selectors with all features; the API server accepts new selectors
only with the enabled features.
"""

from typing import Final

from msgspec import Struct

from hami_dra.cel.types import ANY, BOOL, DEVICE, DYN, QUANTITY, STRING, Type, map_of


class Features(Struct, frozen=True):
    """Feature gates of the DRA selector environment, defaults as in Kubernetes 1.37."""

    consumable_capacity: bool = True
    """device.allowMultipleAllocations exists (DRAConsumableCapacity)."""
    list_type_attributes: bool = False
    """Attributes may be lists, and includes() exists (DRAListTypeAttributes)."""
    stored: bool = True
    """True: compile like kube-scheduler, which accepts whatever the API server has stored; all
    features exist, whatever the gates. False: compile like the API server for a new object.
    """

    @property
    def multiple_allocations(self) -> bool:
        return self.stored or self.consumable_capacity

    @property
    def lists(self) -> bool:
        return self.stored or self.list_type_attributes

    @property
    def attribute_type(self) -> Type:
        """Return the static type of attributes: unknown. The type `any` cannot be looped over."""
        return DYN if self.lists else ANY


def device_fields(features: Features) -> dict[str, Type]:
    fields = {
        "driver": STRING,
        "attributes": map_of(STRING, map_of(STRING, features.attribute_type)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    }
    if features.multiple_allocations:
        fields["allowMultipleAllocations"] = BOOL
    return fields


VARIABLES: Final = {"device": DEVICE}
TYPE_IDENTIFIERS: Final = frozenset(
    [
        "bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint", "optional_type",
        "net.IP", "net.CIDR", "google.protobuf.Duration", "google.protobuf.Timestamp",
    ]
)  # fmt: skip
