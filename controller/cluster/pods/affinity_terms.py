"""Terms of inter-pod affinity, parsed as kube-scheduler parses them (framework.AffinityTerm, framework.PodInfo)."""

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from controller.cluster.pods.pod_groups import PodSelector, selector_in_words, selector_key
from hami_dra.api.core import Namespace, Pod, PodAffinity, PodAffinityTerm
from hami_dra.api.selectors import ParsedSelector, parsed, selector_problem

NAMESPACES_MERGED: Final = (1, 37)
"""Since this version of Kubernetes namespace selectors are read as `AffinityTerm.pods` says."""


class InvalidTerm(ValueError):
    """A selector of a term cannot be parsed; the message says why."""


class AffinityTerm(Struct, frozen=True):
    topology_key: str
    namespaces: frozenset[str]
    namespace_selector: ParsedSelector | None
    """None selects no further namespace, an empty one all."""
    selector: ParsedSelector | None

    @property
    def key(self) -> Hashable:
        """Equal for equal terms."""
        return self.topology_key, self.namespaces, selector_key(self.namespace_selector), selector_key(self.selector)

    @property
    def words(self) -> str:
        return selector_in_words(self.selector)

    @property
    def size(self) -> int:
        """Number of requirements."""
        return sum([each.size for each in (self.namespace_selector, self.selector) if each is not None])

    def matches(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether the term of another pod applies to a pod of this namespace."""
        if self.selector is None or not self.selector.matches(labels):
            return False
        others = self.namespace_selector
        return namespace in self.namespaces or (others is not None and others.matches(namespace_labels))

    def selects_otherwise(self, before: Namespace | None, after: Namespace | None) -> bool:
        """Return whether a change of a namespace changes the pods that `pods` finds. None: it did
        not exist, or no longer exists.
        """
        selector = self.namespace_selector
        if selector is None or not selector.size:
            return False
        selected = (each is not None and selector.matches(each.metadata.labels) for each in (before, after))
        return len({*selected}) > 1

    def pods(self, namespaces: Mapping[str, Namespace], *, unlabelled: bool = False) -> PodSelector:
        """Return the pods that the term means, for the pod that has it.

        `unlabelled`: a selector that matches no labels at all selects every namespace, as it does
        by mistake in Kubernetes 1.36 (mergeAffinityTermNamespacesIfNotEmpty works on a copy).
        """
        selector = self.namespace_selector
        if selector is None:
            return PodSelector(self.namespaces, self.selector)
        if not selector.size or (unlabelled and selector.matches({})):
            return PodSelector(None, self.selector)
        return PodSelector(self.namespaces, self.selector, selector, namespaces)


class WeightedTerm(Struct, frozen=True):
    term: AffinityTerm
    weight: int
    """Negative where it keeps pods apart."""

    @property
    def key(self) -> Hashable:
        """Equal for equal terms of one weight."""
        return self.term.key, self.weight


def required_terms(pod: Pod, affinity: PodAffinity | None) -> tuple[AffinityTerm, ...]:
    """Return the required terms, `pod` being the one that has them. Raises InvalidTerm."""
    if affinity is None:
        return ()
    return tuple([_parsed(pod, each) for each in affinity.required_during_scheduling_ignored_during_execution])


def preferred_terms(pod: Pod) -> tuple[WeightedTerm, ...]:
    """Return the preferred terms of affinity and anti-affinity, each once. Raises InvalidTerm."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    return _merged((*_preferred(pod, affinity.pod_affinity, +1), *_preferred(pod, affinity.pod_anti_affinity, -1)))


def anti_affinity_of(pod: Pod) -> tuple[WeightedTerm, ...]:
    """Return the required anti-affinity of a pod that is there, every term with weight 1. Of terms
    that cannot be parsed kube-scheduler reads none.
    """
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    try:
        return _merged(WeightedTerm(each, 1) for each in required_terms(pod, affinity.pod_anti_affinity))
    except InvalidTerm:
        return ()


def attraction_of(pod: Pod) -> tuple[WeightedTerm, ...]:
    """Return the terms of a pod that is there that score nodes for others: its preferred ones, and
    its required affinity with weight 1 (hardPodAffinityWeight). kube-scheduler reads none of a list
    in which one cannot be parsed, but those of its other lists.
    """
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    found: list[WeightedTerm] = []
    with suppress(InvalidTerm):
        found += [WeightedTerm(each, 1) for each in required_terms(pod, affinity.pod_affinity)]
    with suppress(InvalidTerm):
        found += _preferred(pod, affinity.pod_affinity, +1)
    with suppress(InvalidTerm):
        found += _preferred(pod, affinity.pod_anti_affinity, -1)
    return _merged(found)


def _preferred(pod: Pod, affinity: PodAffinity | None, sign: int) -> Iterable[WeightedTerm]:
    if affinity is None:
        return ()
    terms = affinity.preferred_during_scheduling_ignored_during_execution
    return [WeightedTerm(_parsed(pod, each.pod_affinity_term), sign * bounded_weight(each.weight)) for each in terms]


def bounded_weight(weight: int) -> int:
    """Return the weight of a preferred term. The API server lets 1 to 100 through; a file may say anything."""
    return min(max(weight, 0), 100)


def _merged(terms: Iterable[WeightedTerm]) -> tuple[WeightedTerm, ...]:
    """Return equal terms as one, with the sum of their weights."""
    found: dict[Hashable, WeightedTerm] = {}
    for each in terms:
        before = found.get(each.term.key)
        found[each.term.key] = each if before is None else WeightedTerm(each.term, before.weight + each.weight)
    return tuple(found.values())


def _parsed(pod: Pod, term: PodAffinityTerm) -> AffinityTerm:
    selector, namespace_selector = parsed(term.label_selector), parsed(term.namespace_selector)
    for each in (selector, namespace_selector):
        if each is not None and each.problem:
            raise InvalidTerm(each.problem)
    own = (pod.metadata.namespace,) if not term.namespaces and term.namespace_selector is None else term.namespaces
    return AffinityTerm(term.topology_key, frozenset(own), namespace_selector, selector)


def affinity_problem(pod: Pod) -> str:
    """Return why some term of the pod, preferred ones included, cannot be parsed, or an empty text.
    kube-scheduler then finds no node for the pod.
    """
    affinity = pod.spec.affinity
    if affinity is None:
        return ""
    for kind, each in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        if each is None:
            continue
        weighted = [one.pod_affinity_term for one in each.preferred_during_scheduling_ignored_during_execution]
        for term in (*each.required_during_scheduling_ignored_during_execution, *weighted):
            for selector in (term.label_selector, term.namespace_selector):
                if problem := selector_problem(selector):
                    return f"a term of its {kind} is invalid: {problem}"
    return ""
