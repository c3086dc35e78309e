"""The decision on a gang, as explanations show it. Pure."""

from collections.abc import Mapping, Sequence

from controller.gangs import DomainVerdict, GangState, GangUnschedulable
from controller.reasons import Reason
from controller.views.explanation import GangDomain, GangExplanation, GangMember


def explained_gang(
    state: GangState,
    nodes: Mapping[str, str],
    *,
    domain: str = "",
    domains: Sequence[DomainVerdict] = (),
    message: str = "",
    reason: Reason | None = None,
) -> GangExplanation:
    """Return the gang with its members, by name. `nodes`: by key of a pod; `message`: why it is not placed."""
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
            for each in domains
            if each.name
        ),
    )


def refused_gang(state: GangState, refusal: GangUnschedulable, message: str = "") -> GangExplanation:
    """Return a gang that found no room. `message`: default that of the refusal."""
    return explained_gang(state, {}, domains=refusal.domains, message=message or refusal.message, reason=refusal.reason)
