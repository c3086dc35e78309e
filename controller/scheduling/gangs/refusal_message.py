"""What is said of the domains of a gang, and why it found no place. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from controller.scheduling.gangs.domains import Domain
from controller.scheduling.gangs.gang_answers import DomainVerdict
from controller.scheduling.gangs.gang_request import GangRequest

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


def refusal_message(
    request: GangRequest,
    verdicts: Sequence[DomainVerdict],
    domains: int,
    placeable: int,
    reason: str,
    *,
    lasting: Domain | None = None,
) -> str:
    """Return one sentence: how many members fit, and which domain lacks how much.

    `domains`: number of all domains; `reason`: why the member that came closest found no room.
    `lasting`: the domain that could hold the most members with idle devices, where that is too few.
    """
    total, least = len(request.members), request.least
    must = f", {least} must" if least < total else ""
    required = [each for each in request.topology if each.required]
    keys = " and ".join(dict.fromkeys(each.key for each in required))
    if required and not domains:
        return f"no node has the label {keys}, which {required[0].source} requires; correct the key, or label the nodes"
    head = f"{placeable} of {total} members fit at once{must}"
    if not required:
        if lasting is not None:
            return f"{head}; even idle, the devices of all nodes are enough for {lasting.placeable}, so it never will"
        return f"{head}; the next one: {reason}" if reason else head
    named = [f"{each.name} {each.problem or reason}" for each in verdicts[:_NAMED]]
    more = f"; and {domains - len(named)} more" if domains > len(named) else ""
    tie = " with the members that run already" if request.settled_nodes else ""
    text = f"{head} in one domain of {keys}{tie}, as {required[0].source} requires: {'; '.join(named)}{more}"
    if lasting is not None:
        text += f"; even idle, the devices of the largest ({lasting.name}) are enough for {lasting.placeable}, so it never will"
    return text
