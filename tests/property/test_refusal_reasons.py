"""What can never be met is reported first, whatever is in use: the reason of a refused pod on a busy cluster against that on the
same cluster once it is empty. For plain and shared requests, several requests, linked devices, NUMA nodes and constraints.
"""

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.scoring.policies import DevicePolicy, Policies
from controller.scoring.policy_resolution import resolve_policies
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim
from hami_dra.vendors.device_codes import CUSTOM_FILTER_RULE
from tests.support.changing import MACHINES, NODES, ChangingCluster
from tests.support.examples import examples

OF_NODES = {"label", "taint", "resource", "node", "volume"}
"""Kinds of reasons that do not depend on devices."""
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
LINKED, NUMA = {"hami.io/gpu-topology": "required"}, {"nvidia.com/numa-bind": "true"}
SAME, DIFFERENT = (
    [{"matchAttribute": "resource.kubernetes.io/numaNode"}],
    [{"distinctAttribute": "resource.kubernetes.io/numaNode"}],
)
PART = {"memory": "2Gi", "cores": "10"}
V100 = 'device.attributes["hami.io"].productName.contains("V100")'
"""Without parts of cards, of which there are too many sets for a quick test."""
SETS = [
    *(([("nvidia", count, PART, V100)], annotations, []) for count in (2, 4, 5, 8) for annotations in (LINKED, NUMA)),
    *(([("nvidia", count, PART, V100)], {}, each) for count in (2, 3, 4, 8) for each in (SAME, DIFFERENT)),
    *(([("metax", count, {}, "")], {}, []) for count in (3, 5, 7)),
    ([("nvidia", 2, {}, V100), ("nvidia", 4, PART, V100)], {}, SAME),
    ([("nvidia", 4, {}, V100), ("nvidia", 5, PART, V100)], {}, []),
    ([("metax", 2, {}, "")], {}, SAME),
    ([("any", 2, PART, "")], {}, [{"matchAttribute": "resource.kubernetes.io/nmaNode"}]),
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
    st.tuples(st.just("ask_set"), st.sampled_from(SETS), st.just("")),
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
        self.compare(request_for(asked, policy))

    def ask_set(self, asked, _):
        requests, annotations, constraints = asked
        self.compare(request_for(requests, "spread", annotations, constraints, self.inventory.classes))

    def compare(self, request):
        """Decides twice: as the cluster is, and with nothing in use."""
        busy = decide(self.inventory, request, Options())
        taken = sorted(self.taken)
        for each in taken:
            self.leave(*each)
        idle = decide(self.inventory, request, Options())
        for each in taken:
            self.take(*each)
        check(busy, idle)


def request_for(asked, policy, annotations=None, constraints=(), classes=None):
    requests = []
    for number, (device_class, count, capacity, selector) in enumerate(asked):
        exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
        exactly["capacity"] = {"requests": capacity}
        exactly["selectors"] = [{"cel": {"expression": selector}}] if selector else []
        requests.append({"name": f"r{number}", "exactly": exactly})
    metadata = {"name": "p", "namespace": "d", "uid": "p", "annotations": annotations or {}}
    devices = {"requests": requests, "constraints": list(constraints)}
    claim = msgspec.convert({"metadata": metadata, "spec": {"devices": devices}}, ResourceClaim)
    body = {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    pod = msgspec.convert(body, Pod)
    defaults = Policies(device_policy=DevicePolicy((policy,)))
    return SchedulingRequest(
        pod,
        (PodClaim("r", claim),),
        resolve_policies(pod, [claim], {}, classes or {}, defaults) if classes else defaults,
    )


def has_figures(reason):
    """The figure asked for, and the best there is: a number, none at all, or what there is instead."""
    if reason.kind in OF_NODES or reason.code == CUSTOM_FILTER_RULE:
        return True
    asked = re.search(r"\d|needs an? |annotation|selector|the same|different", reason.asked)
    return bool(asked and re.search(r"\d|\bno (two )?(devices?|node)\b|there are|the only one", reason.best))


def check(busy, idle):
    for answer in (busy, idle):
        if isinstance(answer, Unschedulable) and answer.reason is not None:
            assert has_figures(answer.reason), answer.message
            assert answer.message.startswith("no node fits: " if answer.reason.never else "no node fits now: ")
    if isinstance(busy, Decision) or busy.reason is None:
        return
    if isinstance(idle, Decision):
        assert not busy.reason.never, busy.message
    elif idle.reason is not None and idle.reason.kind not in OF_NODES:
        assert idle.reason.never, idle.message
        assert busy.reason == idle.reason


@settings(max_examples=examples(20), deadline=None)
@given(steps=st.lists(step, min_size=6, max_size=30))
def test_what_can_never_be_met_is_said_first_however_busy_the_cluster_is(steps):
    cluster = Cluster()
    asks = [("ask", asked, "spread") for asked in ASKED] + [("ask_set", asked, "") for asked in SETS]
    for what, first, second in [*steps, *asks]:
        getattr(cluster, what)(first, second)
