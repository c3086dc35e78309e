"""Warnings for extended resources that stay in a pod (native mode): several DeviceClasses claim
one.

Called by `controller.webhook.admission`. Pure.
"""

from collections.abc import Iterable

from hami_dra.api.resource import DeviceClass


def clash_warnings(resources: Iterable[str], classes: Iterable[DeviceClass]) -> tuple[str, ...]:
    """Return a warning for each resource of several DeviceClasses: the last created counts, then the first by name."""
    by_resource: dict[str, list[DeviceClass]] = {}
    for device_class in classes:
        if device_class.spec.extended_resource_name:
            by_resource.setdefault(device_class.spec.extended_resource_name, []).append(device_class)
    warnings = []
    for resource in resources:
        mapping = sorted(by_resource.get(resource, ()), key=lambda one: one.metadata.name)
        if len(mapping) > 1:
            # max returns the first of equals
            taken = max(mapping, key=lambda one: one.metadata.creation_timestamp or "")
            all_names = ", ".join(one.metadata.name for one in mapping)
            warnings.append(
                f"{resource} is mapped by several DeviceClasses ({all_names}); Kubernetes takes the one created last, "
                f"{taken.metadata.name}. Remove extendedResourceName from the others"
            )
    return tuple(warnings)
