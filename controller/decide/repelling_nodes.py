"""Nodes that have the devices and repel the pod: cordoned, not ready, or with a taint that it does
not tolerate. Called by `node_reasons`. Pure.

Nodes with equal obstacles are one group, and those with the fewest come first. Up to three groups
and, of each, up to three nodes are named:

    a10g-0 tainted, t4-0 cordoned   the pod does not tolerate taint team=ml:NoSchedule; 1 node with
                                    the requested devices carries it (a10g-0); 1 more is cordoned
                                    (t4-0)
    a10g-0 tainted and cordoned     ...; 1 node with the requested devices carries it and is
                                    cordoned (a10g-0)
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from controller.decide.refusal_reason import RefusalReason
from controller.inventory.inventory import Inventory
from controller.reasons import CATALOGUE, catalogue
from controller.rules.taint_toleration import state_of_taint, untolerated_taints
from hami_dra.api.arrays import Positions
from hami_dra.api.core import Node, Pod
from hami_dra.api.printable import counted, listed, printable

REPELLING: Final = (catalogue.NODE_UNSCHEDULABLE, catalogue.NODE_NOT_READY, catalogue.NODE_TAINTED)
LOOKED_AT: Final = 64
"""Nodes that are examined one by one; of more, the first stands for all."""
_NAMED: Final = 3
"""Nodes, groups of them and taints that a sentence names."""
_TOLERATE: Final = "add a toleration, or remove the taint"
_PASSING: Final = "node.kubernetes.io/"
"""Taints that Kubernetes sets and removes itself."""
_STATES: Final = (catalogue.NODE_NOT_READY, catalogue.NODE_UNSCHEDULABLE)


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
        states = " and ".join([CATALOGUE[code].state for code in _STATES if code in self.states])
        return " and ".join(filter(None, (carry, states and f"{'is' if number == 1 else 'are'} {states}")))

    def fix(self, number: int, name: str) -> str:
        one = "it" if number == 1 else "one of them"
        steps = [
            self.lasts and ("add tolerations, or remove the taints" if self.taints[1:] else _TOLERATE),
            catalogue.NODE_UNSCHEDULABLE in self.states and f"uncordon {one} (kubectl uncordon {name})",
            catalogue.NODE_NOT_READY in self.states and f"see kubectl describe node {name}",
        ]
        return "; and ".join([step for step in steps if step])


def repelling_reason(inventory: Inventory, pod: Pod, rows: Positions, having: str) -> RefusalReason:
    """Return why these nodes repel the pod. `having`: what nodes with devices are called."""
    (first, members), *others = _groups(inventory, pod, rows)
    nodes = f"{counted(len(members), 'node')} {having}"
    state = f"{nodes} {first.text(len(members), 'them' if first.taints[1:] else 'it')} ({listed(members, _NAMED)})"
    asked, best = (f"the pod does not tolerate {first.taint_text}", state) if first.taints else (state, "")
    more, fixes = _others(others, len(first.each))
    best = "; ".join(filter(None, (best, *more)))
    fix = "; or ".join(filter(None, (first.fix(len(members), members[0]), *fixes)))
    kind, code = ("taint", catalogue.NODE_TAINTED) if first.taints else ("node", first.states[-1])
    never = all(each.lasts for each, _ in ((first, members), *others))
    return RefusalReason(kind, asked, best, never=never, fix=_capitalized(fix), code=code)


def with_repelling(reason: RefusalReason, inventory: Inventory, pod: Pod, rows: Positions) -> RefusalReason:
    """Return the reason of other nodes, with the nodes that only repel the pod."""
    if not len(rows) or len(rows) > LOOKED_AT:
        return reason
    groups = _groups(inventory, pod, rows)
    more, fixes = _others(groups, len(groups[0][0].each))
    fix = "; or ".join(filter(None, (reason.fix, *fixes)))
    never = reason.never and all(each.lasts for each, _ in groups)
    return replace(reason, best="; ".join(filter(None, (reason.best, *more))), fix=_capitalized(fix), never=never)


def _others(groups: Sequence["_Group"], fewest: int) -> tuple[list[str], list[str]]:
    """Return the sentences on further groups, and the fixes of those with the fewest obstacles."""
    texts = []
    for obstacles, members in groups[:_NAMED]:
        what = obstacles.text(len(members), f"{obstacles.taint_text}, not tolerated,")
        texts.append(f"{len(members)} more {what.removesuffix(',')} ({listed(members, _NAMED)})")
    near = [group for group in groups[:_NAMED] if len(group[0].each) == fewest]
    return texts, [obstacles.fix(len(members), members[0]) for obstacles, members in near]


_Group = tuple[_Obstacles, list[str]]


def _groups(inventory: Inventory, pod: Pod, rows: Positions) -> list[_Group]:
    """Return the names of the nodes by what keeps the pod off them: fewest obstacles first, taints before states."""
    nodes = inventory.nodes
    ordered = rows[np.argsort(nodes.rank[rows])].tolist()
    if len(ordered) > LOOKED_AT:
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


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
