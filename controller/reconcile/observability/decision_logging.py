"""Log lines about a decision, at HAMi's levels: v4 one line per node, v5 also one line per card.

Called by the scheduling cycle right after a decision, before the inventory changes. Each line is a
reason code and `name=value` fields; in JSON the fields have keys of their own (`logs`). Source:
HAMi docs/scheduler-event-log.md. Pure but for logging.
"""

import logging
from typing import Final

from controller.decide import Decision, Options, SchedulingRequest, Unschedulable
from controller.insight.explain import explanation_of, take
from controller.inventory import Inventory
from controller.views.explanation import CardExplanation, Explanation, NodeExplanation
from hami_dra.api.core import Pod
from hami_dra.logs import DECISIONS, DETAILS, NODES

log = logging.getLogger(DECISIONS)

_NODE_FIT: Final = "NodeFitPod"
_NODE_UNFIT: Final = "NodeUnfitPod"
_CARD_FIT: Final = "CardFitPod"
MOST_NODES: Final = 1_000
"""Nodes logged of one decision, the best first. The number of those left out is logged."""


def placed(pod: Pod, decision: Decision) -> None:
    log.info(
        "pod %s: node %s, nodes that fit: %d, that do not: %d",
        pod.key,
        decision.node,
        decision.fitting_count,
        decision.unfit_count,
    )


def refused(pod: Pod, refusal: Unschedulable) -> None:
    log.info("pod %s: %s %s", pod.key, refusal.error or refusal.message, dict(refusal.reasons) or "")


def details(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options, answer: Decision | Unschedulable
) -> None:
    """Log the details from -v4 on. Call it before the inventory changes."""
    if log.isEnabledFor(NODES):
        report(explanation_of(take(inventory, scheduling_request, options, answer, most=MOST_NODES)))


def report(explanation: Explanation) -> None:
    """Log the lines of the present level."""
    pod = explanation.pod
    for node in explanation.nodes:
        _say_node(pod, node)
        if log.isEnabledFor(DETAILS):
            for card in node.cards:
                _say_card(pod, node.node, card)
    if explanation.nodes_left_out:
        _say(NODES, "NodesLeftOut", pod=pod, count=str(explanation.nodes_left_out))


def _say_node(pod: str, node: NodeExplanation) -> None:
    if not node.fits:
        _say(NODES, _NODE_UNFIT, pod=pod, node=node.node, reason=_shares(node))
        return
    fields = {"pod": pod, "node": node.node, "score": f"{node.score:.4f}"}
    if node.topology:
        fields["topology"] = f"{node.topology:g}"
    fields |= {term.name: f"{term.value:.4f}" for term in node.terms}
    if node.chosen:
        fields["chosen"] = "true"
    _say(NODES, _NODE_FIT, **fields)


def _say_card(pod: str, node: str, card: CardExplanation) -> None:
    fields = {"pod": pod, "node": node, "device": card.device, "request": card.request}
    if card.uuid:
        fields["uuid"] = card.uuid
    if card.terms or card.score:
        fields["score"] = f"{card.score:.4f}"
        fields |= {term.name: term.text for term in card.terms}
    if card.text:
        fields["figures"] = card.text
    if card.chosen:
        fields["chosen"] = "true"
    _say(DETAILS, card.code or _CARD_FIT, **fields)


def _shares(node: NodeExplanation) -> str:
    """Return HAMi's reason of a node: `3/4 CardInsufficientMemory`; the node's own have no fraction."""
    cards = len({card.device for card in node.cards})
    of_cards = sum(node.reasons.values()) == cards and bool(cards)
    parts = (f"{count}/{cards} {code}" if of_cards else code for code, count in sorted(node.reasons.items()))
    return ", ".join(parts) or "searched without result"


def _say(level: int, code: str, **fields: str) -> None:
    """Log `code name=value ...`; values with spaces are quoted."""
    text = " ".join(f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in fields.items())
    log.log(level, "%s %s", code, text, extra={"fields": {"code": code, **fields}})
