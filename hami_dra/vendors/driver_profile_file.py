"""The file format `DriverProfile`: what a driver that hami-dra does not ship publishes, and what it means.

Read by the option `--manage-profile`. In: one document, as JSON. Out: a `DriverProfile`, or
`InvalidDriverProfile`, which names the field and the fix. Pure.
"""

import difflib
import re
from collections import Counter
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hami_dra.api import names
from hami_dra.vendors.protocol import DriverProfile
from hami_dra.vendors.registry import OWN_DRIVERS

KIND: Final = "DriverProfile"
_SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]{0,31}"

DriverName = Annotated[
    str,
    Meta(
        pattern=rf"^{_SUBDOMAIN}$",
        max_length=63,
        description="The driver as in spec.driver of its ResourceSlices: gpu.example.com.",
    ),
]
QualifiedName = Annotated[
    str,
    Meta(
        pattern=rf"^({_SUBDOMAIN}/)?{_IDENTIFIER}$",
        max_length=96,
        description="A name as in the driver's ResourceSlices; without a domain, in the driver's own.",
    ),
]


class InvalidDriverProfile(ValueError):
    """A document is no profile; the message names the field and the fix."""


class _Strict(Struct, forbid_unknown_fields=True, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    pass


class PartitionAttribute(_Strict, frozen=True):
    """How to tell parts of a card from cards."""

    name: QualifiedName
    values: tuple[str, ...] = ()
    """The values that mean a part; none: every device that has the attribute is a part."""


class AttributeRoles(_Strict, frozen=True):
    """Which attribute means what. A role that is left out is not published."""

    index: QualifiedName | UnsetType = UNSET
    """Number of the device on its node (int)."""
    uuid: QualifiedName | UnsetType = UNSET
    product_name: QualifiedName | UnsetType = UNSET
    numa_node: QualifiedName | UnsetType = UNSET
    """Number of the NUMA node (int)."""
    pcie_root: QualifiedName | UnsetType = UNSET
    """Default: the standard attribute resource.kubernetes.io/pcieRoot."""
    link_group: QualifiedName | UnsetType = UNSET
    """Island of the fast interconnect (int, 0 = none; or string)."""
    links: QualifiedName | UnsetType = UNSET
    """Lanes to the devices of index 0, 1, 2 ..., a digit each, as `hami.io/links`."""
    distance: QualifiedName | UnsetType = UNSET
    """PCIe distances to the devices of index 0, 1, 2 ..., a letter each, as `hami.io/distance`."""
    partition: PartitionAttribute | UnsetType = UNSET


class CapacityRoles(_Strict, frozen=True):
    """Which capacity means what. A role that is left out is not published."""

    memory: QualifiedName | UnsetType = UNSET
    cores: QualifiedName | UnsetType = UNSET
    """Compute units, in any unit."""
    shares: QualifiedName | UnsetType = UNSET
    """How many allocations may share a device."""


class DriverProfileFile(_Strict, frozen=True):
    """What the attributes and capacities in the ResourceSlices of one DRA driver mean."""

    api_version: Literal["hami.io/v1alpha1"]
    kind: Literal["DriverProfile"]
    driver: DriverName
    attributes: AttributeRoles = AttributeRoles()
    capacity: CapacityRoles = CapacityRoles()
    number_in_name: Annotated[int, Meta(ge=1, le=9)] | UnsetType = UNSET
    """Which number in a device's name is its index, if no attribute is: 1 reads 4 from gpu-4-132."""
    default_shares: Annotated[int, Meta(ge=1, le=1000)] = 1
    """How many allocations share a device that allows several and publishes no capacity `shares`."""


def parse_driver_profile(raw: Any) -> DriverProfile:
    """Return the profile in a document. Raises InvalidDriverProfile."""
    if not isinstance(raw, dict):
        raise InvalidDriverProfile("it is no object; write apiVersion, kind and driver (docs/driver-profiles.md)")
    for name, value in (("apiVersion", names.CONFIG_API_VERSION), ("kind", KIND)):
        if raw.get(name) != value:
            raise InvalidDriverProfile(f"{name}: it is {raw.get(name, 'missing')}; write {name}: {value}")
    try:
        found = msgspec.convert(raw, DriverProfileFile)
    except msgspec.ValidationError as error:
        raise InvalidDriverProfile(_in_words(raw, str(error))) from error
    if found.driver in OWN_DRIVERS:
        raise InvalidDriverProfile(
            f"driver: {found.driver} is hami-dra's own driver and needs no profile; remove the file"
        )
    twice = [name for name, count in Counter(_set(found.capacity).values()).items() if count > 1]
    if twice:
        fields = " and ".join(f"capacity.{role}" for role, name in _set(found.capacity).items() if name == twice[0])
        raise InvalidDriverProfile(f"{fields}: both are {twice[0]}; a capacity has one meaning, remove one of them")
    return _profile(found)


def _profile(found: DriverProfileFile) -> DriverProfile:
    attributes, capacity = found.attributes, found.capacity
    partition = None if attributes.partition is UNSET else attributes.partition

    def full(name: str | UnsetType | None) -> str | None:
        """An attribute with its domain: the lookup tries the bare name too, if the domain is the driver's."""
        if name is None or name is UNSET:
            return None
        return name if "/" in name else f"{found.driver}/{name}"

    return DriverProfile(
        driver=found.driver,
        uuid=full(attributes.uuid),
        product=full(attributes.product_name),
        index=full(attributes.index),
        link_group=full(attributes.link_group),
        links=full(attributes.links),
        distance=full(attributes.distance),
        numa=full(attributes.numa_node),
        pcie_root=full(attributes.pcie_root) or names.ATTR_PCIE_ROOT,
        memory=_set(capacity).get("memory"),
        cores=_set(capacity).get("cores"),
        shares=_set(capacity).get("shares"),
        partition=full(partition.name if partition else None),
        partition_values=frozenset(partition.values if partition else ()),
        number_in_name=None if found.number_in_name is UNSET else found.number_in_name,
        default_shares=found.default_shares,
    )


def _set(capacity: CapacityRoles) -> dict[str, str]:
    """Role → name of the capacity, for the roles that the file sets."""
    roles: dict[str, str] = msgspec.to_builtins(capacity)
    return roles


# --- error messages -------------------------------------------------------------------------------

_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_PLACE: Final = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)
_STRUCTS: Final[dict[str, type[Struct]]] = {
    "": DriverProfileFile,
    "attributes": AttributeRoles,
    "attributes.partition": PartitionAttribute,
    "capacity": CapacityRoles,
}
_FIXES: Final = {
    "driver": "write it as in spec.driver of its ResourceSlices: gpu.example.com",
    "numberInName": "write a number from 1 to 9, or remove the field",
    "defaultShares": "write a number from 1 to 1000, or remove the field",
}


def _in_words(raw: dict[str, Any], message: str) -> str:
    """Return a message of msgspec as `field: what is wrong; the fix`."""
    found = _PLACE.fullmatch(message)
    problem, field = (found[1], found[2]) if found else (message, "")
    unknown = _UNKNOWN.search(problem)
    if unknown:
        known = [each.encode_name for each in msgspec.structs.fields(_STRUCTS[field])]
        alike = difflib.get_close_matches(unknown[1], known, n=1)
        fix = f"did you mean {alike[0]}?" if alike else f"the fields are {', '.join(known)}"
        return f"{'.'.join(filter(None, (field, unknown[1])))}: no such field; {fix}"
    if "missing required field" in problem:
        name = problem.rpartition("`")[0].rpartition("`")[2]
        full = ".".join(filter(None, (field, name)))
        return f"{full}: it is missing; {_FIXES.get(full, 'add it')}"
    value = _value(raw, field)
    fix = _FIXES.get(field) or _fix_for_type(field)
    return f"{field or 'the document'}: {value!r}: {problem[:1].lower()}{problem[1:]}; {fix}"


def _fix_for_type(field: str) -> str:
    if _STRUCTS.get(field) is not None:
        return "write fields below it"
    return "write a name as in the driver's ResourceSlices: numaNode, or resource.kubernetes.io/pcieRoot"


def _value(raw: Any, field: str) -> Any:
    """Return what the document has at `attributes.index`; a list's items are not looked up."""
    for step in (each.partition("[")[0] for each in field.split(".") if each):
        raw = raw.get(step) if isinstance(raw, dict) else raw
    return raw
