"""What is said of the domains of a gang, and why it found no place. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from controller.decide.answers import Unschedulable
from controller.decide.refusal_reason import RefusalReason
from controller.gangs.domains import Domain
from controller.gangs.gang_answers import DomainVerdict
from controller.gangs.gang_request import GangRequest
from hami_dra.api.printable import counted

_NAMED: Final = 3
"""Domains that a message names."""


def verdicts_of(
    domains: Sequence[Domain], tried: Mapping[str, int], request: GangRequest, most: int
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
    request: GangRequest,
    verdicts: Sequence[DomainVerdict],
    domains: int,
    placeable: int,
    closest: Unschedulable | None,
    *,
    lasting: Domain | None = None,
    outside: str = "",
) -> RefusalReason:
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
        return RefusalReason("gang", asked, "no domain is left for the others", fix="Label the node again")
    if required and not domains:
        asked = f"no node has the label {keys}, which {required[0].source} requires"
        return RefusalReason("gang", asked, never=True, fix="Correct the key, or label the nodes")
    head = f"{placeable} of {counted(total, 'member')} fit at once{must}"
    never = lasting is not None
    member = closest.message if closest is not None else ""
    of_member = closest.reason if closest is not None else None
    if lasting is not None and not lasting.placeable and of_member is not None and of_member.never:
        best = "; ".join(filter(None, (f"one alone: {of_member.asked}", of_member.best)))
        return RefusalReason("gang", head, best, never=True, fix=of_member.fix)
    if not required:
        if lasting is not None:
            best = f"even idle, the devices of all nodes are enough for {lasting.placeable}"
        else:
            best = f"the next one: {member}" if member else ""
        return RefusalReason("gang", head, best, never=never)
    named = [f"{each.name} {each.problem or member}" for each in verdicts[:_NAMED]]
    best = "; ".join([*named, *([f"and {domains - len(named)} more"] if domains > len(named) else [])])
    tie = " with the members that run already" if request.settled_nodes else ""
    asked = f"{head} in one domain of {keys}{tie}, as {required[0].source} requires"
    if lasting is not None:
        best += f"; even idle, the devices of the largest ({lasting.name}) are enough for {lasting.placeable}"
    return RefusalReason("gang", asked, best, never=never)
