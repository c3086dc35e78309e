"""Renders the snapshot of a decision as an explanation: scores split into terms, figures as text.

Called on demand: by `explain`, and by the controller's decision log for a stored decision. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np

from controller.allocation import NOT_OF_CLASS, ResolvedRequest
from controller.cluster.incremental import node_terms
from controller.decide import Decision, Unschedulable, listing_annotations
from controller.insight.explain import wording
from controller.insight.explain.snapshot import DecisionSnapshot, NodeSnapshot, RequestSnapshot
from controller.inventory import UNNUMBERED, Device, DeviceId
from controller.reasons import english, meaning_of
from controller.scoring import device_terms
from controller.views.explanation import CardExplanation, ChosenDevice, Explanation, NodeExplanation, Term
from hami_dra.api.printable import counted
from hami_dra.vendors.device_codes import CODES
from hami_dra.vendors.protocol import CardRequest, Cards

_BESIDE = "fits on its own, but not together with the pod's other devices"
_USED = "used"


def explanation_of(picture: DecisionSnapshot, at: datetime | None = None, *, brief: bool = False) -> Explanation:
    """Return a snapshot's explanation. `at`: when, None: now. `brief`: without nodes and cards."""
    answer = picture.answer
    decision = answer if isinstance(answer, Decision) else None
    outcome = "placed" if decision else "error" if isinstance(answer, Unschedulable) and answer.error else "refused"
    return Explanation(
        pod=picture.pod,
        uid=picture.uid,
        at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else "",
        outcome=outcome,  # type: ignore[arg-type] # one of the literals
        node=decision.node if decision else "",
        message=_message(answer),
        reason=answer.reason if isinstance(answer, Unschedulable) else None,
        reasons=dict(picture.reasons),
        why=_why(answer),
        policies=wording.policies_used(picture.policies, picture.claims, first_fit=picture.first_fit),
        requests=tuple(wording.asked(seen.view, ours=seen.ours) for seen in picture.seen),
        nodes=() if brief else tuple(_node(picture, place) for place in picture.places),
        chosen=tuple(_chosen(picture)),
        runner_up=picture.runner_up,
        fitting=decision.fitting_count if decision else 0,
        unfit=decision.unfit_count if decision else picture.left_out + len(picture.places),
        nodes_left_out=picture.left_out + (len(picture.places) if brief else 0),
        notes=tuple(_notes(picture)),
    )


def _message(answer: Decision | Unschedulable) -> str:
    if isinstance(answer, Unschedulable):
        return answer.error or answer.message
    fits = answer.fitting_count
    best = f"{answer.node} is {f'the best of {fits} nodes that fit' if fits > 1 else 'the only node that fits'}"
    if not answer.unfit_count:
        return best
    return f"{best}; {counted(answer.unfit_count, 'other')} {'does' if answer.unfit_count == 1 else 'do'} not"


def _why(answer: Decision | Unschedulable) -> tuple[str, ...]:
    if isinstance(answer, Unschedulable):
        return tuple(each for each in answer.examples.values() if each not in answer.message)
    return ()


def _notes(picture: DecisionSnapshot) -> Iterator[str]:
    answer = picture.answer
    yield from _why(answer)
    if picture.first_fit:
        yield "first-fit: takes devices in the order in which drivers list them, without scores"
    if not picture.places:
        yield "no details of this decision were kept"
    elif picture.left_out:
        yield f"{counted(picture.left_out, 'node')} {'is' if picture.left_out == 1 else 'are'} not shown"
    if any(picture.policies.for_claim(claim).follows_node for claim in picture.claims):
        yield f"devices are chosen by the node policy {picture.policies.node_policy}, not by their score"


def _chosen(picture: DecisionSnapshot) -> Iterator[ChosenDevice]:
    decision = picture.answer
    if not isinstance(decision, Decision):
        return
    scores = iter(decision.score.devices)
    for entry in decision.allocations:
        for result in entry.allocation["devices"]["results"]:
            device, score = next(scores, ("", 0.0))
            device = device or f"{result['driver']}/{result['pool']}/{result['device']}"
            yield ChosenDevice(entry.claim.key, result["request"], device, score)


# --- nodes -----------------------------------------------------------------------------------


def _node(picture: DecisionSnapshot, place: NodeSnapshot) -> NodeExplanation:
    chosen = isinstance(picture.answer, Decision) and picture.answer.node == place.name
    return NodeExplanation(
        node=place.name,
        fits=place.fits,
        chosen=chosen,
        score=place.score,
        terms=tuple(_terms(place)),
        rank=place.rank,
        topology=place.topology,
        preference=sum(weight * score for _, weight, score in place.preferences),
        preferences=tuple(
            Term(plugin, weight * score, f"{score} of 100, weight {weight}")
            for plugin, weight, score in place.preferences
        ),
        tie=place.tie,
        reasons=dict(place.reasons),
        text=place.why or "; ".join(english(code) for code in place.reasons if meaning_of(code).of_node),
        cards=tuple(_cards(picture, place, chosen=chosen)),
    )


def _terms(place: NodeSnapshot) -> Iterator[Term]:
    """Yield the terms of a node's score, HAMi's usage in three parts; others with the sign that adds up."""
    others = [(name, value) for name, value in place.terms if name != _USED]
    used = sum(value for name, value in place.terms if name == _USED)
    cost = sum(value for _, value in others)
    sign = 1.0 if math.isclose(used + cost, place.score, rel_tol=1e-9, abs_tol=1e-9) else -1.0
    if any(name == _USED for name, _ in place.terms):
        uses, totals = place.loads
        for role, value, held, total in zip(wording.ROLES, node_terms(uses, totals), uses, totals, strict=True):
            yield _term(role, value, held, total)
    for name, value in others:
        yield Term(name, sign * value or 0.0)


# --- cards -----------------------------------------------------------------------------------


def _cards(picture: DecisionSnapshot, place: NodeSnapshot, *, chosen: bool) -> Iterator[CardExplanation]:
    """Yield the cards of one node, for one request after the other."""
    if picture.cards is None:
        return
    positions = np.arange(place.first, place.end)
    devices = picture.devices[place.first : place.end]
    in_order = sorted(enumerate(devices), key=lambda each: (each[1].id.driver, each[1].index, each[1].id))
    for seen in picture.seen:
        view, cards, ask = seen.view, picture.cards.take(positions), seen.ask.take(positions)
        taken: frozenset[DeviceId] = frozenset()
        if chosen:
            _add_earlier(picture, seen, devices, cards)
            taken = frozenset(device.id for request, device, _ in picture.picks if request is view)
        listing = listing_annotations(picture.policies.stated.get(view.claim_key, ()), view.name)
        terms = device_terms(cards, ask, picture.policies.for_claim(view.claim_key).weights)
        is_scored = seen.ours and not picture.first_fit and not view.all_devices
        for position, device in in_order:
            if (number := seen.codes[place.first + position]) == NOT_OF_CLASS:
                continue
            code, figures = CODES[number], _figures(cards, ask, position)
            text = wording.refusal(code, figures, view, device, listing)
            values = [float(column[position]) for column in terms]
            score = sum(values) if is_scored and not code else None
            if score is not None and chosen:  # with what earlier requests of the pod took
                score = _offered(picture, view, device, score, is_taken=device.id in taken)
                text = text if score is not None else _BESIDE
            yield CardExplanation(
                device=str(device.id),
                uuid=device.string_attribute(device.profile.uuid),
                product=device.string_attribute(device.profile.product),
                index=-1 if device.index == UNNUMBERED else device.index,
                claim=view.claim_key,
                request=view.name,
                code=code,
                text=text,
                score=score or 0.0,
                terms=() if score is None or device.is_part else tuple(_card_terms(values, figures)),
                chosen=device.id in taken,
            )


def _offered(
    picture: DecisionSnapshot, view: ResolvedRequest, device: Device, score: float, *, is_taken: bool
) -> float | None:
    """Return the card's score in the search, None if it met the card only on branches that it abandoned."""
    seen = picture.scores.get((view.claim_key, view.name, device.id))
    if seen is None or device.is_part or is_taken:
        return seen
    return seen if math.isclose(seen, score, rel_tol=1e-9) else None


def _card_terms(values: list[float], figures: wording.Figures) -> Iterator[Term]:
    for role, name in enumerate(wording.ROLES):
        yield _term(name, values[role], figures.used[role] + figures.asked[role], figures.total[role])


def _term(role: str, value: float, held: int, total: int) -> Term:
    text = wording.of_total(held, total, role) if total else "not published: counted like the shares"
    return Term(role, value, text)


def _figures(cards: Cards, ask: CardRequest, place: int) -> wording.Figures:
    return wording.Figures(
        asked=(int(ask.slots[place]), int(ask.cores[place]), int(ask.memory[place])),
        used=(int(cards.slots_used[place]), int(cards.cores_used[place]), int(cards.memory_used[place])),
        total=(int(cards.slots_total[place]), int(cards.cores_total[place]), int(cards.memory_total[place])),
    )


def _add_earlier(picture: DecisionSnapshot, seen: RequestSnapshot, devices: Sequence[Device], cards: Cards) -> None:
    """Add what earlier requests of the pod took to these copies."""
    place = {device.id: position for position, device in enumerate(devices)}
    for view, device, amounts in picture.picks:
        if view is seen.view:
            return
        position = place.get(device.id)
        if position is not None and not view.admin_access:
            cards.add(position, amounts)
