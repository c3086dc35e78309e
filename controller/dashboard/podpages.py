"""Content of the pages about pods: with claims, pending, claims, decisions, one explanation.

Values only; see `cardpages`. The reason why a pod waits comes from the stored decision, else from
its PodScheduled condition, else from its scheduling gates.
"""

from dataclasses import dataclass
from typing import Final

from controller.dashboard.cardpages import Context, NoSuchThing, Query
from controller.dashboard.paging import page_slice
from controller.dashboard.source import Source
from controller.insight.explain import Explanation
from controller.insight.overview import PlacedPod, placed_pod
from controller.scheduling.gangs import GangState
from controller.scheduling.inventory import DeviceId
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys, claim_refs
from hami_dra.api.podstate import is_finished, is_pending, is_probe, other_gates, scheduled_condition
from hami_dra.api.resource import ResourceClaim

ON_LEAF: Final = 50
MOST_DECISIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class PodRow:
    placed: PlacedPod
    namespace: str
    name: str
    phase: str
    claims: tuple[str, ...]
    """`namespace/name`; empty entries are claims that do not exist yet."""


@dataclass(frozen=True, slots=True)
class PendingRow:
    pod: PodRow
    since: str
    reasons: dict[str, int]
    message: str
    """The reason as the deciding component states it."""
    details: tuple[str, ...]
    """Why some nodes are refused: plugin, object, figure."""
    says: str
    """`decision`, `scheduler`, `gate`, `nobody`."""
    has_decision: bool
    gang: GangState | None = None
    """The gang that it waits with."""


@dataclass(frozen=True, slots=True)
class ClaimRow:
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


class PodPages:
    def __init__(self, source: Source) -> None:
        self._source = source

    def pods(self, query: Query) -> Context:
        text, state = query.get("q", "").strip(), query.get("state", "")
        found = [
            pod
            for pod in self._source.pods()
            if pod.spec.resource_claims
            and not is_finished(pod)
            and not is_probe(pod)
            and (text in pod.key or text == pod.spec.node_name)
            and (not state or state == ("placed" if pod.spec.node_name else "waiting"))
        ]
        found.sort(key=lambda pod: pod.key)
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        return {
            "leaf": shown,
            "rows": [self._row(pod) for pod in shown.items],
            "asked": {"q": text, "state": state},
        }

    def pending(self, query: Query) -> Context:
        text = query.get("q", "").strip()
        found = [
            pod
            for pod in self._source.pods()
            if pod.spec.resource_claims and is_pending(pod) and not is_probe(pod) and text in pod.key
        ]
        found.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        return {"leaf": shown, "rows": [self._pending(pod) for pod in shown.items], "asked": {"q": text}}

    def claims(self, query: Query) -> Context:
        text, state = query.get("q", "").strip(), query.get("state", "")
        found = [
            claim
            for claim in self._source.claims()
            if text in claim.key
            and (not state or state == ("allocated" if claim.status.allocation is not None else "waiting"))
        ]
        found.sort(key=lambda claim: claim.key)
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        return {
            "leaf": shown,
            "rows": [self._claim(claim) for claim in shown.items],
            "asked": {"q": text, "state": state},
        }

    def decisions(self, query: Query) -> Context:
        text, outcome = query.get("q", "").strip(), query.get("outcome", "")
        found = [
            each
            for each in self._source.decisions.latest(MOST_DECISIONS)
            if text in each.pod and outcome in ("", each.outcome)
        ]
        return {
            "leaf": page_slice(found, query.get("leaf", ""), ON_LEAF),
            "asked": {"q": text, "outcome": outcome},
            "outcomes": ("placed", "refused", "error", "waiting"),
            "is_leader": self._source.is_leader,
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
        }

    # --- rows -------------------------------------------------------------------------------------

    def _row(self, pod: Pod) -> PodRow:
        missing = sum(not ref.key for ref in claim_refs(pod))
        return PodRow(
            placed_pod(pod, self._source.claim),
            pod.metadata.namespace,
            pod.metadata.name,
            pod.status.phase or "Pending",
            (*claim_keys(pod), *[""] * missing),
        )

    def _pending(self, pod: Pod) -> PendingRow:
        decision = self._source.decisions.of_pod(pod.key)
        if decision is not None and decision.uid not in ("", pod.metadata.uid):
            decision = None  # of an earlier pod with this name
        condition = scheduled_condition(pod)
        gates = other_gates(pod)
        reasons: dict[str, int] = {}
        details: tuple[str, ...] = ()
        if gates:
            message, says = ", ".join(gates), "gate"
        elif decision is not None:
            message, says, reasons = decision.message, "decision", dict(decision.reasons)
            details = decision.why
        elif condition is not None and condition.message:
            message, says = condition.message, "scheduler"
        else:
            message, says = "", "nobody"
        since = pod.metadata.creation_timestamp or ""
        gang = self._source.gang(pod)
        return PendingRow(self._row(pod), since, reasons, message, details, says, decision is not None, gang)

    def _claim(self, claim: ResourceClaim) -> ClaimRow:
        reserved = [
            f"{claim.metadata.namespace}/{each.name}" for each in claim.status.reserved_for if each.resource == "pods"
        ]
        pods = reserved or [pod.key for pod in self._source.pods_of(claim.key)]
        return ClaimRow(
            claim.key,
            claim.metadata.namespace,
            claim.metadata.name,
            self._node_of(claim),
            tuple(sorted(pods)),
            tuple(result.device_id for result in claim.results),
            claim.status.allocation is not None,
            bool(reserved),
        )

    def _node_of(self, claim: ResourceClaim) -> str:
        inventory = self._source.inventory
        for result in claim.results:
            row = inventory.devices.row_of(DeviceId(result.driver, result.pool, result.device))
            place = int(inventory.devices.node[row]) if row >= 0 else -1
            if place >= 0:
                return inventory.nodes.names[place]
        return ""


def _best(explanation: Explanation) -> float:
    """Return the largest sum of terms, the scale of the bars."""
    return max((sum(abs(term.value) for term in node.terms) for node in explanation.nodes), default=0.0)
