"""What can never be met is reported first, whatever is in use: the reason of a refused pod on a busy cluster against that on the
same cluster once it is empty.
"""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.scheduling.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.scheduling.scoring.policies import DevicePolicy, Policies
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim
from tests.support.changing import MACHINES, NODES, ChangingCluster

LASTING = {"class", "selector", "memory", "cores", "slots", "devices", "capacity", "requests"}
"""Kinds of reasons that depend on published devices alone, where they last."""
NVIDIA = 'device.driver == "nvidia.hami.io"'
ASKED = [
    [("any", 1, {"memory": "8Gi", "cores": "10"}, "")],
    [("any", 9, {}, "")],
    [("nvidia", 1, {"memory": "90Gi"}, "")],
    [("nvidia", 8, {"memory": "3Gi", "cores": "100"}, "")],
    [("nvidia", 5, {}, ""), ("nvidia", 5, {}, "")],
    [("nvidia", 1, {}, ""), ("metax", 1, {}, "")],
    [("metax", 1, {"mem": "1Gi"}, "")],
    [("nvidia", 2, {}, 'device.attributes["hami.io"].productName.startsWith("A100")')],
    [("nobody", 1, {}, "")],
]
CLASSES = {"nvidia": NVIDIA, "metax": 'device.driver == "metax.hami.io"', "nobody": 'device.driver == "none"'}

node = st.sampled_from(NODES)
step = st.one_of(
    st.tuples(st.just("take"), node, st.integers(0, 7)),
    st.tuples(st.just("take"), node, st.integers(0, 7)),
    st.tuples(st.just("leave"), node, st.integers(0, 7)),
    st.tuples(st.just("publish"), node, st.sampled_from(MACHINES)),
    st.tuples(st.just("withdraw"), node, st.just("")),
    st.tuples(st.just("gone"), node, st.just("")),
    st.tuples(st.just("ask"), st.sampled_from(ASKED), st.sampled_from(["spread", "mutex"])),
)


class Cluster(ChangingCluster):
    def __init__(self):
        super().__init__(CLASSES)
        self.taken = set()

    def take(self, name, card):
        super().take(name, card)
        self.taken.add((name, card))

    def leave(self, name, card):
        super().leave(name, card)
        self.taken.discard((name, card))

    def ask(self, asked, policy):
        """Decides twice: as the cluster is, and with nothing in use."""
        request = request_for(asked, policy)
        busy = decide(self.inventory, request, Options())
        taken = sorted(self.taken)
        for each in taken:
            self.leave(*each)
        idle = decide(self.inventory, request, Options())
        for each in taken:
            self.take(*each)
        check(busy, idle)


def request_for(asked, policy):
    requests = []
    for number, (device_class, count, capacity, selector) in enumerate(asked):
        exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
        exactly["capacity"] = {"requests": capacity}
        exactly["selectors"] = [{"cel": {"expression": selector}}] if selector else []
        requests.append({"name": f"r{number}", "exactly": exactly})
    metadata = {"name": "p", "namespace": "d", "uid": "p"}
    claim = msgspec.convert({"metadata": metadata, "spec": {"devices": {"requests": requests}}}, ResourceClaim)
    body = {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    policies = Policies(device_policy=DevicePolicy((policy,)))
    return SchedulingRequest(msgspec.convert(body, Pod), (PodClaim("r", claim),), policies)


def check(busy, idle):
    for answer in (busy, idle):
        if isinstance(answer, Unschedulable) and not answer.error:
            assert answer.message.startswith("no node fits: " if answer.reason.never else "no node fits now: ")
    if isinstance(busy, Decision) or busy.reason is None:
        return
    if isinstance(idle, Decision):
        assert not busy.reason.never, busy.message
    elif idle.reason is not None and idle.reason.never and idle.reason.kind in LASTING:
        assert busy.reason == idle.reason
    elif busy.reason.never and busy.reason.kind in LASTING:
        assert idle.reason == busy.reason


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(step, min_size=6, max_size=30))
def test_what_can_never_be_met_is_said_first_however_busy_the_cluster_is(steps):
    cluster = Cluster()
    for what, first, second in [*steps, *(("ask", asked, "spread") for asked in ASKED)]:
        getattr(cluster, what)(first, second)
