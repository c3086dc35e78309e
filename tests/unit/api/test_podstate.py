"""The states of a pod, each by what the pod is; what a claim's reservations follow is the claim controller's isPodDone."""

import pytest

from hami_dra.api.core import Pod, PodSpec, PodStatus
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.podstate import is_bound, is_done, is_leaving, is_live, is_pending

QUESTIONS = (is_pending, is_live, is_bound, is_leaving, is_done)


def a_pod(node="", phase="Pending", *, deleted=False):
    meta = ObjectMeta(name="p", deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None)
    return Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("pod", "states"),
    [
        (a_pod(), {is_pending, is_live}),
        (a_pod(deleted=True), {is_done}),
        (a_pod("n"), {is_live, is_bound}),
        (a_pod("n", "Running"), {is_live, is_bound}),
        (a_pod("n", "Running", deleted=True), {is_bound, is_leaving}),
        (a_pod("n", "Succeeded"), {is_done}),
        (a_pod("n", "Failed", deleted=True), {is_done}),
        (a_pod(phase="Failed"), {is_done}),
    ],
)
def test_each_state(pod, states):
    assert {question for question in QUESTIONS if question(pod)} == states
