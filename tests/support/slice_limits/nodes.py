"""On which nodes a slice or a device is: exactly one way to say so. Contents of node selectors are not checked."""

from hami_dra.api.resource import Device, ResourceSliceSpec
from tests.support.slice_limits import formats
from tests.support.slice_limits.common import Found, formatted


def node_selection(field: str, owner: ResourceSliceSpec | Device, *, per_device: bool | None = None) -> Found:
    for name, value in (
        ("nodeName", owner.node_name),
        ("allNodes", owner.all_nodes),
        ("perDeviceNodeSelection", per_device),
    ):
        if value is False:
            yield f"{field}.{name}", "is false: leave it out or set it to true"
        if name == "nodeName" and isinstance(value, str):
            yield from formatted(f"{field}.nodeName", value, formats.subdomain)
    if isinstance(owner, ResourceSliceSpec) and owner.node_selector:
        terms = len(owner.node_selector.node_selector_terms)
        if terms != 1:
            yield f"{field}.nodeSelector.nodeSelectorTerms", f"has {terms} terms: exactly one is allowed"
    chosen = [
        name
        for name, value in (
            ("nodeName", owner.node_name),
            ("nodeSelector", owner.node_selector),
            ("allNodes", owner.all_nodes),
            ("perDeviceNodeSelection", per_device),
        )
        if value
    ]
    if len(chosen) != 1:
        choices = "nodeName, nodeSelector, allNodes" + (
            ", perDeviceNodeSelection" if isinstance(owner, ResourceSliceSpec) else ""
        )
        yield field, f"sets {' and '.join(chosen) or 'none'} of {choices}: set exactly one"
