"""Output of a simulation: a document of stable structure, and separate notes. Pure.

    {"placements": [{"pod": "ns/name", "node": "n", "claims": [...], "score": {...}}],
     "unplaced": [{"pod": "ns/name", "reasons": {"Code": 3}, "message": "...", "error": "",
                   "reason": {"kind": "memory", "asked": "...", "best": "...", "never": true, ...}}]}

`reason` is what the message says, in parts (`decide.Reason`); an error has none.

    "gangs": [{"gang": "PodGroup ns/name", "minCount": 4, "members": ["ns/name"], "placed": 4, "domain": "",
               "message": ""}]

`gangs` is there if a pod is a member of one. Keys may be added, never removed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from controller.decide import Score, Unschedulable
from controller.gangs import GangState
from controller.preemption import PreemptionPlan
from controller.views.explanation import Explanation
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import ResourceClaim

Json = dict[str, Any]
_DIGITS: Final = 6
"""Decimal places of scores: enough to compare, few enough to read."""


class SimulationReport(Struct):
    placements: list[Json] = field(default_factory=list)
    """In the order of placement."""
    unplaced: list[Json] = field(default_factory=list)
    gangs: list[Json] = field(default_factory=list)
    """In the order of placement."""
    preemptions: list[Json] | None = None
    """In the order of placement; None: without preemption."""
    explanation: Explanation | None = None
    """Of the pod that the settings name, as it was decided in its turn. Not part of the document."""
    notes: list[str] = field(default_factory=list)
    """Messages for people: skipped, assumed or converted objects. Not part of the document."""
    notices: list[str] = field(default_factory=list)
    """What pods and workloads say without effect (`controller.webhook.notices`). Not part of the document."""

    def document(self) -> Json:
        gangs = {"gangs": self.gangs} if self.gangs else {}
        preemptions = {"preemptions": self.preemptions} if self.preemptions is not None else {}
        return {"placements": self.placements, "unplaced": self.unplaced, **gangs, **preemptions}

    def placed(self, pod: str, node: str, claims: Sequence[Json], score: Score) -> None:
        devices = [{"device": device, "score": round(value, _DIGITS)} for device, value in score.devices]
        score_json = {"node": round(score.node, _DIGITS), "devices": devices}
        self.placements.append({"pod": pod, "node": node, "claims": list(claims), "score": score_json})

    def refused(self, pod: str, refusal: Unschedulable) -> None:
        found: Json = {"pod": pod, "reasons": dict(refusal.reasons), "message": refusal.message, "error": refusal.error}
        self.unplaced.append(found | ({"reason": msgspec.to_builtins(refusal.reason)} if refusal.reason else {}))

    def preempted(self, plan: PreemptionPlan) -> None:
        """Note the pods of a unit; the first of them with the victims, and the terminating pods that they wait for."""
        victims, waits_for = [pod.key for pod in plan.victims], [pod.key for pod in plan.releasing]
        for number, (request, decision) in enumerate(plan.placed):
            entry: Json = {"pod": request.pod.key, "node": decision.node, "victims": [] if number else victims}
            if not number:
                entry |= {"waitsFor": waits_for, "violations": plan.violations, "isCut": plan.is_cut}
                entry |= {"reclaims": msgspec.to_builtins(plan.reclaims)} if plan.reclaims else {}
            self.preemptions = [*(self.preemptions or ()), entry]

    def gang(self, state: GangState, *, placed: int, domain: str, message: str) -> None:
        """`placed`: number of members that this simulation placed."""
        self.gangs.append(
            {
                "gang": str(state.key),
                "minCount": state.min_count,
                "members": [pod.key for pod in state.members],
                "placed": placed,
                "domain": domain,
                "message": message,
            }
        )


def claim_entry(pod_claim_name: str, claim: ResourceClaim, allocation: Mapping[str, Any]) -> Json:
    """Return the entry of a claim. `allocation`: status.allocation as JSON, computed or from the input."""
    return {
        "name": claim.metadata.name,
        "namespace": claim.metadata.namespace,
        "podClaimName": pod_claim_name,
        "allocation": _canonical(allocation),
    }


def devices_of(placement: Json) -> tuple[str, ...]:
    """Return the ids of the devices of an entry of `placements`."""
    results = [result for claim in placement["claims"] for result in claim["allocation"]["devices"]["results"]]
    return tuple(f"{each['driver']}/{each['pool']}/{each['device']}" for each in results)


def _canonical(allocation: Mapping[str, Any]) -> Json:
    """Return the allocation with `devices.results`, even if empty, and canonical quantities."""
    devices = allocation.get("devices") or {}
    results = [dict(result) for result in devices.get("results") or ()]
    for result in results:
        if (consumed := result.get("consumedCapacity")) is not None:
            result["consumedCapacity"] = {name: _quantity(amount) for name, amount in consumed.items()}
    return {**allocation, "devices": {**devices, "results": results}}


def _quantity(amount: Any) -> str:
    try:
        return str(Quantity.parse(amount))
    except InvalidQuantity:
        return str(amount)
