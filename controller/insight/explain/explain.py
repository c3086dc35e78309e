"""`explain`: every node and every card of one decision, computed on the present state.

Called by `hami-dra explain` and by the log at levels 4 and 5. In: the input of `decide`. Out: an
`Explanation`. Pure.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from controller.decide import Options, SchedulingRequest, decide
from controller.gangs import GangState, UnitDecision, UnitRefusal
from controller.insight.explain.render import explanation_of
from controller.insight.explain.snapshot import take
from controller.inventory import Inventory, owed
from controller.preemption import NoPlan, PreemptionPlan
from controller.views.explanation import Explanation, GangDomain, GangExplanation, GangMember
from hami_dra.api.core import Pod
from hami_dra.api.printable import counted, listed

MOST_NODES: Final = 1_000
_NAMED: Final = 5
"""Pods that a note names."""


def explain(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options, *, most_nodes: int = MOST_NODES
) -> Explanation:
    """Return the explanation of one decision. Of larger clusters it has the best `most_nodes` nodes."""
    answer = decide(inventory, scheduling_request, options)
    return explanation_of(take(inventory, scheduling_request, options, answer, most=most_nodes))


def of_unmanaged(found: Explanation, scheduler: str) -> Explanation:
    """Return the explanation of a pod without devices of hami-dra: another scheduler's choice has no scores."""
    if found.outcome == "error" or any(each.ours for each in found.requests):
        return found
    message = f"{scheduler} schedules it; see kubectl describe pod {found.pod.partition('/')[2]} -n {found.pod.partition('/')[0]}"
    if found.outcome == "refused":
        message = f"{found.message}\n{message}"
    return msgspec.structs.replace(
        found,
        outcome="unmanaged",
        node="",
        message=message,
        reasons={},
        policies=(),
        nodes=(),
        runner_up=None,
        notes=(),
    )


def with_gang(found: Explanation, gang: GangExplanation | None) -> Explanation:
    """Return the explanation of a gang's member: it is not placed where the gang is not."""
    if gang is None or gang.fits:
        return msgspec.structs.replace(found, gang=gang)
    nodes = tuple(msgspec.structs.replace(node, chosen=False) for node in found.nodes)
    return msgspec.structs.replace(
        found,
        gang=gang,
        outcome="refused",
        node="",
        message=gang.message,
        reason=gang.reason,
        nodes=nodes,
        chosen=(),
        runner_up=None,
        notes=(*found.notes, "nodes and devices are shown as if this member were placed alone"),
    )


def with_plan(found: Explanation, plan: PreemptionPlan | NoPlan) -> Explanation:
    """Add the victims of a preemption plan to the explanation of a refused pod."""
    if isinstance(plan, NoPlan):
        return found
    where = f"on {plan.nodes[0]}" if len(plan.nodes) == 1 else f"on {counted(len(plan.nodes), 'node')}"
    if plan.victims:
        back = owed(found.pod.partition("/")[0], plan.reclaims)
        why = f" to take back what its namespace is owed: {back}" if back else ""
        lower = "" if back else " of lower priority"
        note = f"with preemption it would fit {where}: {_named(plan.victims)}{lower} would be evicted{why}"
    else:
        note = f"it fits {where} as soon as {_named(plan.releasing)} that already terminate are gone"
    return msgspec.structs.replace(found, notes=(*found.notes, note))


def _named(pods: Sequence[Pod]) -> str:
    return f"{counted(len(pods), 'pod')} ({listed([pod.key for pod in pods], _NAMED)})"


def explained_gang(state: GangState, answer: UnitDecision | UnitRefusal) -> GangExplanation:
    """Return the gang with its members, by name."""
    nodes, domain, message, reason = {}, "", "", None
    if isinstance(answer, UnitDecision):
        nodes, domain = {request.pod.key: decision.node for request, decision in answer.placed}, answer.domain
    else:
        message, reason = answer.message, answer.reason
    return GangExplanation(
        gang=str(state.key),
        min_count=state.min_count,
        succeeded=state.succeeded,
        members=tuple(
            GangMember(pod.key, pod.spec.node_name or nodes.get(pod.key, ""), runs=bool(pod.spec.node_name))
            for pod in sorted(state.members, key=lambda pod: pod.key)
        ),
        fits=not message,
        message=message,
        reason=reason,
        domains=tuple(
            GangDomain(each.name, each.nodes, each.fits, each.left, each.score, each.name == domain, each.problem)
            for each in answer.domains
            if each.name
        ),
    )
