"""Nodes that fit the pod, devices apart: node fit, and the constraints of the scheduling request itself. Pure."""

import numpy as np

from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import ABSENT
from controller.reasons.catalogue import CODES as NODE_CODES
from hami_dra.api.arrays import Bools
from hami_dra.api.core import NodeSelector
from hami_dra.api.selectors import node_selector_matches


class NodeFilter:
    """The nodes that fit the pod, devices apart, and the reasons against the others."""

    def __init__(self, inventory: Inventory, request: SchedulingRequest) -> None:
        nodes = inventory.nodes
        fit = inventory.rules.node_fit(request.pod, uses_spares=request.uses_spares)
        self._inventory = inventory
        self._pod = request.pod
        self._fit = fit
        self.codes = fit.codes
        self.mask = fit.mask
        self.refusal = None if request.required_node else fit.refusal
        """Why the pod fits no node, whatever room there is."""
        self.reasons: list[tuple[str, Bools]] = []
        """Reasons beyond `codes`: reason code and the nodes that it refuses, each node once."""
        if request.required_node:
            self._require(nodes.index_of(request.required_node))
        elif request.refused_nodes:
            rows = nodes.rows_of(request.refused_nodes)
            refused = np.zeros(nodes.size, dtype=np.bool_)
            refused[rows] = True
            self._refuse(catalogue.NODE_REFUSED, refused)
        if request.allowed_nodes is not None:
            self._refuse(catalogue.NODE_OUTSIDE_DOMAIN, ~request.allowed_nodes.mask)
        for entry in request.claims:
            allocation = entry.claim.status.allocation
            if allocation is not None and allocation.node_selector is not None:
                self._refuse(catalogue.NODE_CLAIM_ELSEWHERE, ~_selected(inventory, allocation.node_selector))
        for resource in request.plugin_resources:
            self._refuse(catalogue.NODE_DEVICE_PLUGIN, nodes.offers(resource) > 0)

    def why(self, row: int) -> str:
        """Return why a filter plugin refuses the node, with object and figure; empty if none does.
        To be read before the inventory changes.
        """
        if self.codes[row] != self._fit.codes[row]:
            return ""  # the pod is bound, and elsewhere
        return self._inventory.rules.why_unfit(self._pod, self._fit, row)

    def examples(self) -> dict[str, str]:
        """Return for each reason code of `codes` why the first of its nodes, by name, is refused."""
        found = {}
        nodes = self._inventory.nodes
        for number in np.flatnonzero(np.bincount(self.codes[self.codes != ABSENT], minlength=1)).tolist():
            if number:
                rows = np.flatnonzero(self.codes == number)
                row = int(rows[np.argmin(nodes.rank[rows])])
                sentence = self.why(row)
                if self.refusal is not None and sentence == self.refusal.sentence:
                    found[NODE_CODES[number]] = sentence
                elif sentence:
                    found[NODE_CODES[number]] = f"on {nodes.names[row]}: {sentence}"
        return found

    def _require(self, required: int) -> None:
        """Restrict to the node that the pod is bound to. Fit (cordon, readiness, resources) is no
        longer checked there.

        This also covers a pod that kube-scheduler bound at the moment when its allocation was
        undone. Four rows, the third of them free (ABSENT), with the pod bound to row 1:

            mask   [False, True, False, False]
            codes  [NodeAffinity, 0, ABSENT, NodeAffinity]
        """
        present = self.codes != ABSENT
        chosen = np.arange(self.codes.size) == required
        self.mask = present & chosen
        self.codes = np.where(present, np.where(chosen, 0, NODE_CODES.index(catalogue.NODE_AFFINITY)), ABSENT).astype(
            np.uint8
        )

    def _refuse(self, code: str, refused: Bools) -> None:
        """Record the nodes that this reason refuses first, and take them out of the mask."""
        newly_refused = self.mask & refused
        if newly_refused.any():
            self.reasons.append((code, newly_refused))
            self.mask &= ~newly_refused


def _selected(inventory: Inventory, selector: NodeSelector) -> Bools:
    """Return the nodes that the node selector of an allocation admits. Shape (nodes.size,)."""
    nodes = inventory.nodes
    mask = np.zeros(nodes.size, dtype=np.bool_)
    pinned = _pinned(selector)
    rows = range(nodes.size) if pinned is None else nodes.rows_of(pinned)
    for row in rows:
        node = nodes.nodes[row]
        mask[row] = node is not None and node_selector_matches(selector, node.metadata.name, node.metadata.labels)
    return mask


def _pinned(selector: NodeSelector) -> tuple[str, ...] | None:
    """Return the node names that the selector allows, or None where labels decide."""
    (term, *others) = selector.node_selector_terms or (None,)
    if others or term is None:
        return None
    for requirement in term.match_fields:
        if requirement.key == "metadata.name" and requirement.operator == "In":
            return requirement.values
    return None
