"""The parts of hami-dra in a cluster, listed for `uninstall` before it deletes anything. Reads
only.

An object that cannot be read is still known by its metadata, which is enough to delete it, or to
remove an annotation.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from controller.reconcile.fence import carries_fence, is_fence_name, is_fence_rule
from controller.reconcile.runtime import TAINT_RULE_KINDS
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod, PodSpec, SchedulingGate
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podstate import has_our_gate
from hami_dra.kube.protocol import Cluster, Listing, NotFound

T = TypeVar("T", bound=Object)

CHANGES_OBJECTS: Final[tuple[Kind[Any], ...]] = (
    kinds.MUTATING_POLICY_BINDING,
    kinds.MUTATING_POLICY,
    kinds.MUTATING_WEBHOOK,
    kinds.VALIDATING_WEBHOOK,
)
PROTECTS: Final[tuple[Kind[Any], ...]] = (kinds.VALIDATING_POLICY_BINDING, kinds.VALIDATING_POLICY)
ADMISSION: Final = (*CHANGES_OBJECTS, *PROTECTS)
_NAMES: Final = frozenset(
    {names.GATE_POLICY, names.PROTECT_POLICY, names.FENCE_POLICY, names.WEBHOOK, *names.GUARD_POLICIES}
)
_PROBES: Final[tuple[Kind[Any], ...]] = (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS)
_TEMPLATES: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY},{names.TEMPLATE_HASH_LABEL}"


class InstalledObjects(Struct):
    """Our own objects, and other objects with our annotations, finalizers or gates."""

    admission: list[tuple[Kind[Any], Object]] = field(default_factory=list)
    gated: Sequence[Pod] = ()
    rules: list[tuple[Kind[Any], Object]] = field(default_factory=list)
    fenced_drivers: Sequence[str] = ()
    """Drivers whose slices carry the fence taint."""
    probes: list[tuple[Kind[Any], Object]] = field(default_factory=list)
    quotas: Sequence[Object] = ()
    unreadable: list[str] = field(default_factory=list)
    """`kind namespace/name: why`, for all listed objects that cannot be read."""


async def take_stock(cluster: Cluster) -> InstalledObjects:
    """List everything. Raises ClusterError if a kind cannot be listed."""
    present = InstalledObjects()

    async def everything(kind: Kind[T], label_selector: str = "") -> Listing[T]:
        listing = await cluster.list(kind, label_selector=label_selector)
        present.unreadable += [f"{kind.name} {each.object.key}: {each.problem}" for each in listing.broken]
        return listing

    for kind in ADMISSION:
        if await cluster.serves(kind):
            found = await everything(kind)
            present.admission += [(kind, each) for each in _with_unreadable(found) if _is_ours(each)]
    pods = await everything(kinds.POD)
    present.gated = await _gated(cluster, pods)
    for rule_kind in TAINT_RULE_KINDS:
        if await cluster.serves(rule_kind):
            rules = await everything(rule_kind)
            present.rules += [(rule_kind, rule) for rule in rules.items if is_fence_rule(rule)]
            present.rules += [(rule_kind, each) for each in _unread(rules) if is_fence_name(each.metadata.name)]
    slices = await everything(kinds.RESOURCE_SLICE)
    present.fenced_drivers = sorted({each.spec.driver for each in slices.items if carries_fence(each)})
    for kind in _PROBES:
        probes = await everything(kind, names.PROBE_LABEL)
        present.probes += [(kind, each) for each in _with_unreadable(probes) if _is_the_probe(each)]
    quotas = await everything(kinds.RESOURCE_QUOTA)
    present.quotas = [each for each in _with_unreadable(quotas) if names.QUOTA_USED in each.metadata.annotations]
    await everything(kinds.RESOURCE_CLAIM_TEMPLATE, _TEMPLATES)
    present.unreadable = list(dict.fromkeys(present.unreadable))
    return present


def summary(present: InstalledObjects) -> list[str]:
    """Return a line for each object that is removed, and for each kind of mark on objects of others."""
    ours = [*present.admission, *present.rules, *present.probes]
    lines = [f"{kind.name} {each.key}" for kind, each in ours]
    marks = (
        (f"scheduling gate {names.GATE}", "pod", present.gated),
        (f"annotation {names.QUOTA_USED}", "quota", present.quotas),
    )
    return lines + [
        f"{what} of {len(found)} {kind}{'' if len(found) == 1 else 's'}" for what, kind, found in marks if found
    ]


async def gated_pods(cluster: Cluster) -> list[Pod]:
    """Raises ClusterError."""
    return await _gated(cluster, await cluster.list(kinds.POD))


async def take_stock_of_gates(cluster: Cluster) -> InstalledObjects:
    """List the pods with the gate, and what adds it to new pods. Raises ClusterError."""
    policies = [
        (kind, found)
        for kind in (kinds.MUTATING_POLICY_BINDING, kinds.MUTATING_POLICY)
        if await cluster.serves(kind)
        for found in _with_unreadable(await cluster.list(kind))
        if found.metadata.name == names.GATE_POLICY
    ]
    return InstalledObjects(admission=policies, gated=await gated_pods(cluster))


async def webhook_templates(cluster: Cluster) -> list[Object]:
    """Return the templates of converted pods. Raises ClusterError."""
    return list(_with_unreadable(await cluster.list(kinds.RESOURCE_CLAIM_TEMPLATE, label_selector=_TEMPLATES)))


async def _gated(cluster: Cluster, pods: Listing[Pod]) -> list[Pod]:
    found = [pod for pod in pods.items if has_our_gate(pod)]
    for unread in _unread(pods):
        pod = await _gates_alone(cluster, unread)
        if pod is not None and has_our_gate(pod):
            found.append(pod)
    return found


async def _gates_alone(cluster: Cluster, unread: Object) -> Pod | None:
    """Return an unreadable pod with metadata and gates, which suffices to remove its gate."""
    try:
        raw = await cluster.get_raw(kinds.POD, unread.metadata.name, unread.metadata.namespace)
    except NotFound:
        return None
    spec = raw.get("spec")
    gates = spec.get("schedulingGates") if isinstance(spec, dict) else None
    listed = gates if isinstance(gates, list) else []
    named = [each["name"] for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str)]
    return Pod(
        metadata=unread.metadata, spec=PodSpec(scheduling_gates=tuple(SchedulingGate(name=each) for each in named))
    )


def _unread(listing: Listing[Any]) -> Iterable[Object]:
    """Return the objects that were listed but are not in `items`."""
    read = {item.key for item in listing.items}
    return (broken.object for broken in listing.broken if broken.object.key not in read)


def _with_unreadable(listing: Listing[Any]) -> Iterable[Object]:
    return (*listing.items, *_unread(listing))


def _is_the_probe(found: Object) -> bool:
    """Return whether it is the probe; the label alone proves nothing, because any user can set it."""
    return found.metadata.name == names.PROBE and found.metadata.namespace in ("", names.PROBE_NAMESPACE)


def _is_ours(found: Object) -> bool:
    """Return whether it is ours: by name, or by label if it was installed under another name."""
    labels = found.metadata.labels
    return found.metadata.name in _NAMES or names.MANAGED_BY in (
        labels.get(names.MANAGED_BY_LABEL),
        labels.get(names.PART_OF_LABEL),
    )
