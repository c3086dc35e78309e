"""Who serves an extended resource that stays in a pod (native mode): a warning where several DeviceClasses claim it.

Called by `controller.bridge.admission`. Pure.
"""

from collections.abc import Iterable

from hami_dra.api.resource import DeviceClass


def clash_warnings(resources: Iterable[str], classes: Iterable[DeviceClass]) -> tuple[str, ...]:
    """Kubernetes takes the class created last; of classes created in the same second the first by name (DeviceClassSpec)."""
    by_resource: dict[str, list[DeviceClass]] = {}
    for device_class in classes:
        if device_class.spec.extended_resource_name:
            by_resource.setdefault(device_class.spec.extended_resource_name, []).append(device_class)
    warnings = []
    for resource in resources:
        mapping = sorted(by_resource.get(resource, ()), key=lambda one: one.metadata.name)
        if len(mapping) > 1:
            taken = max(mapping, key=lambda one: one.metadata.creation_timestamp or "")  # the first of equals
            all_names = ", ".join(one.metadata.name for one in mapping)
            warnings.append(
                f"{resource} is mapped by several DeviceClasses ({all_names}); Kubernetes takes the one created last, "
                f"{taken.metadata.name}. Remove extendedResourceName from the others"
            )
    return tuple(warnings)
