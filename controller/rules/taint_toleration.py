"""Cordons, readiness and taints against the pod's tolerations (kube-scheduler's NodeUnschedulable
and TaintToleration). The comparison operators Lt and Gt tolerate nothing: their feature gate is
off.
"""

from typing import Final

from controller.cluster.nodes import nodes
from controller.reasons import catalogue
from controller.reasons.catalogue import NUMBERS, PLUGINS, english
from hami_dra.api.core import Node, Taint, Toleration
from hami_dra.api.selectors import tolerates

_CODE_OF_TAINT: Final = {
    nodes.UNSCHEDULABLE_TAINT.key: catalogue.NODE_UNSCHEDULABLE,
    nodes.NOT_READY_TAINT.key: catalogue.NODE_NOT_READY,
    nodes.UNREACHABLE_TAINT.key: catalogue.NODE_NOT_READY,
}
Tolerations = tuple[Toleration, ...]


def taint_code(tolerations: Tolerations, node: Node) -> str:
    """Return the reason code of the first taint that is not tolerated, or an empty text."""
    taint = untolerated_taint(tolerations, node)
    return "" if taint is None else state_of_taint(taint, node) or catalogue.NODE_TAINTED


def state_of_taint(taint: Taint, node: Node) -> str:
    """Return the reason code of the state that the taint stands for: cordoned, or not ready. Empty
    for any other taint.
    """
    if taint.key == nodes.UNSCHEDULABLE_TAINT.key and not node.spec.unschedulable:
        return ""  # the taint stays a moment longer than the cordon
    return _CODE_OF_TAINT.get(taint.key, "")


def taint_number(tolerations: Tolerations, node: Node) -> int:
    return NUMBERS[taint_code(tolerations, node)]


def tolerates_own_taints(tolerations: Tolerations, node: Node) -> bool:
    """Return whether all taints of the node's spec are tolerated (nodeTaintsPolicy Honor)."""
    return _first_untolerated(tolerations, nodes.own_taints(node)) is None


def taint_sentence(tolerations: Tolerations, node: Node) -> str:
    code = taint_code(tolerations, node)
    if code == catalogue.NODE_UNSCHEDULABLE:
        return f"{PLUGINS[code]}: {english(code)}"
    taint = untolerated_taint(tolerations, node)
    if taint is None:
        return ""
    value = f"={taint.value}" if taint.value else ""
    return f"TaintToleration: taint {taint.key}{value}:{taint.effect} is not tolerated"


def untolerated_taint(tolerations: Tolerations, node: Node) -> Taint | None:
    """Return the first taint of the node, cordon and conditions included, that is not tolerated."""
    return _first_untolerated(tolerations, nodes.effective_taints(node))


def untolerated_taints(tolerations: Tolerations, node: Node) -> list[Taint]:
    """Return all taints of the node, cordon and conditions included, that are not tolerated."""
    return [each for each in nodes.effective_taints(node) if _first_untolerated(tolerations, (each,))]


def _first_untolerated(tolerations: Tolerations, taints: tuple[Taint, ...]) -> Taint | None:
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
