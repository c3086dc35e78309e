"""What the API server writes into a pod's affinity when it creates the pod (matchLabelKeys and
mismatchLabelKeys; pkg/registry/core/pod/strategy.go). Pods in files may not have been created yet.
Pure.
"""

from msgspec.structs import replace

from hami_dra.api.core import Pod, PodAffinity, PodAffinityTerm
from hami_dra.api.meta import LabelSelectorRequirement


def with_label_keys(pod: Pod) -> Pod:
    """Return the pod as the API server would store it; a stored pod is returned as it is."""
    affinity = pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return pod
    settled = replace(
        affinity,
        pod_affinity=_settled(pod, affinity.pod_affinity),
        pod_anti_affinity=_settled(pod, affinity.pod_anti_affinity),
    )
    return pod if settled == affinity else replace(pod, spec=replace(pod.spec, affinity=settled))


def _settled(pod: Pod, affinity: PodAffinity | None) -> PodAffinity | None:
    if affinity is None:
        return None
    return PodAffinity(
        required_during_scheduling_ignored_during_execution=tuple(
            [_merged(pod, each) for each in affinity.required_during_scheduling_ignored_during_execution]
        ),
        preferred_during_scheduling_ignored_during_execution=tuple(
            [
                replace(each, pod_affinity_term=_merged(pod, each.pod_affinity_term))
                for each in affinity.preferred_during_scheduling_ignored_during_execution
            ]
        ),
    )


def _merged(pod: Pod, term: PodAffinityTerm) -> PodAffinityTerm:
    """Return the term with the pod's own values of the labels in its selector; without one it matches nothing."""
    selector, labels = term.label_selector, pod.metadata.labels
    if selector is None or not (term.match_label_keys or term.mismatch_label_keys):
        return term
    known = {(each.key, each.operator) for each in selector.match_expressions}
    added = [
        LabelSelectorRequirement(key=key, operator=operator, values=(labels[key],))
        for keys, operator in ((term.match_label_keys, "In"), (term.mismatch_label_keys, "NotIn"))
        for key in keys
        if key in labels and (key, operator) not in known
    ]
    expressions = (*selector.match_expressions, *added)
    return replace(term, label_selector=replace(selector, match_expressions=expressions))
