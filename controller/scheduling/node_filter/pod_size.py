"""How much of what a pod writes about nodes and other pods is read at all.

Each requirement and term is evaluated for all nodes, or all label sets of the cluster, so a pod
with thousands of them would hold up the decisions about all others. No real pod comes near the
limits.
"""

from typing import Final

from controller.scheduling.node_filter.node_affinity import required_affinity
from controller.scheduling.node_filter.plugin import PodRefusal
from hami_dra.api import names
from hami_dra.api.core import Pod, PodAffinity, PodAffinityTerm
from hami_dra.api.meta import LabelSelector

MOST_TERMS: Final = 64
"""Terms of inter-pod affinity and topology spread constraints."""
MOST_REQUIREMENTS: Final = 1_024
"""Of the node affinity, of the selectors of all terms, and of tolerations, each. The values of a
requirement do not count.
"""


MOST_VOLUMES: Final = 256
"""Volumes that the node filter reads: of claims, and disks that are named directly."""


def has_readable_volumes(pod: Pod) -> bool:
    return len(pod.spec.volumes) <= MOST_VOLUMES


def excess_of(pod: Pod) -> PodRefusal | None:
    """Return the refusal of a pod that writes more than is read; None: it does not."""
    spec = pod.spec
    if len(spec.tolerations) > MOST_REQUIREMENTS:
        return _refusal(names.NODE_TAINTED, "TaintToleration", len(spec.tolerations), "tolerations", MOST_REQUIREMENTS)
    if not has_readable_volumes(pod):
        return _refusal(names.NODE_VOLUME_BINDING, "VolumeBinding", len(spec.volumes), "volumes", MOST_VOLUMES)
    if spec.affinity is None and not spec.topology_spread_constraints:
        return None
    required = required_affinity(pod)
    terms = [] if required is None else [*required.node_selector_terms]
    if spec.affinity is not None and spec.affinity.node_affinity is not None:
        preferred = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
        terms += [each.preference for each in preferred]
    count = sum([max(1, len(each.match_expressions) + len(each.match_fields)) for each in terms])
    if count > MOST_REQUIREMENTS:
        what = "requirements in its node affinity"
        return _refusal(names.NODE_AFFINITY, "NodeAffinity", count, what, MOST_REQUIREMENTS)
    return _of_terms(pod)


def has_readable_terms(pod: Pod) -> bool:
    """Return whether the terms of inter-pod affinity of a pod that is there are read."""
    return _of_terms(pod) is None


def _of_terms(pod: Pod) -> PodRefusal | None:
    spread = pod.spec.topology_spread_constraints
    terms = inter_pod_terms(pod)
    if len(terms) + len(spread) > MOST_TERMS:
        what = "terms of inter-pod affinity and topology spread constraints"
        return _refusal(names.NODE_POD_AFFINITY, "InterPodAffinity", len(terms) + len(spread), what, MOST_TERMS)
    selectors = [each.label_selector for each in terms] + [each.label_selector for each in spread]
    count = sum(map(_requirements, (*selectors, *[each.namespace_selector for each in terms])))
    if count > MOST_REQUIREMENTS:
        what = "requirements in its terms of inter-pod affinity and topology spread constraints"
        return _refusal(names.NODE_POD_AFFINITY, "InterPodAffinity", count, what, MOST_REQUIREMENTS)
    return None


def inter_pod_terms(pod: Pod) -> list[PodAffinityTerm]:
    """Return all terms of inter-pod affinity, required ones and preferred ones."""
    affinity = pod.spec.affinity
    found: list[PodAffinityTerm] = []
    for each in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        found += _terms_of(each)
    return found


def _terms_of(affinity: PodAffinity | None) -> list[PodAffinityTerm]:
    if affinity is None:
        return []
    weighted = affinity.preferred_during_scheduling_ignored_during_execution
    required = affinity.required_during_scheduling_ignored_during_execution
    return [*required, *[each.pod_affinity_term for each in weighted]]


def _requirements(selector: LabelSelector | None) -> int:
    return 0 if selector is None else len(selector.match_labels) + len(selector.match_expressions)


def _refusal(code: str, plugin: str, count: int, what: str, most: int) -> PodRefusal:
    return PodRefusal(code, f"{plugin}: the pod has {count} {what}; hami-dra reads at most {most}")
