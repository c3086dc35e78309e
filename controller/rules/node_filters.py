"""Nodes that fit a pod, devices apart: kube-scheduler's filter plugins, in its order.

Called by `decide` through the inventory. The verdicts of a `plugin.NodePlugin` are kept per shape of
pod and updated for nodes that changed, or whose pods did. A `plugin.FilterPlugin` keeps a column per
shape, which is laid over these. The first plugin that refuses a node decides its code.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.reasons.catalogue import ABSENT, CODES, NODE_SPARE, NUMBERS
from controller.rules.filter_state import FilterState
from controller.rules.node_ports import host_ports
from controller.rules.plugin import FilterPlugin, NodePlugin, PodFilter, PodRefusal
from controller.rules.pod_size import excess_of
from hami_dra.api.arrays import Bools, Codes, Positions
from hami_dra.api.core import Pod

_FEW: Final = 8
"""Up to this many changed nodes are judged one by one."""
_Asked = tuple[Any, ...]
"""What each plugin that judges a node by itself reads of a pod, in their order."""


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Per node row, shape (size,)."""

    mask: Bools
    """The pod fits; rows without a node are False."""
    codes: Codes
    """Number of the first failing reason (`catalogue.CODES`), 0 where it fits, 255 where there is no node."""
    refusal: PodRefusal | None = None
    """Why the pod fits no node, whatever room there is."""
    filters: tuple[PodFilter, ...] = field(default=(), compare=False, repr=False)
    """Filters beyond those that judge a node by itself; updated in place, as long as the inventory."""


class ShapeFit:
    """The verdicts on one shape of pod that counts nowhere yet. Itself the key of that shape."""

    def __init__(self) -> None:
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        """See `NodeFit`. Callers must not change it."""
        self.changes = ChangeLog()
        """Rows whose code changed."""

    def renew(self, codes: Codes) -> None:
        if len(codes) != len(self.codes):
            self.changes.restart()
        else:
            self.note(np.flatnonzero(codes != self.codes))
        self.codes = codes

    def note(self, rows: Positions) -> None:
        if len(rows) > len(self.codes) // 2:
            self.changes.restart()
        else:
            for row in rows.tolist():
                self.changes.add(row)


class NodeByNodeFit(ShapeFit):
    """The verdicts of the plugins that judge a node by itself, as the readers last saw the nodes and their loads."""

    def __init__(self, nodes: NodeColumns) -> None:
        super().__init__()
        self.readers = LogReader(nodes.changes), LogReader(nodes.loads)


class LayeredFit(ShapeFit):
    """A fit with the verdicts of further filters laid over it."""

    def __init__(self, base: ShapeFit, filters: tuple[PodFilter, ...]) -> None:
        super().__init__()
        self._base = base
        self._filters = filters
        self._seen: tuple[int, ...] = ()

    def refresh(self) -> None:
        """Bring `codes` up to date; base and filters are."""
        versions = (self._base.changes.version, *[each.version for each in self._filters])
        if versions != self._seen or len(self.codes) != len(self._base.codes):
            self.renew(layered(self._base.codes, self._filters))
            self._seen = versions


def layered(codes: Codes, filters: Sequence[PodFilter]) -> Codes:
    """Return the codes with those of further filters where no earlier plugin refuses the node."""
    codes = codes.copy()
    for each in filters:
        codes[(codes == 0) & each.refused] = each.number
    return codes


class NodeFilters:
    """The plugins may come in any order: kube-scheduler's is that of their reason codes."""

    def __init__(
        self, state: FilterState, node_plugins: Iterable[NodePlugin[Any]], plugins: Iterable[FilterPlugin]
    ) -> None:
        self._nodes, self._shapes = state.nodes, state.shapes
        self._node_plugins = sorted(node_plugins, key=lambda plugin: NUMBERS[plugin.reasons[0]])
        self._plugins = sorted(plugins, key=lambda plugin: NUMBERS[plugin.code])

    def of(self, pod: Pod, own: Placed | None = None, *, uses_spares: bool = False) -> NodeFit:
        """Return the fit of the pod. `own`: where the inventory counts this pod; that does not count against it."""
        if (excess := excess_of(pod)) is not None:
            codes = np.where(self._nodes.present[: self._nodes.size], NUMBERS[excess.code], ABSENT).astype(np.uint8)
            return NodeFit(np.zeros(self._nodes.size, dtype=np.bool_), codes, excess)
        asked = self._asked(pod, uses_spares)
        filters, refusal = self._filters_of(pod, own)
        codes = layered(self._base(pod, asked).codes, () if own is not None else filters)
        if own is not None:
            if (row := self._nodes.index_of(own.node)) >= 0:
                codes[row] = self._judged(pod, asked, np.array([row], dtype=np.intp), own=own)[0]
            codes = layered(codes, filters)
        if refusal is not None:
            codes[codes == 0] = NUMBERS[refusal.code]
        return NodeFit(codes == 0, codes, refusal, filters)

    def of_shape(self, pod: Pod, *, uses_spares: bool) -> ShapeFit | None:
        """Return the cached fit of a pod that counts nowhere yet; None if it fits no node at all."""
        if excess_of(pod) is not None:
            return None
        base = self._base(pod, self._asked(pod, uses_spares))
        filters, refusal = self._filters_of(pod, None)
        if refusal is not None:
            return None
        if not filters:
            return base
        fit = self._shapes.of(pod, "layered", (base, filters), lambda: LayeredFit(base, filters))
        fit.refresh()
        return fit

    def follow(self, pod: Pod, *, uses_spares: bool) -> Callable[[], ShapeFit] | None:
        """Return a function that returns the fit of pods of this shape, current, while nothing but such
        pods comes or goes; None where more than `_base` has a say then.
        """
        affinity, spec, asked = pod.spec.affinity, pod.spec, self._asked(pod, uses_spares)
        relates = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
        if relates or spec.topology_spread_constraints or spec.volumes or host_ports(pod) or excess_of(pod) is not None:
            return None
        if self._filters_of(pod, None) != ((), None):
            return None
        kept = self._base(pod, asked)
        return lambda: self._current(kept, pod, asked)

    def holds_in_any_order(self, pod: Pod, row: int, own: Placed | None, unbound: tuple[Placed, ...]) -> bool:
        """Return whether the node admits the pod regardless of which `unbound` pods are bound before it."""
        filters, refusal = self._filters_of(pod, own) if unbound and excess_of(pod) is None else ((), None)
        return refusal is None and all(each.holds_in_any_order(row, unbound) for each in filters)

    def sentence(self, pod: Pod, own: Placed | None, fit: NodeFit, row: int) -> str:
        """Return why the node is refused: plugin, object and figure. Empty if it is not."""
        code = int(fit.codes[row])
        if code in {0, ABSENT}:
            return ""
        if fit.refusal is not None and code == NUMBERS[fit.refusal.code]:
            return fit.refusal.sentence
        for each in fit.filters:
            if each.number == code:
                return each.sentence(pod, row)
        plugin = next(each for each in self._node_plugins if CODES[code] in each.reasons)
        return plugin.sentence(pod, row, own)

    def _filters_of(self, pod: Pod, own: Placed | None) -> tuple[tuple[PodFilter, ...], PodRefusal | None]:
        """Return the filters that have something to say about the pod, current, and the first
        refusal of the pod as a whole.
        """
        filters: list[PodFilter] = []
        for plugin in self._plugins:
            found = plugin.filter_for(pod, own)
            if isinstance(found, PodRefusal):
                return tuple(filters), found
            if found is not None:
                found.refresh()
                filters.append(found)
        return tuple(filters), None

    def _base(self, pod: Pod, asked: _Asked) -> NodeByNodeFit:
        """Return the verdicts of the plugins that judge a node by itself, for a pod that counts nowhere yet."""
        kept = self._shapes.of(pod, "node by node", asked, lambda: NodeByNodeFit(self._nodes))
        return self._current(kept, pod, asked)

    def _current(self, kept: NodeByNodeFit, pod: Pod, asked: _Asked) -> NodeByNodeFit:
        """Return verdicts on such a pod after bringing them up to date."""
        nodes = self._nodes
        changes, loads = kept.readers
        if not (changes.is_current and loads.is_current):
            changed, loaded = changes.entries(), loads.entries()
            if changed is None or loaded is None or len(kept.codes) != nodes.size:
                kept.renew(self._judged(pod, asked, np.arange(nodes.size)))
            elif len(few := {*changed, *loaded}) <= _FEW:
                self._update(kept, pod, asked, few)
            else:
                rows = np.array([*few], dtype=np.intp)
                codes = self._judged(pod, asked, rows)
                different = rows[codes != kept.codes[rows]]
                kept.codes[rows] = codes
                kept.note(different)
            changes.done()
            loads.done()
        return kept

    def _asked(self, pod: Pod, uses_spares: bool) -> _Asked:
        return tuple(
            [
                None if uses_spares and NODE_SPARE in plugin.reasons else plugin.asked(pod)
                for plugin in self._node_plugins
            ]
        )

    def _update(self, kept: ShapeFit, pod: Pod, asked: _Asked, rows: AbstractSet[int]) -> None:
        """Judge few nodes again: as `_judged`, row by row."""
        judges = [
            plugin.judge(pod, each) for plugin, each in zip(self._node_plugins, asked, strict=True) if each is not None
        ]
        for row in rows:
            code = 0
            for judge in judges:
                if (code := judge(row)) != 0:
                    break
            if code != kept.codes.item(row):
                kept.codes[row] = code
                kept.changes.add(row)

    def _judged(self, pod: Pod, asked: _Asked, rows: Positions, *, own: Placed | None = None) -> Codes:
        """Return the first failing reason of each row. `own`: subtracted from the usage."""
        codes: Codes = np.zeros(len(rows), dtype=np.uint8)
        for plugin, each in zip(self._node_plugins, asked, strict=True):
            if each is not None:
                np.copyto(codes, plugin.codes(pod, each, rows, own), where=codes == 0, casting="unsafe")
        return codes
