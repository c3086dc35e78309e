"""Hard topologySpreadConstraints, computed like kube-scheduler's PodTopologySpread plugin
(filtering.go, common.go).

For each selector in use, the matching pods per node are a column that is updated with each pod that
comes or goes (`pod_groups`); the domains are added up when one of the columns changed. Zones of the
nodes, and matching pods on them:

    zones  a a b    pods  2 1 1    per domain  a 3, b 1; fewest 1; maxSkew 1
    a pod in a: 3 + 1 - 1 = 3 > 1, refused; in b: 1 + 1 - 1 = 1, allowed
"""

from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.node_labels import NO_DOMAIN, place_in_words
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.pod_groups import MatchingPods, PodSelector, selector_in_words, selector_key
from controller.reasons import catalogue
from controller.rules.counted_shape import Counted, CountedShape
from controller.rules.filter_state import FilterState
from controller.rules.node_affinity import required_affinity
from controller.rules.node_rules import NodeRules
from controller.rules.plugin import PodRefusal, RecomputedFilter
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod, TopologySpreadConstraint
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.printable import counted
from hami_dra.api.selectors import ParsedSelector, parsed, selector_problem


def is_hard(constraint: TopologySpreadConstraint) -> bool:
    return constraint.when_unsatisfiable == "DoNotSchedule"


class PodTopologySpread:
    code = catalogue.NODE_TOPOLOGY_SPREAD

    def __init__(self, state: FilterState) -> None:
        self._state = state

    def filter_for(self, pod: Pod, own: Placed | None) -> "SpreadFilter | PodRefusal | None":
        if not pod.spec.topology_spread_constraints:
            return None
        constraints = [each for each in pod.spec.topology_spread_constraints if is_hard(each)]
        if not constraints:
            return None
        for each in constraints:
            if problem := selector_problem(each.label_selector):
                sentence = f"PodTopologySpread: the selector of a topology spread constraint is invalid: {problem}"
                return PodRefusal(self.code, sentence)
        hard, key = spread_shape(pod, constraints)
        shape = self._state.shapes.of(pod, self.code, key, lambda: SpreadFilter(self._state, pod, hard), len(hard))
        return shape.current(own)

    def shape_of(self, pod: Pod) -> Hashable | None:
        """Return what pods with equal hard constraints have in common; None without any, or with
        one that cannot be read.
        """
        constraints = [each for each in pod.spec.topology_spread_constraints if is_hard(each)]
        if not constraints or any(selector_problem(each.label_selector) for each in constraints):
            return None
        return spread_shape(pod, constraints)[1]

    def leaves_room(
        self, pod: Pod, row: int, placed: Iterable[tuple[Placed, Hashable]], unbound: Collection[Placed]
    ) -> bool:
        """Return whether each of the placed pods could still be bound where it is, if this pod were
        bound on its node before it. `placed`: with their shape; those of the pod's own shape are
        judged with the pod itself.
        """
        own_shape = self.shape_of(pod)
        by_shape: dict[Hashable, list[Placed]] = {}
        for each, shape in placed:
            if shape != own_shape and each.pod.metadata.uid != pod.metadata.uid:
                by_shape.setdefault(shape, []).append(each)
        for alike in by_shape.values():
            found = self.filter_for(alike[0].pod, None)
            if isinstance(found, SpreadFilter) and not found.admits_beside(alike, pod, row, unbound):
                return False
        return True


def spread_shape(
    pod: Pod, constraints: Sequence[TopologySpreadConstraint]
) -> tuple[list["SpreadConstraint"], Hashable]:
    """Return the constraints of a pod, parsed, and a key: equal where they say the same of all nodes."""
    spec, found = pod.spec, [SpreadConstraint.of(pod, each) for each in constraints]
    honors_taints = any(each.node_taints_policy == "Honor" for each in constraints)
    selector = tuple(sorted(spec.node_selector.items()))
    included = selector, required_affinity(pod), spec.tolerations if honors_taints else None
    return found, (tuple([each.key for each in found]), included)


class SpreadConstraint(Struct, frozen=True):
    """One constraint of a pod, hard or soft."""

    constraint: TopologySpreadConstraint
    selector: ParsedSelector | None
    """With matchLabelKeys."""
    namespace: str
    matches_itself: bool

    @classmethod
    def of(cls, pod: Pod, constraint: TopologySpreadConstraint) -> "SpreadConstraint":
        selector = parsed(_with_label_keys(pod, constraint))
        itself = selector is not None and selector.matches(pod.metadata.labels)
        return cls(constraint, selector, pod.metadata.namespace, itself)

    @property
    def counted(self) -> Counted:
        """The pods that count. countPodsMatchSelector finds none by an empty selector, though
        Matches finds every pod.
        """
        selector = self.selector
        matching = selector is not None and selector.size > 0
        key = "spread", self.namespace, selector_key(selector)
        return key, (PodSelector(frozenset({self.namespace}), selector),) if matching else ()

    @property
    def key(self) -> Hashable:
        rule = self.constraint
        return (
            self.counted[0],
            self.matches_itself,
            (rule.topology_key, rule.max_skew, rule.min_domains, rule.node_affinity_policy, rule.node_taints_policy),
        )

    def includes(self, rules: NodeRules, pod: Pod) -> Bools | np.bool_:
        """Return the nodes that the constraint's policies include for the pod."""
        included: Bools | np.bool_ = np.True_
        if self.constraint.node_affinity_policy in {None, "Honor"}:
            included = included & rules.admitted(pod)
        if self.constraint.node_taints_policy == "Honor":
            included = included & rules.untainted(pod)
        return included


def nodes_with_keys(state: FilterState, constraints: Sequence[SpreadConstraint]) -> Bools:
    """Return the nodes that have the topology keys of all constraints."""
    keys = {each.constraint.topology_key for each in constraints}
    complete: Bools = state.nodes.present[: state.nodes.size].copy()
    if not keys <= state.nodes.label_keys.keys():
        complete[:] = False
        return complete
    for key in keys:
        complete &= state.labels.domains(key) != NO_DOMAIN
    return complete


class SpreadFilter(CountedShape, RecomputedFilter):
    """The hard constraints of pods of one shape. `pod`: one of them."""

    def __init__(self, state: FilterState, pod: Pod, hard: list[SpreadConstraint]) -> None:
        RecomputedFilter.__init__(self, PodTopologySpread.code)
        CountedShape.__init__(self, state, [each.counted for each in hard], leaving=False)
        self._pod = pod
        self._hard = hard

    def holds_in_any_order(self, row: int, unbound: tuple[Placed, ...]) -> bool:
        """The worst order for this node: pods of its own domain are bound before, and no others."""
        return not self._violates(unbound)[row]

    def admits_beside(self, placed: Iterable[Placed], pod: Pod, row: int, unbound: Collection[Placed]) -> bool:
        """Return whether pods of this shape could be bound where they are placed once `pod` was
        bound on the node `row`, and none of the unbound ones in other domains.
        """
        nodes = self._state.nodes
        rows = [nodes.index_of(each.node) for each in placed]
        for hard, counts in zip(self._hard, self.counts, strict=True):
            key = hard.constraint.topology_key
            if key not in nodes.label_keys or not counts.counts(pod):
                continue
            domain = self._state.labels.domains(key)
            here = int(domain[row])
            if here == NO_DOMAIN or not any(domain[each] == here for each in rows if each >= 0):
                continue
            pods, fewest = self._per_domain(hard, counts, nodes_with_keys(self._state, self._hard), unbound)
            if int(pods[here]) + 1 - fewest > hard.constraint.max_skew:
                return False
        return True

    def sentence(self, pod: Pod, row: int) -> str:
        node = self._state.nodes.node(row)
        complete = nodes_with_keys(self._state, self._hard)
        for hard, counts in zip(self._hard, self.counts, strict=True):
            rule = hard.constraint
            if rule.topology_key not in node.metadata.labels:
                return f"PodTopologySpread: the node has no label {rule.topology_key}, the topologyKey of a spread constraint of the pod"
            pods, fewest = self._per_domain(hard, counts, complete, ())
            there = int(pods[self._state.labels.domains(rule.topology_key)[row]])
            if there + int(hard.matches_itself) - fewest > rule.max_skew:
                return (
                    f"PodTopologySpread: {counted(there, 'pod')} with {selector_in_words(hard.selector)} "
                    f"{place_in_words(node, rule.topology_key)}, {fewest} in the domain with the fewest, "
                    f"maxSkew {rule.max_skew}"
                )
        return f"PodTopologySpread: the topology spread constraints of pod {pod.key} are not met"

    def _versions(self) -> object:
        return self._state.nodes.changes.version, *[each.version for each in self.counts]

    def _compute(self) -> Bools:
        return self._violates(())

    def _violates(self, unbound: Collection[Placed]) -> Bools:
        """Return the nodes where one of the constraints is broken.

        `unbound`: pods that count, but may come after this one: they are counted in its own domain
        and left out in others, which is the worst case.
        """
        complete = nodes_with_keys(self._state, self._hard)
        if not complete.any():
            return ~complete  # pods may name any number of keys: no pod is counted for them
        bad = np.zeros(self._state.nodes.size, dtype=np.bool_)
        for hard, counts in zip(self._hard, self.counts, strict=True):
            domain = self._state.labels.domains(hard.constraint.topology_key)
            pods, fewest = self._per_domain(hard, counts, complete, unbound)
            over = pods + int(hard.matches_itself) - fewest > hard.constraint.max_skew
            missing = domain == NO_DOMAIN
            bad |= missing | over[np.where(missing, 0, domain)]
        return bad

    def _per_domain(
        self, hard: SpreadConstraint, counts: MatchingPods, complete: Bools, unbound: Collection[Placed]
    ) -> tuple[Ints, int]:
        """Return the matching pods per number of a domain, and the fewest of any domain.
        `complete`: the nodes with all topology keys; pods of others do not count.
        """
        domain = self._state.labels.domains(hard.constraint.topology_key)
        eligible = complete & hard.includes(self._state.rules, self._pod)
        per_node = self._column(counts)
        length = int(domain.max(initial=0)) + 1
        here = domain[eligible]
        pods = np.bincount(here, weights=per_node[eligible], minlength=length).astype(np.int64)
        exists = np.bincount(here, minlength=length) > 0
        enough = int(exists.sum()) >= (1 if hard.constraint.min_domains is None else hard.constraint.min_domains)
        sure = pods
        if unbound:
            others = (each for each in unbound if each is not self._own and counts.counts(each.pod))
            rows = np.array([self._state.nodes.index_of(each.node) for each in others], dtype=np.int64)
            rows = rows[rows >= 0]
            sure = pods - np.bincount(domain[rows[eligible[rows]]], minlength=length)
        fewest = int(sure[exists].min()) if enough and exists.any() else 0
        return pods, fewest


def _with_label_keys(pod: Pod, constraint: TopologySpreadConstraint) -> LabelSelector | None:
    """Return the selector with matchLabelKeys: the pod's own values of these labels are required too."""
    selector = constraint.label_selector
    labels = pod.metadata.labels
    added = tuple(
        LabelSelectorRequirement(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels
    )
    if selector is None or not added:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions + added)
