"""The answers of `decide_unit`: a `UnitDecision`, or a `UnitRefusal` with its reason. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.cluster.pods.gang_key import GangKey
from controller.decide.answers import Decision, Unschedulable
from controller.decide.scheduling_request import SchedulingRequest
from controller.gangs.domains import Domain
from controller.gangs.unit import Unit
from controller.reasons.reason import Reason
from hami_dra.api.printable import counted

_NAMED: Final = 3
"""Domains that a message names."""


class DomainVerdict(Struct, frozen=True):
    """How one topology domain looked to a gang."""

    name: str
    """`<label>=<value>`; several labels are separated by commas. Empty: all nodes."""
    nodes: int
    """Number of nodes with these values."""
    fits: int
    """Upper bound of the members that fit at once, from columns; the number of members that were
    placed once the domain was tried.
    """
    left: int
    """Members like the hardest one that would still fit after the gang; negative: that many are lacking."""
    score: float
    """Sum of the node scores of its fitting nodes."""
    tried: bool = False
    """Whether the members were tried there."""
    problem: str = ""
    """Why the gang does not fit: `12 of 16 members fit, 4 too few`. Empty if it does."""


class UnitDecision(Struct, frozen=True):
    placed: tuple[tuple[SchedulingRequest, Decision], ...]
    """At least `least` of them, in the order of `Unit.members`; in that of the decision where a
    member fits only after others.
    """
    left: tuple[tuple[SchedulingRequest, Unschedulable], ...] = ()
    """Elastic members that found no room."""
    domain: str = ""
    """Name of the chosen domain; empty where the gang has no topology constraint."""
    domains: tuple[DomainVerdict, ...] = ()
    """The domains in the order of preference, at most `Options.report_nodes`."""
    steps: int = 0
    """Decisions about single members that were needed."""


class UnitRefusal(Struct, frozen=True):
    message: str
    """Of a gang: `3 of 4 members fit; ...`, with the domain and what it lacks."""
    refusal: Unschedulable
    """Of the member that found no room in the best attempt."""
    member: str
    """Key of that pod."""
    placeable: int
    """The most members that fitted at once."""
    domains: tuple[DomainVerdict, ...] = ()
    steps: int = 0
    reason: Reason | None = None
    """What the message says; None where it is an error."""

    @classmethod
    def of_elastic(cls, answer: UnitDecision) -> "UnitRefusal":
        """Return the refusal of a gang whose members are all elastic, and none of which found room."""
        first, refusal = answer.left[0]
        return cls(refusal.message, refusal, first.pod.key, 0, answer.domains, answer.steps, refusal.reason)

    def of_gang(self, key: GangKey) -> "UnitRefusal":
        """Return the refusal in words that name the gang, also for each of its members."""
        message, error = f"{key}: {self.message}", self.refusal.error
        refusal = dataclasses.replace(self.refusal, message=message, error=error and message, reason=self.reason)
        return replace(self, message=message, refusal=refusal)


def verdicts_of(
    domains: Sequence[Domain], tried: Mapping[str, int], request: Unit, most: int
) -> tuple[DomainVerdict, ...]:
    """Return how the first domains looked. `tried`: name → the most members that had a place there."""
    total = len(request.members)
    found = []
    for domain in domains[:most]:
        fits = min(tried.get(domain.name, domain.placeable), domain.placeable)
        problem = ""
        if fits < request.least:
            problem = f"has room for {fits} of {total} members, {request.least - fits} too few"
        found.append(
            DomainVerdict(
                domain.name,
                domain.nodes,
                fits,
                domain.left,
                domain.score,
                tried=domain.name in tried,
                problem=problem,
            )
        )
    return tuple(found)


def gang_reason(
    request: Unit,
    verdicts: Sequence[DomainVerdict],
    domains: int,
    placeable: int,
    closest: Unschedulable | None,
    *,
    lasting: Domain | None = None,
    outside: str = "",
) -> Reason:
    """Return how many members fit, and which domain lacks how much.

    `domains`: number of all domains; `closest`: the refusal of the member that came closest.
    `lasting`: the domain that could hold the most members with idle devices, where that is too few.
    `outside`: a node with a member that runs and is in no domain.
    """
    total, least = len(request.members), request.least
    must = f", {least} must" if least < total else ""
    required = [each for each in request.topology if each.required]
    keys = " and ".join(dict.fromkeys(each.key for each in required))
    if outside:
        asked = f"a member runs on node {outside}, which has no label {keys} any more; {required[0].source} requires it"
        return Reason("gang", asked, "no domain is left for the others", fix="Label the node again")
    if required and not domains:
        asked = f"no node has the label {keys}, which {required[0].source} requires"
        return Reason("gang", asked, never=True, fix="Correct the key, or label the nodes")
    head = f"{placeable} of {counted(total, 'member')} fit at once{must}"
    member = closest.message if closest is not None else ""
    alone = closest.reason if closest is not None else None
    if lasting is not None and not lasting.placeable and alone is not None and alone.never:
        return Reason("gang", head, f"one alone: {alone.asked}", never=True, fix=alone.fix).also(alone.best)
    if not required:
        if lasting is not None:
            best = f"even idle, the devices of all nodes are enough for {lasting.placeable}"
            return Reason("gang", head, best, never=True)
        return Reason("gang", head, f"the next one: {member}" if member else "")
    tie = " with the members that run already" if request.settled_nodes else ""
    reason = Reason("gang", f"{head} in one domain of {keys}{tie}, as {required[0].source} requires")
    reason = reason.also(*[f"{each.name} {each.problem or member}" for each in verdicts[:_NAMED]])
    if (more := domains - len(verdicts[:_NAMED])) > 0:
        reason = reason.also(f"and {more} more")
    if lasting is None:
        return reason
    idle = f"even idle, the devices of the largest ({lasting.name}) are enough for {lasting.placeable}"
    return replace(reason.also(idle), never=True)
