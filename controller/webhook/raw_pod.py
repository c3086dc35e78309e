"""A pod as JSON, read and changed in place only in the fields that the conversion is about.

Called by `controller.webhook.convert`. Pods in files may have any shape, so every field is checked
before use.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from controller.webhook.sharing import Role
from hami_dra.vendors.legacy import ContainerResources, LegacyVendor

Raw = dict[str, Any]


class Malformed(ValueError):
    """A field does not have the type that the API gives it; the message names the field."""


class RawContainer(Struct, frozen=True):
    raw: Raw
    where: str
    """Prefix for messages: `init container "download"`."""
    role: Role

    @property
    def resources(self) -> ContainerResources:
        lists = self.raw.get("resources") or {}
        limits, requests = (
            {name: value for name, value in (lists.get(part) or {}).items() if value is not None}
            for part in ("limits", "requests")
        )
        return ContainerResources(limits, requests)

    def mentions(self, vendor: LegacyVendor) -> bool:
        resources = self.resources
        return any(name in resources for name in vendor.resources)

    def strip(self, vendor: LegacyVendor) -> None:
        """Remove the vendor's resources from limits and requests, and a list that becomes empty."""
        lists = self.raw["resources"]
        for part in ("limits", "requests"):
            if lists.get(part):
                lists[part] = {name: value for name, value in lists[part].items() if name not in vendor.resources}
                if not lists[part]:
                    del lists[part]


def containers_of(spec: Raw) -> Iterator[RawContainer]:
    """Yield init containers, then app containers, in the pod's order. Raises Malformed."""
    for kind, key in (("init container", "initContainers"), ("container", "containers")):
        for index, raw in enumerate(objects_in(spec, key, "spec.")):
            where = f'{kind} "{raw.get("name", index)}"'
            resources = object_in(raw, "resources", f"{where}: ")
            for part in ("limits", "requests"):
                object_in(resources, part, f"{where}: resources.")
            objects_in(resources, "claims", f"{where}: resources.")
            objects_in(raw, "env", f"{where}: ")
            if key == "containers":
                role = Role.APP
            else:
                role = Role.SIDECAR if raw.get("restartPolicy") == "Always" else Role.INIT
            yield RawContainer(raw, where, role)


def object_in(parent: Raw, key: str, where: str) -> Raw:
    """Return the object at `key`, or an empty one, which is not part of the parent. Raises Malformed."""
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise Malformed(f"{where}{key} is {value!r}; it must be an object")
    return value or {}


def objects_in(parent: Raw, key: str, where: str) -> list[Raw]:
    """Return the list of objects at `key`, empty if there is none. Raises Malformed."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise Malformed(f"{where}{key} must be a list of objects")
    return value
