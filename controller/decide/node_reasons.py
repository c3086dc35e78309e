"""Why nodes whose devices would do are refused for something else: label, taint, resource, cordon.

Called by `why_refused`. In: the nodes that could meet all requests, and the verdicts of the node
filter. Out: a `Reason` that names the label, the taint or the resource with both figures. Pure.

Nodes that repel the pod with equal obstacles (a taint, a cordon, not ready) are one group, and those
with the fewest come first. Up to three groups and, of each, up to three nodes are named:

    a10g-0 tainted, t4-0 cordoned   the pod does not tolerate taint team=ml:NoSchedule; 1 node with
                                    the requested devices carries it (a10g-0); 1 more is cordoned
                                    (t4-0)
    a10g-0 tainted and cordoned     ...; 1 node with the requested devices carries it and is
                                    cordoned (a10g-0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.node_labels import NO_DOMAIN
from controller.decide.node_filter import NodeFilter
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CATALOGUE, CODES, PLUGINS
from controller.reasons.reason import Reason
from controller.rules.node_affinity import admits, expression_text, required_affinity
from controller.rules.node_resources import figure, wanted_by
from controller.rules.pod_topology_spread import is_hard
from controller.rules.taint_toleration import state_of_taint, untolerated_taints
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.core import Node, NodeSelectorTerm, Pod
from hami_dra.api.printable import counted, listed, printable

_VALUES_NAMED: Final = 5
_NAMED: Final = 3
"""Nodes, groups of them and taints that a sentence names."""
_SET_BY_KUBELET: Final = ("kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "metadata.name")
"""Labels and fields that identify a node: only kubelet sets them."""
_STATES: Final = [code for code, each in CATALOGUE.items() if each.of_node and each.state][::-1]
"""Codes of what a node is: not ready, cordoned."""
_REPELLING: Final = (*_STATES, catalogue.NODE_TAINTED)
_LOOKED_AT: Final = 64
"""Nodes that are examined one by one; of more, the first stands for all."""
_TOLERATE: Final = "add a toleration, or remove the taint"
_PASSING: Final = "node.kubernetes.io/"
"""Taints that Kubernetes sets and removes itself."""


@dataclass(frozen=True, slots=True)
class NodeReasons:
    """The reasons of one pod. `there`: nodes whose devices could meet all its requests; `free`:
    they could now, and the pod may use other nodes, which could not.
    """

    inventory: Inventory
    request: SchedulingRequest
    verdicts: NodeFilter
    there: Bools
    free: bool = False

    @property
    def _having(self) -> str:
        return "with free devices" if self.free else "with the requested devices"

    def why(self) -> Reason:
        """Return why none of the nodes may be used: the last check that one of them reached."""
        by_code = self._by_code()
        code = list(by_code)[-1]
        pod, rows = self.request.pod, by_code[code]
        repelled = np.concatenate([by_code[each] for each in _REPELLING if each in by_code] or [rows[:0]])
        if code in _REPELLING:
            few = repelled if len(repelled) <= _LOOKED_AT else rows
            return _repelling_reason(self.inventory, pod, few, self._having)
        reason = self._of_plugin(code, rows)
        for resource, amount in wanted_by(pod):
            repelled = repelled[self.inventory.rules.left(pod, resource)[repelled] >= amount]
        if code not in PLUGINS or not 0 < len(repelled) <= _LOOKED_AT:
            return reason
        groups = _groups(self.inventory, pod, repelled)
        return _repelled_too(reason, groups, len(groups[0][0].each))

    def _of_plugin(self, code: str, rows: Positions) -> Reason:
        match code:
            case catalogue.NODE_AFFINITY:
                return self._affinity(rows)
            case catalogue.NODE_RESOURCES:
                return self._resource(rows)
            case catalogue.NODE_TOPOLOGY_SPREAD | catalogue.NODE_POD_AFFINITY:
                return self._topology_key(code) or self._other(code, rows)
            case _:
                return self._other(code, rows)

    def _by_code(self) -> dict[str, Positions]:
        """Return the refused nodes by reason code, in the order of the checks. Nodes that node
        affinity would exclude as well count for it, while there are few.
        """
        codes = self.verdicts.codes
        found: dict[str, Positions] = {}
        pod = self.request.pod
        for number, code in enumerate(CODES):
            rows = np.flatnonzero(self.there & (codes == number))
            if not code or not rows.size:
                continue
            if code in _REPELLING and len(rows) <= _LOOKED_AT:
                allowed = [admits(pod, self.inventory.nodes.node(row)) for row in rows.tolist()]
                rows = rows[np.array(allowed, dtype=np.bool_)]
            if code != catalogue.NODE_AFFINITY or not found:
                found.update({code: rows} if len(rows) else {})
        for code, mask in self.verdicts.reasons:
            if len(rows := np.flatnonzero(self.there & mask)):
                found[code] = rows
        return found or {catalogue.NODE_AFFINITY: np.flatnonzero(self.there)}

    # -- labels --------------------------------------------------------------------------------------

    def _affinity(self, rows: Positions) -> Reason:
        if self.request.required_node:
            asked = f"spec.nodeName is {printable(self.request.required_node)}"
            best = f"{counted(len(rows), 'other node')} could meet its requests"
            return self._label(asked, best, "Remove nodeName, so that hami-dra can choose")
        labels, pod = self.inventory.labels, self.request.pod
        for key, value in pod.spec.node_selector.items():
            if not (labels.with_labels({key: value}) & self.there).any():
                asked = f"nodeSelector wants {printable(key)}={printable(value)}"
                return self._label(asked, self._values(key, {key: value}), _label_fix(key, "nodeSelector"))
        required = required_affinity(pod)
        for term in required.node_selector_terms if required is not None else ():
            for each in (*term.match_expressions, *term.match_fields):
                alone = NodeSelectorTerm(match_expressions=(each,))
                if each in term.match_fields or not (labels.of_term(alone) & self.there).any():
                    asked = f"the required node affinity wants {printable(expression_text(each))}"
                    return self._label(asked, self._values(each.key), _label_fix(each.key, "the affinity"))
        if self.free:
            asked = "nodeSelector and the required node affinity want labels on one node"
            return self._label(asked, self._values(""), "Change one of them")
        asked = "no node has all labels that nodeSelector and the required node affinity want"
        return self._label(asked, "each of them is on some node", "Change one of them")

    def _values(self, key: str, wanted: Mapping[str, str] | None = None) -> str:
        """Return which values of a label the nodes have, with their numbers."""
        if self.free:
            rows = np.flatnonzero(self.there)
            verb = "does" if len(rows) == 1 else "do"
            return f"{counted(len(rows), 'node')} {self._having} {verb} not have it ({self._names(rows)})"
        nodes, labels = self.inventory.nodes, self.inventory.labels
        present = nodes.present[: nodes.size]
        if wanted is not None and (other := int((labels.with_labels(wanted) & present).sum())):
            return f"only {counted(other, 'node')} without the requested devices {'has' if other == 1 else 'have'} it"
        if key not in nodes.label_keys:
            return f"no node has the label {printable(key)}"
        column = labels.column(key)
        counts = np.bincount(column.current()[present] - NO_DOMAIN, minlength=len(column.numbers) + 1)[1:]
        found = sorted(zip(column.numbers, counts.tolist(), strict=True), key=lambda each: (-each[1], each[0]))
        found = [each for each in found if each[1]]
        most = max((count for _, count in found), default=0)
        texts = [
            f"{printable(value)} ({count})" if most > 1 else printable(value) for value, count in found[:_VALUES_NAMED]
        ]
        more = f", {len(found) - _VALUES_NAMED} more values" if len(found) > _VALUES_NAMED else ""
        return f"on the nodes {printable(key)} is {', '.join(texts)}{more}"

    def _topology_key(self, code: str) -> Reason | None:
        """Return the topologyKey of the pod's spread constraints or affinity that no node has."""
        spec = self.request.pod.spec
        if code == catalogue.NODE_TOPOLOGY_SPREAD:
            what, rules = "a topology spread constraint", spec.topology_spread_constraints
            keys = [each.topology_key for each in rules if is_hard(each)]
        else:
            what = "the pod affinity"
            affinity = spec.affinity.pod_affinity if spec.affinity is not None else None
            terms = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()
            keys = [each.topology_key for each in terms]
        missing = [key for key in keys if key not in self.inventory.nodes.label_keys]
        if not missing:
            return None
        asked = f"{what} has topologyKey {printable(missing[0])}"
        return self._label(asked, "no node has this label", "Label the nodes, or change topologyKey", code)

    def _label(self, asked: str, best: str, fix: str, code: str = catalogue.NODE_AFFINITY) -> Reason:
        return Reason("label", asked, best, never=True, fix=fix, code=code)

    # -- resources, other plugins -------------------------------------------------------------------

    def _resource(self, rows: Positions) -> Reason:
        """Return the first resource that is lacking on all of the nodes, else that of the first.

        It never suffices if it does not on nodes where only a port is taken now, either.
        """
        nodes, pod = self.inventory.nodes, self.request.pod
        without_port = self.there & (self.verdicts.codes == CODES.index(catalogue.NODE_PORTS))
        for resource, amount in wanted_by(pod):
            left, offers = self.inventory.rules.left(pod, resource)[rows], nodes.offers(resource)[rows]
            if int(left.max()) >= amount:
                continue
            best = int(left.argmax())
            where = f"a node {self._having}" if self.free else "one node"
            what = "CPU" if resource == "cpu" else f"of {printable(resource)}"
            asked = f"needs {figure(resource, amount)} {what} on {where}"
            name = nodes.names[int(rows[best])]
            if amount > int(offers.max()) and amount > nodes.offers(resource)[without_port].max(initial=0):
                best = int(offers.argmax())
                name = nodes.names[int(rows[best])]
                most = f"the most a node offers is {figure(resource, int(offers[best]))} ({name})"
                if not offers.any():
                    most = "no node offers it"
                return Reason("resource", asked, most, never=True, code=catalogue.NODE_RESOURCES)
            most = f"the most free is {figure(resource, max(int(left[best]), 0))} of {figure(resource, int(offers[best]))} ({name})"
            return Reason("resource", asked, most, code=catalogue.NODE_RESOURCES)
        return self._other(catalogue.NODE_RESOURCES, rows)

    def _other(self, code: str, rows: Positions) -> Reason:
        """Return the plugin's own sentence about the first of the nodes."""
        row = self._first(rows)
        name = self.inventory.nodes.names[row]
        text = self.verdicts.why(row) or CATALOGUE[code].about("it", 1)
        if code == catalogue.NODE_REFUSED and (said := self.request.refused_nodes.get(name)):
            text = f"{text}: {said}"
        asked = f"on {name}: {printable(text, 300)}"
        others = rows[rows != row]
        refused = f"with such devices {'is' if len(others) == 1 else 'are'} refused as well ({self._names(others)})"
        best = f"{counted(len(others), 'other node')} {refused}" if len(others) else ""
        return Reason("node", asked, best, fix=CATALOGUE[code].fix, code=code)

    def _names(self, rows: Positions) -> str:
        nodes = self.inventory.nodes
        return listed([nodes.names[row] for row in rows[np.argsort(nodes.rank[rows])[: _NAMED + 1]].tolist()], _NAMED)

    def _first(self, rows: Positions) -> int:
        return int(rows[np.argmin(self.inventory.nodes.rank[rows])])


def _label_fix(key: str, what: str) -> str:
    return f"Change {what}" if key in _SET_BY_KUBELET else f"Label a node, or change {what}"


# --- nodes that repel the pod -------------------------------------------------------------------


class _Obstacles(Struct, frozen=True):
    """What keeps the pod off a node: codes of its states, and its taints in words."""

    states: tuple[str, ...]
    taints: tuple[str, ...]
    lasts: bool
    """Whether a taint does that Kubernetes does not remove itself."""

    @property
    def each(self) -> frozenset[str]:
        return frozenset((*self.states, *self.taints))

    @property
    def taint_text(self) -> str:
        return f"taint{'s' if len(self.taints) > 1 else ''} {listed(self.taints, _NAMED)}"

    def text(self, number: int, taints: str) -> str:
        """Return the verb phrase of these nodes: `carry it and are cordoned`."""
        carry = f"{'carries' if number == 1 else 'carry'} {taints}" if self.taints else ""
        states = " and ".join([CATALOGUE[code].state for code in self.states])
        return " and ".join(filter(None, (carry, states and f"{'is' if number == 1 else 'are'} {states}")))

    def fix(self, number: int, name: str) -> str:
        one = "it" if number == 1 else "one of them"
        tolerate = "add tolerations, or remove the taints" if self.taints[1:] else _TOLERATE
        steps = [CATALOGUE[code].fix.format(name, one=one) for code in reversed(self.states)]
        return "; and ".join([tolerate, *steps] if self.lasts else steps)


def _repelling_reason(inventory: Inventory, pod: Pod, rows: Positions, having: str) -> Reason:
    """Return why these nodes repel the pod. `having`: what nodes with devices are called."""
    (first, members), *others = _groups(inventory, pod, rows)
    nodes = f"{counted(len(members), 'node')} {having}"
    state = f"{nodes} {first.text(len(members), 'them' if first.taints[1:] else 'it')} ({listed(members, _NAMED)})"
    asked, best = (f"the pod does not tolerate {first.taint_text}", state) if first.taints else (state, "")
    kind, code = ("taint", catalogue.NODE_TAINTED) if first.taints else ("node", first.states[-1])
    fix = first.fix(len(members), members[0])
    return _repelled_too(Reason(kind, asked, best, never=first.lasts, fix=fix, code=code), others, len(first.each))


def _repelled_too(reason: Reason, groups: Sequence["_Group"], fewest: int) -> Reason:
    """Return the reason of other nodes with further groups, and with the fixes of those with the fewest obstacles."""
    texts, fixes = [], [reason.fix]
    for obstacles, members in groups[:_NAMED]:
        what = obstacles.text(len(members), f"{obstacles.taint_text}, not tolerated,")
        texts.append(f"{len(members)} more {what.removesuffix(',')} ({listed(members, _NAMED)})")
        if len(obstacles.each) == fewest:
            fixes.append(obstacles.fix(len(members), members[0]))
    fix = "; or ".join(filter(None, fixes))
    return reason.also(*texts, never=all(each.lasts for each, _ in groups), fix=fix[:1].upper() + fix[1:])


_Group = tuple[_Obstacles, list[str]]


def _groups(inventory: Inventory, pod: Pod, rows: Positions) -> list[_Group]:
    """Return the names of the nodes by what keeps the pod off them: fewest obstacles first, taints before states."""
    nodes = inventory.nodes
    ordered = rows[np.argsort(nodes.rank[rows])].tolist()
    if len(ordered) > _LOOKED_AT:
        return [(_obstacles(pod, nodes.node(ordered[0])), [nodes.names[row] for row in ordered])]
    groups: dict[_Obstacles, list[str]] = {}
    for row in ordered:
        groups.setdefault(_obstacles(pod, nodes.node(row)), []).append(nodes.names[row])
    return sorted(groups.items(), key=lambda group: (len(group[0].each), len(group[0].states)))


def _obstacles(pod: Pod, node: Node) -> _Obstacles:
    taints = untolerated_taints(pod.spec.tolerations, node)
    states = [state_of_taint(each, node) for each in taints]
    own = [each for each, state in zip(taints, states, strict=True) if not state]
    texts = dict.fromkeys(f"{each.key}{'=' if each.value else ''}{each.value}:{each.effect}" for each in own)
    lasts = any(not each.key.startswith(_PASSING) for each in own)
    return _Obstacles(tuple(code for code in _STATES if code in states), tuple(map(printable, texts)), lasts)
