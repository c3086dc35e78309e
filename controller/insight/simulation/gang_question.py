"""Decides on the gang of the pod that a question is about. Pure."""

from collections.abc import Iterable, Sequence

from controller.insight.explain import GangExplanation, explained_gang, refused_gang
from controller.insight.simulation.placing import Placing, WaitingPod
from controller.insight.simulation.view import SimulatedCluster
from controller.scheduling.decide import Options, Unfinished
from controller.scheduling.gangs import GangDecision, GangState, GangUnschedulable, decide_gang


def decide_together(
    placing: Placing, view: SimulatedCluster, options: Options, pod: WaitingPod, others: Sequence[WaitingPod]
) -> tuple[GangExplanation | None, str]:
    """Return the decision on the pod's gang, or None; and why the gang cannot be decided on.

    `others`: all other waiting pods. Where the gang fits, its other members count at their places
    afterwards.
    """
    # in the order of their creation, as the controller meets them: messages name the first at fault
    for each in sorted((pod, *others), key=lambda each: (each.pod.metadata.creation_timestamp or "", each.pod.key)):
        view.gangs.pod_changed(None, each.pod)
    key = view.gangs.of(pod.pod)
    if key is None:
        return None, ""
    state = view.gangs.state(key)
    answer = decided_gang(placing, view, options, state, (pod, *others))
    if isinstance(answer, str):
        return explained_gang(state, {}, message=answer), answer
    if not isinstance(answer, GangDecision):
        message = f"{state.key}: {answer.message}"
        return refused_gang(state, answer, message), ""
    nodes = {member.pod.key: decision.node for member, decision in answer.placed}
    for member, decision in answer.placed:
        if member.pod.key != pod.pod.key:
            view.inventory.assume_pod(member.pod, decision.node)
            for entry in decision.allocations:
                view.inventory.assume(entry.claim.metadata.uid, entry.allocation)
    return explained_gang(state, nodes, domain=answer.domain, domains=answer.domains), ""


def decided_gang(
    placing: Placing, view: SimulatedCluster, options: Options, state: GangState, waiting: Iterable[WaitingPod]
) -> GangDecision | GangUnschedulable | str:
    """Return the decision on the gang's members among the waiting pods, or why there is none."""
    members = [each for each in waiting if view.gangs.of(each.pod) == state.key]
    request, _ = placing.gang_request(state, members)
    if isinstance(request, str):
        return request
    answer = decide_gang(view.inventory, request, options)
    assert not isinstance(answer, Unfinished), "a heartbeat ends no search"
    return answer
