"""Pods that wait for a node: why, and grouped by the same reason.

Used by the overview, the badge in the menu, and the page and export below (`templates/pending.html`).
In: a `Source`. Out: `PendingPod`s and `PendingGroup`s, oldest first. The sentences are those of the decision, of kube-scheduler or of
the webhook; nothing is worded here a second time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from controller.dashboard.pacing import breath, paced
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query, ordered, page_slice
from controller.gangs import GangKey, GangState
from controller.reconcile.runtime import Mode
from controller.views.columns import Column, Columns, plain
from controller.views.explanation import Explanation
from controller.views.overview import Reservation
from hami_dra.api.core import Pod
from hami_dra.api.podstate import has_our_gate, is_probe, is_unschedulable, other_gates, scheduler_message
from hami_dra.api.served_pods import unserved_scheduler

Cause = Literal["invalid", "never", "refused", "waiting", "unbound", "gate", "scheduler", "bypassed", "unknown"]
"""Why a pod waits.

- `invalid`: the pod or its claims must be fixed. `waiting`: not decided yet.
- `never`: no node fits, even if all were empty. `refused`: no node fits now.
- `unbound`: its devices are allocated, and kube-scheduler has not bound it.
- `gate`: a scheduling gate of another component. `scheduler`: it belongs to another scheduler.
- `bypassed`: it asks for vendor resources, and the webhook did not convert it.
- `unknown`: it was not evaluated yet.
"""
Kind = Literal["invalid", "never", "refused", "waiting"]
KIND_OF: Final[Mapping[Cause, Kind]] = {
    "invalid": "invalid",
    "scheduler": "invalid",
    "bypassed": "invalid",
    "never": "never",
    "refused": "refused",
    "waiting": "waiting",
    "unbound": "waiting",
    "gate": "waiting",
    "unknown": "waiting",
}
"""What has to happen: the pod must be fixed, the cluster grow, others end, or nothing. In the order of the page."""
KINDS: Final[tuple[Kind, ...]] = tuple(dict.fromkeys(KIND_OF.values()))
_AMOUNTS: Final = frozenset({"memory", "cores", "slots", "devices", "whole devices"})
"""Kinds of `Reason`."""
_SETTLED: Final[dict[Cause, int]] = {"unknown": 1, "unbound": 2}
"""Causes that say less than others of why a gang waits, in this order."""
_OF_OUTCOME: Final[dict[str, Cause]] = {"error": "invalid", "refused": "refused", "waiting": "waiting"}


class PendingPod(Struct, frozen=True):
    key: str
    """`namespace/name`."""
    since: str
    """Creation time, RFC 3339; empty if unknown."""
    cause: Cause
    message: str
    """The sentence of the component that keeps it waiting; empty: there is none."""
    details: tuple[str, ...] = ()
    """Why some nodes are refused: plugin, object, figure."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Reason code and number of devices or nodes."""
    lacks_amount: bool = False
    """No node has as much as it asks for: asking for less, or more nodes, would help."""
    node: str = ""
    """Where its devices are allocated."""
    has_decision: bool = False
    gang: GangState | None = None
    reserved: Reservation | None = None
    """The devices that are kept for it as a member of its gang."""

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]


class PendingGroup(Struct, frozen=True):
    """Pods that wait for the same reason, or the waiting members of a gang; oldest first."""

    pods: tuple[PendingPod, ...]

    @property
    def representative(self) -> PendingPod:
        """The pod whose sentence and figures stand for all: of a gang, one that is in the others' way."""
        return min(self.pods, key=lambda pod: _SETTLED.get(pod.cause, 0))

    @property
    def kind(self) -> Kind:
        return KIND_OF[self.representative.cause]

    @property
    def oldest(self) -> PendingPod:
        return self.pods[0]

    @property
    def reserved(self) -> list[Reservation]:
        return [pod.reserved for pod in self.pods if pod.reserved is not None]

    @property
    def placed(self) -> int:
        """Number of members of the gang that have devices, running or not."""
        gang = self.oldest.gang
        return (gang.bound if gang is not None else 0) + len(self.reserved)

    @property
    def held_on(self) -> list[str]:
        """Nodes on which devices are kept for members, by name."""
        return sorted({each.node for each in self.reserved if each.node})

    @property
    def held_since(self) -> str:
        return min((each.since for each in self.reserved if each.since), default="")

    @property
    def held_until(self) -> str:
        return min((each.until for each in self.reserved if each.until), default="")


async def pending_pods(source: Source, text: str = "") -> list[PendingPod]:
    """Return the pods that wait, oldest first. `text`: only those whose `namespace/name` contains it."""
    gangs: dict[GangKey, GangState] = {}
    kept = {each.pod: each for each in reserved(source)}
    found = []
    await breath()
    async for pod in paced(_that_wait(source)):
        if text in pod.key:
            key = source.gang_key(pod)
            if key is not None and key not in gangs:  # once for each gang: it reads all members
                gangs[key] = source.gang(key)
            each = _waiting(source, pod, gangs[key] if key is not None else None)
            found.append(replace(each, reserved=kept[pod.key]) if pod.key in kept else each)
    await breath()
    return sorted(found, key=lambda each: (each.since, each.key))


def pending_count(source: Source) -> tuple[int, str]:
    """Return how many pods wait, and when the oldest was created, RFC 3339; empty: none waits."""
    since = [pod.metadata.creation_timestamp or "" for pod in _that_wait(source)]
    return len(since), min(since, default="")


def grouped(pods: Iterable[PendingPod]) -> list[PendingGroup]:
    """Return the pods by reason, in the order of the first pod of each. The members of a gang are one group.

    >>> one, two = (PendingPod(f"ns/{name}", "", "refused", f"no node fits {name}") for name in "ab")
    >>> [len(group.pods) for group in grouped([one, two])]
    [2]
    """
    found: dict[tuple[object, ...], list[PendingPod]] = {}
    for each in pods:
        if each.gang is not None:
            found.setdefault(each.gang.key, []).append(each)
            continue
        sentences = tuple(anonymous(text, each.key) for text in (each.message, *each.details))
        codes = frozenset(code for code, _ in each.reasons)
        found.setdefault((each.cause, sentences, codes), []).append(each)
    return [PendingGroup(tuple(members)) for members in found.values()]


def largest_first(groups: Iterable[PendingGroup]) -> list[PendingGroup]:
    """Return the groups by number of pods, equal ones in their order."""
    return sorted(groups, key=lambda group: -len(group.pods))


def pods_by_kind(groups: Iterable[PendingGroup]) -> dict[Kind, int]:
    """Return the number of pods of each kind, in the order of the page; kinds without pods are left out."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for group in groups:
        found[group.kind] += len(group.pods)
    return {kind: number for kind, number in found.items() if number}


def anonymous(text: str, key: str) -> str:
    """Return a sentence without the name of its pod, `namespace/name`, to tell equal reasons.

    >>> anonymous("pod team/train-0 waits for train-0", "team/train-0")
    'pod * waits for *'
    """
    return text.replace(key, "*").replace(key.partition("/")[2], "*")


def _that_wait(source: Source) -> Iterator[Pod]:
    return (pod for pod in source.pending_pods() if not is_probe(pod) and _concerns(source, pod))


def _concerns(source: Source, pod: Pod) -> bool:
    """Return whether hami-dra, or the lack of it, has to do with the pod."""
    if pod.spec.resource_claims or has_our_gate(pod) or source.unconverted(pod):
        return True
    return bool(other_gates(pod)) and source.is_legacy(pod)


def _waiting(source: Source, pod: Pod, gang: GangState | None) -> PendingPod:
    since = pod.metadata.creation_timestamp or ""
    gates = other_gates(pod)
    if not pod.spec.resource_claims:
        if message := source.unconverted(pod):
            return PendingPod(pod.key, since, "bypassed", message, gang=gang)
    elif source.state.mode is Mode.EXCLUSIVE and (
        unserved := unserved_scheduler(pod.spec.scheduler_name, source.scheduling.scheduler_names)
    ):
        return PendingPod(pod.key, since, "scheduler", unserved, gang=gang)
    if gates:
        return PendingPod(pod.key, since, "gate", ", ".join(gates), gang=gang)
    return _undecided(source, pod, since, gang)


def _undecided(source: Source, pod: Pod, since: str, gang: GangState | None) -> PendingPod:
    decision = source.decisions.of_pod(pod.key, brief=True)
    if decision is not None and decision.uid not in ("", pod.metadata.uid):
        decision = None  # of an earlier pod with this name
    if decision is None or decision.outcome == "placed":
        return _unbound(pod, since, gang, decision)
    return PendingPod(
        pod.key,
        since,
        "never" if decision.reason is not None and decision.reason.never else _OF_OUTCOME[decision.outcome],
        decision.message,
        decision.why,
        tuple(sorted(decision.reasons.items(), key=lambda item: (-item[1], item[0]))),
        lacks_amount=decision.reason is not None and decision.reason.kind in _AMOUNTS and not decision.reason.fix,
        has_decision=True,
        gang=gang,
    )


def _unbound(pod: Pod, since: str, gang: GangState | None, decision: Explanation | None) -> PendingPod:
    """Return a pod on which kube-scheduler has the last word."""
    message = scheduler_message(pod) if is_unschedulable(pod) else ""
    node = decision.node if decision is not None else ""
    cause: Cause = "unbound" if node or message else "unknown"
    return PendingPod(pod.key, since, cause, message, node=node, has_decision=decision is not None, gang=gang)


_GROUPS: Final[Columns[PendingGroup]] = (
    Column("", sort=lambda group: -len(group.pods)),  # what keeps most pods waiting comes first
    Column("pods", sort=lambda group: len(group.pods)),
    Column("age", sort=lambda group: group.oldest.since),
)
_COLUMNS: Final[Columns[PendingPod]] = (
    plain("namespace", lambda pod: pod.namespace),
    plain("pod", lambda pod: pod.name),
    plain("created", lambda pod: pod.since),
    plain("cause", lambda pod: pod.cause),
    plain("message", lambda pod: pod.message),
    plain("node", lambda pod: pod.node),
    plain("gang", lambda pod: pod.gang.key.name if pod.gang is not None else ""),
    plain("heldDevices", lambda pod: pod.reserved.devices if pod.reserved is not None else ()),
    plain("reasons", lambda pod: [f"{number} {code}" for code, number in pod.reasons]),
)


class PendingTable(PageTable[PendingPod]):
    """Pods by reason on the page, one by one in the export."""

    columns = _COLUMNS

    async def find(self, query: Query) -> list[PendingPod]:
        return await pending_pods(self._source, query.get("q", "").strip())

    async def context(self, query: Query) -> Context:
        kind = query.get("kind", "")
        groups = grouped(await self.find(query))
        shown = [group for group in groups if not kind or group.kind == kind]
        items, sort = await ordered(shown, _GROUPS, query)
        items.sort(key=lambda group: KINDS.index(group.kind))
        return {
            "leaf": page_slice(items, query.get("leaf", ""), self.on_leaf),
            "pods": sum(len(group.pods) for group in shown),
            "kinds": pods_by_kind(groups),
            "sees_all": self._source.namespaces is None,
            "asked": {"q": query.get("q", "").strip(), "kind": kind, **sort},
        }
