"""Labels of nodes as columns, the topology domains that they make, and selectors evaluated over
them. Pure.

A selector is evaluated once for each value that some node has, not once for each node: 5,000 nodes
in three zones cost three evaluations and one look-up by array.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from controller.cluster.incremental.changes import LruCache
from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.nodes import NodeColumns
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.names import HOSTNAME_LABEL
from hami_dra.api.selectors import int64_of, requirement_problem

Requirement = NodeSelectorRequirement | LabelSelectorRequirement
_KEYS_KEPT: Final = 256
_SELECTORS_KEPT: Final = 2_048
NO_DOMAIN: Final = -1
"""The node lacks the label."""
_SPARE_VALUES: Final = 1_024
"""Values of nodes that are gone are forgotten once there are this many more values than nodes."""


class LabelColumn:
    """One label of all nodes: a small number for each value, by row; `NO_DOMAIN` where there is none."""

    def __init__(self, nodes: NodeColumns, key: str) -> None:
        self._nodes = nodes
        self._key = key
        self.numbers: dict[str, int] = {}
        """Value → its number, from 0, in this order."""
        self.epoch = 0
        """Increases when values get other numbers."""
        self._column = NodeColumn(nodes, self._number, NO_DOMAIN)
        self._integers: tuple[Ints, Bools] = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)

    def current(self) -> Ints:
        """Return the numbers, shape (size,). Not to be changed by the caller."""
        found = self._column.current()
        if len(self.numbers) > self._nodes.count + _SPARE_VALUES:
            self.numbers.clear()
            self._integers = self._integers[0][:0], self._integers[1][:0]
            self.epoch += 1
            self._column = NodeColumn(self._nodes, self._number, NO_DOMAIN)
            found = self._column.current()
        return found

    def rows_with(self, values: Iterable[str]) -> Bools:
        """Return the nodes that have one of these values. Shape (size,)."""
        column = self.current()
        chosen = np.zeros(len(self.numbers) + 1, dtype=np.bool_)  # the last entry: NO_DOMAIN
        chosen[[number for value in values if (number := self.numbers.get(value)) is not None]] = True
        return chosen[column]

    def compared(self, bound: int, *, greater: bool) -> Bools:
        """Return the nodes whose value is an integer above the bound, or below it. Shape (size,)."""
        column = self.current()
        if len(self._integers[0]) != len(self.numbers) + 1:
            found = [*map(int64_of, self.numbers), None]
            exists = np.array([each is not None for each in found], dtype=np.bool_)
            self._integers = np.array([each or 0 for each in found], dtype=np.int64), exists
        integers, exists = self._integers
        chosen: Bools = exists & (integers > bound if greater else integers < bound)
        return chosen[column]

    def _number(self, node: Node) -> int:
        value = node.metadata.labels.get(self._key)
        return NO_DOMAIN if value is None else self.numbers.setdefault(value, len(self.numbers))


class NodeLabels:
    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._columns: LruCache[LabelColumn] = LruCache(_KEYS_KEPT)
        self._matching: LruCache[_Cached] = LruCache(_SELECTORS_KEPT)
        self._no_domains: Ints = np.zeros(0, dtype=np.int64)

    def column(self, key: str) -> LabelColumn:
        return self._columns.get(key, lambda: LabelColumn(self._nodes, key))

    def domains(self, key: str) -> Ints:
        """Return the number of each node's domain of a topology key, `NO_DOMAIN` where it has none.
        Shape (size,). Not to be changed by the caller. They change with `nodes.changes` only; a key
        that no node has takes no place.
        """
        if key in self._nodes.label_keys:
            return self.column(key).current()
        if len(self._no_domains) != self._nodes.size:
            self._no_domains = np.full(self._nodes.size, NO_DOMAIN, dtype=np.int64)
        return self._no_domains

    def matching(self, selector: NodeSelector | LabelSelector) -> Bools:
        """Return the nodes that match, shape (size,). Not to be changed by the caller.

        A selector that only names values of one label is looked up in its column and not cached,
        because each local disk has a different one. As for the affinity of a PersistentVolume,
        `matchFields` are checked for form and otherwise ignored: kube-scheduler compares labels
        alone. Rows without a node may match.
        """
        if pinned(selector) is not None:
            return self._evaluated(selector)
        cached = self._matching.get(selector_key(selector), _Cached)
        version = self._nodes.changes.version, self._nodes.size
        if cached.version != version:
            cached.mask = self._evaluated(selector)
            cached.version = version
        return cached.mask

    def _evaluated(self, selector: NodeSelector | LabelSelector) -> Bools:
        return self._of_labels(selector) if isinstance(selector, LabelSelector) else self._of_terms(selector)

    def with_labels(self, labels: Mapping[str, str]) -> Bools:
        """Return the nodes with all these labels. Shape (size,)."""
        mask = np.ones(self._nodes.size, dtype=np.bool_)
        if not labels.keys() <= self._nodes.label_keys.keys():
            mask[:] = False
            return mask
        for key, value in labels.items():
            mask &= self.column(key).rows_with((value,))
        return mask

    def of_term(self, term: NodeSelectorTerm) -> Bools:
        """Return the nodes that a term of a pod's node affinity matches, which reads `matchFields`. Shape (size,)."""
        if not term.match_expressions and not term.match_fields:
            return np.zeros(self._nodes.size, dtype=np.bool_)
        mask = self._of_all(term.match_expressions)
        for each in term.match_fields:
            mask &= self._of_field(each)
        return mask

    def _of_field(self, requirement: NodeSelectorRequirement) -> Bools:
        values = requirement.values
        is_usable = requirement.key == "metadata.name" and len(values) == 1 and requirement.operator in {"In", "NotIn"}
        found = np.full(self._nodes.size, is_usable and requirement.operator == "NotIn", dtype=np.bool_)
        if is_usable and (row := self._nodes.index_of(values[0])) >= 0:
            found[row] = requirement.operator == "In"
        return found

    def _of_terms(self, selector: NodeSelector) -> Bools:
        mask = np.zeros(self._nodes.size, dtype=np.bool_)
        for term in selector.node_selector_terms:
            if is_usable(term):
                mask |= self._of_all(term.match_expressions)
        return mask

    def _of_labels(self, selector: LabelSelector) -> Bools:
        mask = self._of_all(selector.match_expressions)
        return mask & self.with_labels(selector.match_labels)

    def _of_all(self, requirements: Iterable[Requirement]) -> Bools:
        mask = np.ones(self._nodes.size, dtype=np.bool_)
        for requirement in requirements:
            mask &= self._of_one(requirement)
        return mask

    def _of_one(self, requirement: Requirement) -> Bools:
        key, size = requirement.key, self._nodes.size
        if requirement_problem(requirement):
            return np.zeros(size, dtype=np.bool_)
        if key not in self._nodes.label_keys:  # a tenant may name any number of keys
            return np.full(size, requirement.operator in {"NotIn", "DoesNotExist"}, dtype=np.bool_)
        column = self.column(key)
        found: Bools
        match requirement.operator:
            case "In":
                found = column.rows_with(requirement.values)
            case "NotIn":
                found = ~column.rows_with(requirement.values)
            case "Exists":
                found = column.current() != NO_DOMAIN
            case "DoesNotExist":
                found = column.current() == NO_DOMAIN
            case "Gt" | "Lt":
                bound = int64_of(requirement.values[0])
                assert bound is not None, "else it cannot be parsed"
                found = column.compared(bound, greater=requirement.operator == "Gt")
            case _:
                found = np.zeros(size, dtype=np.bool_)
        return found


class _Cached:
    def __init__(self) -> None:
        self.version: tuple[int, int] = (-1, -1)
        self.mask: Bools = np.zeros(0, dtype=np.bool_)


def selector_key(selector: NodeSelector | LabelSelector) -> object:
    """Return a hashable value that is equal for equal selectors."""
    if isinstance(selector, NodeSelector):
        return selector
    return tuple(sorted(selector.match_labels.items())), selector.match_expressions


def is_usable(term: NodeSelectorTerm) -> bool:
    """Return whether the term can match at all: it has a requirement, and its fields have the only
    form that there is.
    """
    if not term.match_expressions and not term.match_fields:
        return False
    return all(len(each.values) == 1 and each.operator in {"In", "NotIn"} for each in term.match_fields)


def pinned(selector: NodeSelector | LabelSelector | None) -> tuple[str, tuple[str, ...]] | None:
    """Return (key, values) where the selector only asks for one of some values of one label.

    So do the volumes of local disks, thousands of which have selectors of their own. None: anything
    else.

    >>> hostname = NodeSelectorRequirement(key="kubernetes.io/hostname", operator="In", values=("n1",))
    >>> pinned(NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(hostname,)),)))
    ('kubernetes.io/hostname', ('n1',))
    >>> pinned(LabelSelector(match_labels={"zone": "a"}))
    ('zone', ('a',))
    """
    requirements: tuple[Requirement, ...] = ()
    if isinstance(selector, LabelSelector):
        if len(selector.match_labels) == 1 and not selector.match_expressions:
            ((key, value),) = selector.match_labels.items()
            return key, (value,)
        requirements = selector.match_expressions if not selector.match_labels else ()
    elif selector is not None and len(selector.node_selector_terms) == 1:
        (term,) = selector.node_selector_terms
        requirements = term.match_expressions if not term.match_fields else ()
    if len(requirements) != 1 or requirements[0].operator != "In":
        return None
    (only,) = requirements
    return only.key, only.values if not requirement_problem(only) else ()


def place_in_words(node: Node, key: str) -> str:
    """Return where the node is by one topology key: `in zone a`, or `on this node`."""
    value = node.metadata.labels.get(key, "")
    return "on this node" if key == HOSTNAME_LABEL else f"in {key.rpartition('/')[2]} {value}"
