"""Plain pods are placed from what is kept of their shape; with all nodes looked at anew and all cards searched the answer is the same."""

from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide, decision, ranked_nodes
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api import names
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import ResourceClaim
from tests.support.assumed import assume
from tests.support.changing import MACHINES, NODES, ChangingCluster

CLASSES = {"any": "true", "nvidia": 'device.driver == "nvidia.hami.io"'}
WANTED = [
    ("any", 1, {"memory": "8Gi", "cores": "10"}),
    ("nvidia", 1, {"memory": "5Gi", "cores": "0"}),
    ("nvidia", 2, {"memory": "3Gi", "cores": "100"}),
    ("nvidia", 1, {}),
    ("any", 3, {}),
]
SEVERAL = [
    (("nvidia", 1, {"memory": "5Gi", "cores": "0"}), ("any", 1, {"memory": "8Gi", "cores": "10"})),
    (("any", 2, {"memory": "3Gi", "cores": "30"}), ("any", 1, {})),
]
"""Requests of one claim; the search may find less than the columns of each say."""
POLICIES = [
    Policies(node_policy=node, device_policy=DevicePolicy(device))
    for node, device in (
        ("binpack", ("binpack",)),
        ("spread", ("spread",)),
        ("binpack", ("spread", "mutex")),
        ("spread", ("binpack",)),
        ("binpack", ("topology-aware",)),
        ("fair-share", ("binpack",)),
    )
]

pod = st.tuples(
    st.sampled_from([*((each,) for each in WANTED), *SEVERAL]),
    st.sampled_from(POLICIES),
    st.sampled_from(["1", "3"]),
    st.booleans(),
)
node = st.sampled_from(NODES)
step = st.one_of(
    st.tuples(st.just("place"), pod, st.integers(1, 4)),
    st.tuples(st.just("place"), pod, st.integers(1, 4)),
    st.tuples(st.just("place"), pod, st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just("")),
    st.tuples(st.just("publish"), node, st.sampled_from(MACHINES)),
    st.tuples(st.just("withdraw"), node, st.just("")),
    st.tuples(st.just("take"), node, st.integers(0, 7)),
    st.tuples(st.just("leave"), node, st.integers(0, 7)),
    st.tuples(st.just("gone"), node, st.just("")),
    st.tuples(st.just("node"), node, st.sampled_from(["", "full", "cordoned", "tainted", "plugin", "spare"])),
)


class Cluster(ChangingCluster):
    def __init__(self):
        super().__init__(CLASSES)
        self.placed = []
        self.count = 0

    def node(self, name, state):
        allocatable = {"cpu": "1" if state == "full" else "8", "pods": "9"}
        if state == "plugin":
            allocatable["nvidia.com/gpu"] = "8"
        spec = {"unschedulable": state == "cordoned"}
        if state == "tainted":
            spec["taints"] = [{"key": "mine", "effect": "NoSchedule"}]
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {names.SPARE: "true"} if state == "spare" else {}
        new = msgspec.convert(
            {"metadata": {"name": name, "uid": name, "labels": labels}, "spec": spec, "status": status}, Node
        )
        self.inventory.node_changed(self.nodes.get(name), new)
        self.nodes[name] = new

    def request(self, wanted, policies, cpu, uses_spares=False):
        self.count += 1
        name = f"p{self.count}"
        requests = [
            {
                "name": f"r{number}",
                "exactly": {
                    "deviceClassName": device_class,
                    "allocationMode": "ExactCount",
                    "count": count,
                    "capacity": {"requests": capacity},
                },
            }
            for number, (device_class, count, capacity) in enumerate(wanted)
        ]
        claim = {"metadata": {"name": name, "namespace": "d", "uid": name}}
        claim["spec"] = {"devices": {"requests": requests}}
        device_class = wanted[0][0]
        body = {"metadata": {"name": name, "namespace": "d", "uid": name}}
        body["spec"] = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        plugin = ("nvidia.com/gpu",) if device_class == "nvidia" else ()
        claims = (PodClaim("r", msgspec.convert(claim, ResourceClaim)),)
        return SchedulingRequest(
            msgspec.convert(body, Pod), claims, policies, plugin_resources=plugin, uses_spares=uses_spares
        )

    def place(self, pod, replicas):
        for _ in range(replicas):
            request = self.request(*pod)
            at_once = decide(self.inventory, request, Options())
            with (
                patch.object(decision, "fast_path_of", return_value=None),
                patch.object(decision, "ranked_by_shape", return_value=None),
            ):
                considered = decide(self.inventory, request, Options())
            assert at_once == considered
            assert type(at_once) is type(considered)
            if isinstance(at_once, Decision):
                labels = self.nodes[at_once.node].metadata.labels
                assert request.uses_spares or names.SPARE not in labels
                assert at_once.trace.fitting.tolist() == considered.trace.fitting.tolist()
                uid = request.pod.metadata.uid
                assume(self.inventory, uid, at_once.allocations[0].allocation)
                self.inventory.assume_pod(request.pod, at_once.node)
                self.placed.append(uid)

    def end(self, which, _):
        if self.placed:
            uid = self.placed.pop(which % len(self.placed))
            self.inventory.forget(uid)
            self.inventory.forget_pod(uid)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, min_size=4, max_size=30))
def test_at_once_as_considered(steps):
    with patch.object(ranked_nodes, "_OFTEN", 1):
        cluster = Cluster()
        for what, first, second in steps:
            getattr(cluster, what)(first, second)


def test_replicas_are_placed_without_a_look_at_all_nodes():
    cluster = Cluster()
    whole = decision._Decision._decide_full
    with patch.object(decision._Decision, "_decide_full", autospec=True, side_effect=whole) as looked:
        cluster.place(((WANTED[1],), POLICIES[0], "1"), ranked_nodes._OFTEN + 6)
    # `place` looks itself, once for each; the first of a shape only says that it is there
    assert looked.call_count == 2 * ranked_nodes._OFTEN + 6


def test_nodes_are_put_in_order_only_for_shapes_that_come_often():
    cluster = Cluster()
    build = ranked_nodes.RankedNodes.build
    with patch.object(ranked_nodes.RankedNodes, "build", autospec=True, side_effect=build) as built:
        for number in range(3 * ranked_nodes._OFTEN):
            with patch.object(ranked_nodes, "_FEW", -1 if number % 4 == 3 else 16):
                cluster.place(((WANTED[1],), POLICIES[0], "1"), 1)
        assert not built.called
        cluster.place(((WANTED[1],), POLICIES[0], "1"), ranked_nodes._OFTEN)
        assert built.called
