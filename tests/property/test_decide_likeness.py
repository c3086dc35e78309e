"""Numbers of nodes that look alike: kept by difference they say the same as made anew, whatever happens in between."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.allocation.features import FeatureGates
from controller.allocation.ownership import Scope
from controller.allocation.prefilter import request_columns
from controller.allocation.request import prepare
from controller.decide.node_equivalence import NO_SAY, NodeClasses, node_classes_of
from hami_dra.api.resource import ResourceClaim
from hami_dra.vendors.registry import VENDORS
from tests.support.changing import MACHINES, NODES, ChangingCluster

WANTED = [("any", {}), ("any", {"memory": "8Gi", "cores": "10"})]

step = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(NODES), st.sampled_from(MACHINES)),
    st.tuples(st.just("withdraw"), st.sampled_from(NODES), st.just("")),
    st.tuples(st.just("take"), st.sampled_from(NODES), st.integers(0, 7)),
    st.tuples(st.just("leave"), st.sampled_from(NODES), st.integers(0, 7)),
    st.tuples(st.just("label"), st.sampled_from(NODES), st.sampled_from(["", "inf2.48xlarge", "trn1.32xlarge"])),
    st.tuples(st.just("gone"), st.sampled_from(NODES), st.just("")),
    st.tuples(st.just("look"), st.just(""), st.just("")),
)


class Cluster(ChangingCluster):
    def looks(self, request):
        """Per vendor and node what a likeness says, kept and made anew."""
        device_class, capacity = request
        exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 2}
        exactly["capacity"] = {"requests": capacity}
        body = {"metadata": {"name": "c", "namespace": "d", "uid": "c"}}
        body["spec"] = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        claim = msgspec.convert(body, ResourceClaim)
        problem = prepare(
            [claim], self.inventory.classes, features=FeatureGates(), admin_namespaces=frozenset(), ignored_taints=set()
        )
        (view,) = problem.claims[0].requests[0].alternatives
        column = request_columns(self.inventory, view, Scope(None), problem.ignored_taints)
        for vendor in VENDORS:
            fresh = NodeClasses(self.inventory, vendor, column)
            fresh.refresh()
            yield said(node_classes_of(self.inventory, vendor, column)), said(fresh)


def said(node_classes):
    found = []
    for number in node_classes.number.tolist():
        if number == NO_SAY:
            found.append(None)
        else:
            node_class = node_classes[number]
            found.append(
                (node_class.layout, node_class.card_states.tobytes(), node_class.states.tobytes(), node_class.parts)
            )
    return found


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, max_size=25))
def test_kept_as_made_anew(steps):
    cluster = Cluster()
    for what, name, value in [*steps, ("look", "", "")]:
        if what == "look":
            for request in WANTED:
                for kept, fresh in cluster.looks(request):
                    assert kept == fresh
        else:
            getattr(cluster, what)(name, value)
