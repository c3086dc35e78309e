"""For whom a claim is reserved."""

import pytest

from controller.reconcile.binding.claim_commit import consumer_of, is_of_group
from hami_dra.api.core import Pod, PodResourceClaim, PodSchedulingGroup, PodSpec
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.podgroups import PodGroup, PodGroupResourceClaim, PodGroupSpec
from hami_dra.api.resource import ConsumerReference

MEMBER = Pod(
    metadata=ObjectMeta(name="worker-0", namespace="team", uid="p1"),
    spec=PodSpec(
        scheduling_group=PodSchedulingGroup(pod_group_name="train"),
        resource_claims=(
            PodResourceClaim(name="domain", resource_claim_template_name="domain"),
            PodResourceClaim(name="cards", resource_claim_template_name="cards"),
        ),
    ),
)
GROUP = PodGroup(
    metadata=ObjectMeta(name="train", namespace="team", uid="g1"),
    spec=PodGroupSpec(
        resource_claims=(
            PodGroupResourceClaim(name="domain", resource_claim_template_name="domain"),
            PodGroupResourceClaim(name="cards", resource_claim_template_name="other"),
        )
    ),
)


def test_a_claim_of_the_group_is_reserved_for_the_group():
    expected = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g1"}
    assert consumer_of(MEMBER, "domain", GROUP) == expected


@pytest.mark.parametrize(("name", "group"), [("cards", GROUP), ("domain", None), ("gone", GROUP)])
def test_every_other_claim_is_reserved_for_the_pod(name, group):
    assert consumer_of(MEMBER, name, group) == {"resource": "pods", "name": "worker-0", "uid": "p1"}


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        (ConsumerReference(resource="podgroups", name="train", uid="g1", api_group="scheduling.k8s.io"), True),
        (ConsumerReference(resource="podgroups", name="train", uid="g1", api_group="scheduling.x-k8s.io"), False),
        (ConsumerReference(resource="podgroups", name="other", uid="g2", api_group="scheduling.k8s.io"), False),
        (ConsumerReference(resource="pods", name="train", uid="p9"), False),
    ],
)
def test_a_group_is_told_by_its_name(consumer, expected):
    assert is_of_group(consumer, MEMBER) is expected
    assert not is_of_group(consumer, Pod())
