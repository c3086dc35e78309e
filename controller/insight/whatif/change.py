"""A change, and the objects of the changed state.

Called by `controller.insight.whatif.compare`. In: the present state and a `Change`. Out: the objects
with the change applied: pods to be placed again lose their node, and their claims the allocation.
Nothing is decided here. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from controller.insight.manifests import Gathered, Item, gather, read
from controller.insight.simulation import SimulationSettings
from controller.rules import pinned_names
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.errors import InputError
from hami_dra.api.meta import belongs_to_node
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_finished, is_live
from hami_dra.api.printable import listed
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.documents import Document

Raw = dict[str, Any]
NODE_AXIS: Final = names.NODE_POLICY
DEVICE_AXIS: Final = names.DEVICE_POLICY
WEIGHTS_AXIS: Final = names.PACKING_WEIGHTS


class BadChange(InputError):
    """The object of the change is missing or exists already; the message names it and the fix."""


class Change(Struct, frozen=True):
    """One change: `settings` place pods after it, `present` ones are in force now."""

    settings: SimulationSettings = field(default_factory=SimulationSettings)
    present: SimulationSettings = field(default_factory=SimulationSettings)
    policies: tuple[tuple[str, str], ...] = ()
    """Differences between the two as (annotation, value), for the conclusion and for `override`."""
    override: bool = False
    """Apply `policies` to pods, claims, templates and classes that ask for another by annotation, too."""
    additions: tuple[Document, ...] = ()
    """Pods to add, with the objects that belong to them."""
    without_nodes: tuple[str, ...] = ()
    replace: bool = False
    """Place every pod that has devices again, in order of creation."""
    preemptors: tuple[str, ...] = ()
    """Keys of the pods that may preempt others."""

    @property
    def is_nothing(self) -> bool:
        return not (self.policies or self.additions or self.without_nodes or self.replace or self.preemptors)

    @property
    def sides(self) -> tuple[SimulationSettings, SimulationSettings]:
        """Return the settings without and with the change. Both decide in the same order."""
        if not self.preemptors:
            return self.present, self.settings
        return (
            replace(self.present, preemption=True, preemptors=frozenset()),
            replace(self.settings, preemption=True, preemptors=frozenset(self.preemptors)),
        )


class SimulatedState(Struct, frozen=True):
    """The parsed state before any change."""

    gathered: Gathered
    """Objects of the kinds that a simulation reads, and notes about unused documents."""
    pods: Mapping[str, Pod]
    """By key; only pods of the input, none generated from workloads."""
    allocated: Mapping[str, ResourceClaim]
    """Allocated claims by key."""
    users: Mapping[str, set[str]]
    """Key of a claim → keys of the live pods that refer to it."""

    @property
    def nodes(self) -> set[str]:
        found = {each.object.metadata.name for each in self.gathered.items if each.kind is kinds.NODE}
        slices = (each.object for each in self.gathered.items if each.kind is kinds.RESOURCE_SLICE)
        return found or {each.spec.node_name for each in slices if each.spec.node_name}


class Changed(Struct, frozen=True):
    gathered: Gathered
    replaced: frozenset[str]
    """Keys of the pods that are placed again."""
    gone: tuple[str, ...]
    overruled: int
    """Number of objects whose own policy takes precedence over the change."""


def state_of(documents: Iterable[Document]) -> SimulatedState:
    """Raises BadManifest."""
    gathered = gather(documents)
    pods: dict[str, Pod] = {}
    allocated: dict[str, ResourceClaim] = {}
    users: dict[str, set[str]] = {}
    for item in gathered.items:
        if item.kind is kinds.POD:
            pods[item.key] = item.object
            if not is_finished(item.object):
                for key in claim_keys(item.object):
                    users.setdefault(key, set()).add(item.key)
        elif item.kind is kinds.RESOURCE_CLAIM and item.object.status.allocation is not None:
            allocated[item.key] = item.object
    return SimulatedState(gathered, pods, allocated, users)


def apply(state: SimulatedState, change: Change) -> Changed:
    """Return the changed state. Raises BadChange, BadManifest."""
    _check_nodes(state, change)
    without = frozenset(change.without_nodes)
    _check_additions(state, change)
    gone = {key for key, pod in state.pods.items() if pod.spec.node_name in without and belongs_to_node(pod)}
    replaced = {
        key
        for key, pod in state.pods.items()
        if key not in gone and is_live(pod) and _is_placed_again(state, pod, without, change)
    }
    away = {key for key, pod in state.pods.items() if pod.spec.node_name in without} - replaced
    # A claim stays allocated as long as a pod that keeps its place uses it.
    freed = {key for key in state.allocated if (users := state.users.get(key)) and users <= replaced | away}
    kept: list[Item] = []
    recreated: list[Item] = []
    waiting: list[Item] = []
    for item in state.gathered.items:
        if item.kind is kinds.POD:
            if item.key in replaced:
                recreated.append(_unbound(item))
            elif item.key not in away:
                (kept if item.object.spec.node_name else waiting).append(item)
        elif item.kind in kinds.WORKLOADS:
            waiting.append(item)
        elif item.kind is kinds.RESOURCE_CLAIM and item.key in freed:
            kept.append(read(item.source, item.kind, {**item.raw, "status": {}}))
        elif not _is_on(item, without):
            kept.append(item)
    # stable: pods created in the same second, or from files without times, keep their order
    recreated.sort(key=lambda item: item.object.metadata.creation_timestamp or "")
    gathered = gather(change.additions, (*kept, *recreated, *waiting))
    overruled = 0 if change.override else _count_overruled(gathered.items, change)
    if change.override:
        dropped = {name for name, _ in change.policies}
        gathered = replace(gathered, items=tuple([_without_policies(item, dropped) for item in gathered.items]))
    return Changed(gathered, frozenset(replaced), tuple(sorted(gone)), overruled)


# --- affected pods ---------------------------------------------------------------------------


def _check_nodes(state: SimulatedState, change: Change) -> None:
    there = state.nodes
    for name in change.without_nodes:
        if name not in there:
            known = listed(sorted(there), 10) or "none"
            raise BadChange(f"without node {name}: there is no such node; there are {known}")


def _check_additions(state: SimulatedState, change: Change) -> None:
    for item in gather(change.additions).items:
        if item.kind is kinds.POD and item.key in state.pods:
            raise BadChange(f"{item.source}: Pod {item.key} is there already; give it another name")


def _is_placed_again(state: SimulatedState, pod: Pod, without: frozenset[str], change: Change) -> bool:
    """Return whether it is placed again: not without devices, nor if its scheduler is not hami-dra's."""
    if pod.spec.node_name in without:
        return True
    again = change.replace and pod.spec.scheduler_name in change.settings.scheduler_names
    if not any(key in state.allocated for key in claim_keys(pod)):
        return False
    if not pod.spec.node_name:
        # Decided and not bound yet: its devices determine its node.
        held = (state.allocated[key] for key in claim_keys(pod) if key in state.allocated)
        return again or any(map(without.intersection, map(_pinned, held)))
    # hami-dra does not place pods whose extended resources kube-scheduler serves by its own claim.
    return again and pod.status.extended_resource_claim_status is None


def _pinned(claim: ResourceClaim) -> Collection[str]:
    """Return the nodes that its allocation names."""
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    return (pinned_names(selector) or ()) if selector is not None else ()


# --- objects ---------------------------------------------------------------------------------


def _is_on(item: Item, nodes: frozenset[str]) -> bool:
    if item.kind is kinds.NODE:
        return item.object.metadata.name in nodes
    return item.kind is kinds.RESOURCE_SLICE and item.object.spec.node_name in nodes


def _unbound(item: Item) -> Item:
    spec = {key: value for key, value in item.raw["spec"].items() if key != "nodeName"}
    status = {key: value for key, value in item.raw.get("status", {}).items() if key == "resourceClaimStatuses"}
    return read(item.source, item.kind, {**item.raw, "spec": spec, "status": status})


# --- policies --------------------------------------------------------------------------------


def _annotated(raw: Raw) -> list[Raw]:
    """Return the metadata in which the object, or what is created from it, can ask for a policy."""
    spec = raw.get("spec")
    inner = spec if isinstance(spec, dict) else {}
    template = inner.get("template")
    holders = (raw, inner, template if isinstance(template, dict) else {})
    return [meta for holder in holders if isinstance(meta := holder.get("metadata"), dict)]


def _asks(metadata: Raw, policies: Iterable[tuple[str, str]]) -> bool:
    annotations = metadata.get("annotations")
    return isinstance(annotations, dict) and any(annotations.get(name, value) != value for name, value in policies)


def _count_overruled(items: Iterable[Item], change: Change) -> int:
    # first-fit overrides anyway
    policies = [each for each in change.policies if each != (DEVICE_AXIS, names.FIRST_FIT)]
    return sum(
        any(_asks(metadata, policies) for metadata in _annotated(item.raw)) for item in items if not _is_settled(item)
    )


def _is_settled(item: Item) -> bool:
    """Return whether nothing remains to be decided about the object."""
    if item.kind is kinds.POD:
        return bool(item.object.spec.node_name)
    return item.kind is kinds.RESOURCE_CLAIM and item.object.status.allocation is not None


def _without_policies(item: Item, dropped: set[str]) -> Item:
    """Return the object without annotations for other policies, so that the defaults apply."""
    raw = _dropped(item.raw, dropped)
    return item if raw == item.raw else read(item.source, item.kind, raw)


def _dropped(raw: Raw, dropped: set[str]) -> Raw:
    found = dict(raw)
    metadata = raw.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        kept = {name: value for name, value in metadata["annotations"].items() if name not in dropped}
        found["metadata"] = {**metadata, "annotations": kept}
    for part in ("spec", "template"):
        if isinstance(raw.get(part), dict):
            found[part] = _dropped(raw[part], dropped)
    return found
