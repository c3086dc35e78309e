"""Content of the pages about pods: with claims, pending, claims, decisions, one explanation.

Values only; see `cardpages`. The reason why a pod waits comes from the stored decision, else from
its PodScheduled condition, else from its scheduling gates.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from controller.dashboard.cardpages import Context, NoSuchThing, Query
from controller.dashboard.pacing import paced
from controller.dashboard.paging import page_slice
from controller.dashboard.pending import KINDS, PendingGroup, grouped, pending_pods, pods_by_kind
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import ordered
from controller.insight.explain import Explanation, NodeExplanation
from controller.insight.overview import PlacedPod, Reservation, placed_pod
from controller.scheduling.gangs import GangKey
from controller.scheduling.inventory import DeviceId, Holding, holdings_of, used_of
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys, claim_refs
from hami_dra.api.podstate import is_finished, is_probe
from hami_dra.api.resource import ResourceClaim

ON_LEAF: Final = 50
_POLICIES: Final = (names.NODE_POLICY, names.DEVICE_POLICY)
_PENDING_COLUMNS: Final[Mapping[str, Callable[[PendingGroup], Any]]] = {
    "": lambda group: -len(group.pods),  # what keeps most pods waiting comes first
    "pods": lambda group: len(group.pods),
    "age": lambda group: group.oldest.since,
}
_CLAIM_COLUMNS: Final[Mapping[str, Callable[[ResourceClaim], Any]]] = {
    "claim": lambda claim: claim.key,
    "age": lambda claim: (claim.metadata.creation_timestamp or "", claim.key),
    "state": lambda claim: (claim.status.allocation is None, not claim.status.reserved_for, claim.key),
}
_DECISION_COLUMNS: Final[Mapping[str, Callable[[Explanation], Any]]] = {
    "": lambda _: 0,  # newest first, as the log has them
    "when": lambda decision: decision.at,
    "pod": lambda decision: decision.pod,
    "outcome": lambda decision: (decision.outcome, decision.pod),
    "node": lambda decision: (decision.node, decision.pod),
}
MOST_DECISIONS: Final = 1_000


class PodRow(Struct, frozen=True):
    placed: PlacedPod
    namespace: str
    name: str
    created: str
    """RFC 3339; empty if unknown."""
    phase: str
    claims: tuple[str, ...]
    """`namespace/name`; empty entries are claims that do not exist yet."""
    memory: int
    """Bytes allocated on all its devices."""
    cores: int
    cores_total: int
    """Of all its devices."""
    policy: str
    """Node and device policy that its annotations ask for; empty: the controller's defaults."""
    gang: GangKey | None = None
    reserved: Reservation | None = None
    """What is held for it while it does not run yet."""


class ClaimRow(Struct, frozen=True):
    key: str
    namespace: str
    name: str
    node: str
    pods: tuple[str, ...]
    """`namespace/name` of the pods it is reserved for, else of those that refer to it."""
    devices: tuple[str, ...]
    """`driver/pool/device`"""
    is_allocated: bool
    is_reserved: bool
    created: str = ""


class PodPages:
    def __init__(self, source: Source) -> None:
        self._source = source

    async def pods(self, query: Query) -> Context:
        found, asked = await self._pods(query)
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        kept = {each.pod: each for each in reserved(self._source)}
        return {
            "leaf": shown,
            "rows": [replace(self._row(pod), reserved=kept.get(pod.key)) for pod in shown.items],
            "asked": asked,
            "defaults": f"{self._source.policies.node_policy} / {self._source.policies.device_policy.name}",
        }

    async def exported_pods(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the rows of the pods page without pagination."""
        async for pod in paced((await self._pods(query))[0]):
            row = self._row(pod)
            yield {
                "namespace": row.namespace,
                "pod": row.name,
                "created": row.created,
                "phase": row.phase,
                "node": row.placed.node,
                "devices": row.placed.devices,
                "memoryBytes": row.memory,
                "cores": row.cores,
                "policy": row.policy,
                "gang": row.gang.name if row.gang is not None else "",
            }

    async def exported_pending(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the pods of the pending page."""
        async for each in paced(await pending_pods(self._source, query.get("q", "").strip())):
            yield {
                "namespace": each.namespace,
                "pod": each.name,
                "created": each.since,
                "cause": each.cause,
                "message": each.message,
                "node": each.node,
                "gang": each.gang.key.name if each.gang is not None else "",
                "heldDevices": each.reserved.devices if each.reserved is not None else (),
                "reasons": [f"{number} {code}" for code, number in each.reasons],
            }

    async def exported_claims(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the rows of the claims page without pagination."""
        async for claim in paced((await self._claims(query))[0]):
            row = self._claim(claim)
            yield {
                "namespace": row.namespace,
                "claim": row.name,
                "created": row.created,
                "allocated": row.is_allocated,
                "reserved": row.is_reserved,
                "node": row.node,
                "devices": row.devices,
                "pods": row.pods,
            }

    async def _pods(self, query: Query) -> tuple[list[Pod], dict[str, str]]:
        """Return the pods that the query asks for, in its order, and what was asked."""
        text, state = query.get("q", "").strip(), query.get("state", "")
        pods = [
            pod
            async for pod in paced(self._source.pods())
            if pod.spec.resource_claims
            and not is_finished(pod)
            and not is_probe(pod)
            and (not text or text in pod.key or text == pod.spec.node_name)
            and (not state or state == ("placed" if pod.spec.node_name else "waiting"))
        ]
        found, sort = await ordered(pods, self._pod_columns, query)
        return found, {"q": text, "state": state, **sort}

    @property
    def _pod_columns(self) -> Mapping[str, Callable[[Pod], Any]]:
        return {
            "pod": lambda pod: pod.key,
            "age": lambda pod: (pod.metadata.creation_timestamp or "", pod.key),
            "phase": lambda pod: (pod.status.phase, pod.key),
            "node": lambda pod: (pod.spec.node_name, pod.key),
            "memory": lambda pod: self._amounts(pod)[0],
            "cores": lambda pod: self._amounts(pod)[1],
        }

    async def pending(self, query: Query) -> Context:
        text, kind = query.get("q", "").strip(), query.get("kind", "")
        groups = grouped(await pending_pods(self._source, text))
        shown = [group for group in groups if not kind or group.kind == kind]
        found, sort = await ordered(shown, _PENDING_COLUMNS, query)
        found.sort(key=lambda group: KINDS.index(group.kind))
        return {
            "leaf": page_slice(found, query.get("leaf", ""), ON_LEAF),
            "pods": sum(len(group.pods) for group in shown),
            "kinds": pods_by_kind(groups),
            "sees_all": self._source.namespaces is None,
            "asked": {"q": text, "kind": kind, **sort},
        }

    async def _claims(self, query: Query) -> tuple[list[ResourceClaim], dict[str, str]]:
        """Return the claims that the query asks for, in its order, and what was asked."""
        text, state = query.get("q", "").strip(), query.get("state", "")
        claims = [
            claim
            async for claim in paced(self._source.claims())
            if (not text or text in claim.key)
            and (not state or state == ("allocated" if claim.status.allocation is not None else "waiting"))
        ]
        found, sort = await ordered(claims, _CLAIM_COLUMNS, query)
        return found, {"q": text, "state": state, **sort}

    async def claims(self, query: Query) -> Context:
        found, asked = await self._claims(query)
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        return {
            "leaf": shown,
            "rows": [self._claim(claim) for claim in shown.items],
            "asked": asked,
        }

    async def decisions(self, query: Query) -> Context:
        text, outcome = query.get("q", "").strip(), query.get("outcome", "")
        found = [
            each
            for each in self._source.decisions.latest(MOST_DECISIONS)
            if text in each.pod and outcome in ("", each.outcome)
        ]
        found, sort = await ordered(found, _DECISION_COLUMNS, query)
        return {
            "leaf": page_slice(found, query.get("leaf", ""), ON_LEAF),
            "asked": {"q": text, "outcome": outcome, **sort},
            "outcomes": ("placed", "refused", "error", "waiting"),
            "is_leader": self._source.state.is_leader,
        }

    def decision(self, query: Query) -> Context:
        key, claim = query.get("pod", ""), query.get("claim", "")
        found = self._source.decisions.of_claim(claim) if claim else self._source.decisions.of_pod(key)
        if found is None:
            raise NoSuchThing(claim or key)
        pod = self._source.pod(found.pod)
        return {
            "decision": found,
            "pod": self._row(pod) if pod is not None and pod.metadata.uid == found.uid else None,
            "best": _best(found),
            "fitting": [node for node in found.nodes if node.fits],
            "unfit": alike(node for node in found.nodes if not node.fits),
        }

    # --- rows -------------------------------------------------------------------------------------

    def _row(self, pod: Pod) -> PodRow:
        missing = sum(not ref.key for ref in claim_refs(pod))
        memory, cores = self._amounts(pod)
        totals = self._source.inventory.devices.cores_total
        annotations = pod.metadata.annotations
        return PodRow(
            placed_pod(pod, self._source.claim),
            pod.metadata.namespace,
            pod.metadata.name,
            pod.metadata.creation_timestamp or "",
            pod.status.phase or "Pending",
            (*claim_keys(pod), *[""] * missing),
            memory,
            cores,
            sum(int(totals[row]) for row, _ in self._held(pod)),
            " / ".join(value for name in _POLICIES if (value := annotations.get(name))),
            self._source.gang_key(pod),
        )

    def _amounts(self, pod: Pod) -> tuple[int, int]:
        """Return memory in bytes and cores that its claims hold on all their devices."""
        devices = self._source.inventory.devices
        memory = cores = 0
        for row, holding in self._held(pod):
            used = used_of(devices.device(row), 1, holding.consumed or {}, exclusive=holding.consumed is None)
            cores, memory = cores + used[1], memory + used[2]
        return memory, cores

    def _held(self, pod: Pod) -> Iterator[tuple[int, Holding]]:
        """Yield the row of each published device of which its claims hold something, and what."""
        devices = self._source.inventory.devices
        for key in claim_keys(pod):
            claim = self._source.claim(key)
            for holding in holdings_of(claim.status.allocation) if claim is not None else ():
                if (row := devices.row_of(holding.device)) >= 0:
                    yield row, holding

    def _claim(self, claim: ResourceClaim) -> ClaimRow:
        users = [
            f"{claim.metadata.namespace}/{each.name}" for each in claim.status.reserved_for if each.resource == "pods"
        ]
        pods = users or [pod.key for pod in self._source.pods_of(claim.key)]
        return ClaimRow(
            claim.key,
            claim.metadata.namespace,
            claim.metadata.name,
            self._node_of(claim),
            tuple(sorted(pods)),
            tuple(result.device_id for result in claim.results),
            claim.status.allocation is not None,
            bool(users),
            claim.metadata.creation_timestamp or "",
        )

    def _node_of(self, claim: ResourceClaim) -> str:
        inventory = self._source.inventory
        for result in claim.results:
            row = inventory.devices.row_of(DeviceId(result.driver, result.pool, result.device))
            place = int(inventory.devices.node[row]) if row >= 0 else -1
            if place >= 0:
                return inventory.nodes.names[place]
        return ""


def alike(nodes: Iterable[NodeExplanation]) -> list[list[NodeExplanation]]:
    """Return the nodes by what they are refused for, in the order of the first of each."""
    found: dict[object, list[NodeExplanation]] = {}
    for node in nodes:
        found.setdefault((*sorted(node.reasons.items()), node.text.replace(node.node, "*")), []).append(node)
    return list(found.values())


def _best(explanation: Explanation) -> float:
    """Return the largest sum of terms, the scale of the bars."""
    return max((sum(abs(term.value) for term in node.terms) for node in explanation.nodes), default=0.0)
