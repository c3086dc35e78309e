"""The consumer that a claim is reserved for: a pod, or a whole PodGroup. Pure."""

from controller.reconcile.runtime import patches
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.podgroups import PodGroup, is_group_claim
from hami_dra.api.resource import ConsumerReference


def consumer_of(pod: Pod, pod_claim_name: str, group: PodGroup | None) -> patches.Json:
    """Return the consumer, as kube-scheduler reserves it: the pod, or its `group`, whose claims are for all."""
    if group is not None and any(
        entry.name == pod_claim_name and is_group_claim(entry, group) for entry in pod.spec.resource_claims
    ):
        meta = group.metadata
        return {
            "apiGroup": kinds.POD_GROUP.group,
            "resource": kinds.POD_GROUP.plural,
            "name": meta.name,
            "uid": meta.uid,
        }
    return {"resource": kinds.POD.plural, "name": pod.metadata.name, "uid": pod.metadata.uid}


def is_of_group(consumer: ConsumerReference, pod: Pod) -> bool:
    """Return whether the consumer is the PodGroup of the pod. A pod does not know its UID."""
    group = pod.spec.scheduling_group
    return (
        group is not None
        and (consumer.api_group, consumer.resource) == (kinds.POD_GROUP.group, kinds.POD_GROUP.plural)
        and consumer.name == group.pod_group_name
    )
