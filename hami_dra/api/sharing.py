"""Deduplication of equal parts of API objects, to save memory.

A cluster's cards differ in little but their UUIDs, its pods in little but their names. Called by
`hami_dra.kube.decoding` for every slice, pod, claim and template, before any other code sees them.
It changes which of several equal objects is referenced, and nothing that can be observed. The
slices of 5,000 nodes with 8 cards take 61 MiB instead of 171; a pod takes half, and claims of one
template have one spec.

The table outlives the objects, and tenants choose what is in them, so long parts are not shared, and
the table is bounded by what its parts occupy.
"""

from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from hami_dra.api.core import Container, Node, Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.podvolumes import ImageVolume, Volume
from hami_dra.api.resource import DeviceCapacity, ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate, ResourceSlice
from hami_dra.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim
from hami_dra.api.weight import GRAIN, LIGHT, MOST_SMALL_WEIGHT

_MOST: Final = 2**23 // GRAIN
"""Weight of all parts that are remembered: 8 MiB. UUIDs fill the table, so it is emptied
occasionally, and the next slice fills it again.
"""
_MOST_OF_PART: Final = MOST_SMALL_WEIGHT
_LONG: Final = 32
"""Entries of a list or map."""
_LONG_SPEC: Final = 1_024
"""Bytes of the JSON of a claim's spec."""
_LONG_IMAGE: Final = 512
"""Characters of an image's name. No registry has such a name; what tenants write there is not kept."""
_NO_METADATA: Final = ObjectMeta()
_NO_IMAGE: Final = ImageVolume()
_known: Final[dict[Any, Any]] = {}


class _Remembered:
    """How many of the parts in `_known` are weighed, and their weight."""

    parts = 0
    weight = 0


_RESIZE: Final = "PodResizePending"
_CONDITIONS: Final = frozenset({"PodScheduled", "Ready", _RESIZE})
_EMPTY: Final[dict[str, Any]] = {}
"""Shared; never changed."""
_encode: Final = msgspec.json.Encoder().encode
_OF_POD_SPEC: Final = (
    "node_name", "scheduler_name", "preemption_policy", "tolerations", "scheduling_gates", "resource_claims",
)  # fmt: skip


def share_parts(slice_: ResourceSlice) -> str:
    """Deduplicate the parts of a slice, as `Kind.settle`: all of it is readable."""
    share = _known.setdefault
    capacity: dict[str, DeviceCapacity] | None = None
    for device in slice_.spec.devices:
        attributes = device.attributes
        for name, value in attributes.items():
            attributes[name] = share(value, value)
        # Cards of one model are adjacent, so most have the capacity of the one before.
        if device.capacity != capacity:
            capacity = _shared_capacity(device.capacity)
        force_setattr(device, "capacity", capacity)
    _forget_if_full()
    return ""


def share_pod_parts(pod: Pod) -> str:
    """Deduplicate the parts of a pod, and drop the conditions and volumes that are not used, and
    what kubelet says of resources where that is what the spec says.

    Empty tuples and strings are shared by Python anyway, so only set fields are looked up.
    """
    spec, status = pod.spec, pod.status
    _share_meta(pod.metadata)
    _share_set(spec, _OF_POD_SPEC)
    _share_map(spec, "node_selector")
    _share_empty(spec, ("overhead",))
    if spec.containers:
        force_setattr(spec, "containers", _shared_containers(spec.containers))
    if spec.init_containers:
        force_setattr(spec, "init_containers", _shared_containers(spec.init_containers))
    if spec.affinity is not None and len(text := _encode(spec.affinity)) <= _LONG_SPEC:
        force_setattr(spec, "affinity", _known.setdefault(text, spec.affinity))
    if status.conditions:
        read = tuple([each for each in status.conditions if each.type in _CONDITIONS])
        force_setattr(status, "conditions", _known.setdefault(read, read))
    if status.container_statuses or status.init_container_statuses:
        _drop_repeated_resources(pod)
    _share_set(status, ("phase",))
    if spec.volumes:
        if local := next((each.name for each in spec.volumes if each.is_local), ""):
            force_setattr(spec, "local_volume", _known.setdefault(local, local))
        filtered = tuple([each for each in spec.volumes if each.is_read])
        is_short = len(filtered) <= _LONG and not any(map(_is_long, filtered))
        force_setattr(spec, "volumes", _known.setdefault(filtered, filtered) if is_short else filtered)
    _forget_if_full()
    return ""


def _drop_repeated_resources(pod: Pod) -> None:
    """Drop what kubelet says of resources, unless it is resizing the pod."""
    spec, status = pod.spec, pod.status
    if any(each.type == _RESIZE for each in status.conditions):
        return
    wanted = {each.name: each.resources.requests for each in (*spec.containers, *spec.init_containers)}
    for each in (*status.container_statuses, *status.init_container_statuses):
        requests = wanted.get(each.name, _EMPTY)
        in_force = each.resources.requests if each.resources is not None else _EMPTY
        if (each.allocated_resources or requests) != requests or (in_force or requests) != requests:
            return
    for field in ("container_statuses", "init_container_statuses"):
        force_setattr(status, field, ())


def share_volume_parts(volume: PersistentVolume) -> str:
    """Deduplicate the parts of a PersistentVolume: those of one zone have one node affinity."""
    _share_meta(volume.metadata)
    _share_set(volume.spec, ("capacity", "access_modes", "storage_class_name", "volume_mode"))
    affinity = volume.spec.node_affinity
    if affinity is not None and len(text := _encode(affinity)) <= _LONG_SPEC:
        force_setattr(volume.spec, "node_affinity", _known.setdefault(text, affinity))
    _share_set(volume.status, ("phase",))
    _forget_if_full()
    return ""


def share_volume_claim_parts(claim: PersistentVolumeClaim) -> str:
    """Deduplicate the parts of a PersistentVolumeClaim: those of one StatefulSet request the same."""
    _share_meta(claim.metadata)
    _share_set(claim.spec, ("access_modes", "resources", "storage_class_name", "volume_mode"))
    _share_set(claim.status, ("phase",))
    _forget_if_full()
    return ""


def share_csi_node_parts(node: CSINode) -> str:
    """Deduplicate the drivers of a CSINode: most nodes have the same."""
    _share_set(node.spec, ("listed",))
    _forget_if_full()
    return ""


def share_node_parts(node: Node) -> str:
    """Deduplicate the images of a node: at 50 per node, 5,000 nodes have 2 MiB of them in place of 90."""
    images = node.status.images
    if images:
        force_setattr(node.status, "images", tuple([_known.setdefault(each, each) for each in images]))
        _forget_if_full()
    return ""


def share_claim_parts(claim: ResourceClaim) -> None:
    """Deduplicate the parts of a claim: those that were made from one template have one spec."""
    _share_meta(claim.metadata)
    _share_spec(claim)
    _forget_if_full()


def share_template_parts(template: ResourceClaimTemplate) -> None:
    """Deduplicate the parts of a template, including its spec, which its claims have, too. Nobody
    reads the metadata that its claims will have.
    """
    _share_meta(template.metadata)
    force_setattr(template.spec, "metadata", _NO_METADATA)
    _share_spec(template.spec)
    _forget_if_full()


def _share_spec(holder: Any) -> None:
    spec: ResourceClaimSpec = holder.spec
    text = _encode(spec)
    if len(text) <= _LONG_SPEC:
        force_setattr(holder, "spec", _known.setdefault(text, spec))


def _share_meta(meta: ObjectMeta) -> None:
    _share_set(meta, ("namespace", "creation_timestamp", "owner_references", "finalizers"))
    _share_map(meta, "labels")


def _share_set(holder: Any, fields: tuple[str, ...]) -> None:
    for field in fields:
        if (value := getattr(holder, field)) and (type(value) is not tuple or len(value) <= _LONG):
            force_setattr(holder, field, _known.setdefault(value, value))


def _share_map(holder: Any, field: str) -> None:
    found = getattr(holder, field)
    if not found:
        force_setattr(holder, field, _EMPTY)
    elif len(found) <= _LONG:
        force_setattr(holder, field, _known.setdefault(tuple(found.items()), found))


def _share_empty(holder: Any, fields: tuple[str, ...]) -> None:
    for field in fields:
        if not getattr(holder, field):
            force_setattr(holder, field, _EMPTY)


def forget() -> None:
    _known.clear()
    _Remembered.weight = _Remembered.parts = 0


def _forget_if_full() -> None:
    """Weigh what was added by the length of its JSON; empty a full table. One part that is heavy alone goes."""
    added = len(_known) - _Remembered.parts
    if not added:
        return
    for key in tuple(islice(reversed(_known), added)):
        own = len(_encode(_known[key])) // LIGHT
        if own > _MOST_OF_PART:
            del _known[key]
        else:
            _Remembered.weight += own
    _Remembered.parts = len(_known)
    if _Remembered.weight > _MOST:
        forget()


def _is_long(volume: Volume) -> bool:
    if volume.image is not None and len(volume.image.reference) > _LONG_IMAGE:
        force_setattr(volume, "image", _NO_IMAGE)
    return volume.rbd is not None and len(volume.rbd.monitors) > _LONG


def _shared_capacity(capacity: dict[str, DeviceCapacity]) -> dict[str, DeviceCapacity]:
    if not capacity:
        return _EMPTY
    found: dict[str, DeviceCapacity] = _known.setdefault(tuple(capacity.items()), capacity)
    return found


def _shared_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    """Return the one tuple for equal containers; the containers as they are if a part is long."""
    for each in containers:
        if len(each.image) > _LONG_IMAGE:
            force_setattr(each, "image", "")
    if len(containers) > _LONG:
        return containers
    content = tuple([_content(container) for container in containers])
    if None in content:
        return containers
    found: tuple[Container, ...] = _known.setdefault(content, containers)
    return found


def _content(container: Container) -> tuple[Any, ...] | None:
    """Return a hashable value that is equal for equal containers; None if a part is long."""
    resources, ports = container.resources, container.ports
    limits, requests, claims = resources.limits, resources.requests, resources.claims
    if len(limits) > _LONG or len(requests) > _LONG or len(claims) > _LONG or len(ports) > _LONG:
        return None
    return (
        container.name,
        container.image,
        container.restart_policy,
        container.restart_policy_rules,
        ports,
        claims,
        tuple(limits.items()),
        tuple(requests.items()),
    )
