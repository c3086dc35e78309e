"""Whatever pods a cluster has: a comparison agrees with the allocations that it names, counted by hand."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.insight.manifests import gather
from controller.insight.simulation import SimulationSettings, play
from controller.insight.simulation.essence import documents_of
from controller.insight.whatif import DEVICE_AXIS, NODE_AXIS, Change, compare
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api import kinds, names
from hami_dra.api.core import PodResourceClaimStatus
from tests.support.manifests import claim, cluster, documents, part, pod, template

FEWER = settings(max_examples=max(settings().max_examples // 4, 1))
"""Each example is some twenty decisions."""
CLUSTER = cluster("n1", "n2")
START = datetime(2026, 1, 1, tzinfo=UTC)
NODE_POLICIES = st.sampled_from([names.BINPACK, names.SPREAD])
DEVICE_POLICIES = st.sampled_from([names.BINPACK, names.SPREAD, names.TOPOLOGY_AWARE])
REQUESTS = st.sampled_from(
    [
        part("4Gi"),
        part("7500Mi"),
        part("14Gi"),
        part("20Gi"),
        part("2Gi", count=2),
        part("4Gi", cores="50"),
        part("100Gi"),
    ]
)


@st.composite
def chosen_policies(draw):
    return SimulationSettings(
        policies=Policies(node_policy=draw(NODE_POLICIES), device_policy=DevicePolicy((draw(DEVICE_POLICIES),)))
    )


@st.composite
def pods(draw, prefix="p"):
    """Each with a claim of its own, by template or by name; some share the claim of an earlier one."""
    found = []
    number = draw(st.integers(0, 9))
    for index in range(number):
        name = f"{prefix}{index}"
        kind = draw(st.sampled_from(["claim", "template", "shared"]))
        policy = draw(st.sampled_from([{}, {}, {names.DEVICE_POLICY: names.BINPACK}]))
        if kind == "template":
            found += [template(name, draw(REQUESTS)), pod(name, f"template:{name}", annotations=policy)]
        elif kind == "shared" and any(each["kind"] == "ResourceClaim" for each in found):
            earlier = next(each for each in found if each["kind"] == "ResourceClaim")
            found += [pod(name, earlier["metadata"]["name"], annotations=policy)]
        else:
            found += [claim(name, draw(REQUESTS)), pod(name, name, annotations=policy)]
    return found


def running(raws, chosen):
    """The state after these pods were placed in their order, as a cluster would have it; who found no place waits."""
    played = play(gather(documents(*CLUSTER, *raws)), chosen)
    view = played.view
    placed = [entry["pod"] for entry in played.report.placements]
    objects = [(kinds.RESOURCE_CLAIM, each) for each in (*view.claims.values(), *view.generated.values())]
    for second, key in enumerate(placed):
        objects.append((kinds.POD, bound(view.pods[key], START + timedelta(seconds=second))))
    left = {entry["pod"].removeprefix("default/") for entry in played.report.unplaced}
    others = [
        raw
        for raw in raws
        if raw["kind"] == "ResourceClaimTemplate" or (raw["kind"] == "Pod" and raw["metadata"]["name"] in left)
    ]
    return [*documents(*CLUSTER, *others), *documents_of(objects)]


def bound(one, created):
    """Its claims were generated under the names that a simulation gives them."""
    statuses = tuple(
        PodResourceClaimStatus(name=entry.name, resource_claim_name=f"{one.metadata.name}-{entry.name}")
        for entry in one.spec.resource_claims
        if entry.resource_claim_template_name
    )
    status = msgspec.structs.replace(one.status, phase="Running", resource_claim_statuses=statuses)
    metadata = msgspec.structs.replace(one.metadata, creation_timestamp=created.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return msgspec.structs.replace(one, metadata=metadata, status=status)


def cards(placements):
    """Devices that somebody has: on these machines every device is a card."""
    return {device for each in placements for device in each.devices}


@FEWER
@given(pods(), chosen_policies())
def test_what_was_just_placed_stays_where_it_is_when_placed_anew(raws, chosen):
    found = compare(running(raws, chosen), Change(settings=chosen, present=chosen, replace=True))
    assert found.moved == ()
    assert [(each.pod, each.node, each.devices) for each in found.before] == [
        (each.pod, each.node, each.devices) for each in found.after
    ]
    assert found.freed_cards == found.taken_cards == found.emptied_nodes == found.filled_nodes == ()
    assert found.lost == ()
    assert "change nothing" in found.conclusion


@st.composite
def changes(draw):
    after = draw(chosen_policies())
    more = draw(pods(prefix="new")) if draw(st.booleans()) else []
    without = draw(st.sampled_from([(), (), ("n1",), ("n2",)]))
    return Change(
        settings=after,
        policies=((NODE_AXIS, after.policies.node_policy), (DEVICE_AXIS, after.policies.device_policy.keys[0])),
        override=draw(st.booleans()),
        additions=tuple(documents(*more)),
        without_nodes=without,
        replace=draw(st.booleans()),
    )


PACKED = SimulationSettings(policies=Policies(node_policy=names.BINPACK, device_policy=DevicePolicy((names.BINPACK,))))
SCATTERED = SimulationSettings(policies=Policies(node_policy=names.SPREAD, device_policy=DevicePolicy((names.SPREAD,))))
PACKING = Change(settings=PACKED, policies=((NODE_AXIS, names.BINPACK), (DEVICE_AXIS, names.BINPACK)), replace=True)


@FEWER
@given(pods())
def test_so_it_does_where_cards_and_nodes_are_freed(raws):
    agreed(raws, SCATTERED, PACKING)


@FEWER
@given(pods(), chosen_policies(), changes())
def test_a_comparison_agrees_with_the_allocations_that_it_names(raws, chosen, change):
    agreed(raws, chosen, change)


def agreed(raws, chosen, change):
    found = compare(running(raws, chosen), change)
    before, after = cards(found.before), cards(found.after)
    gone = {f"nvidia.hami.io/{node}/gpu-{number}" for node in change.without_nodes for number in range(4)}
    assert set(found.freed_cards) == before - after - gone
    assert set(found.taken_cards) == after - before
    assert (found.held_before, found.held_after) == (len(before), len(after))
    assert (found.cards_before, found.cards_after) == (8, 8 - len(gone))
    assert not after & gone
    in_use = [{device.split("/")[1] for device in held} for held in (before, after)]
    assert set(found.emptied_nodes) == in_use[0] - in_use[1] - {*change.without_nodes}
    assert set(found.filled_nodes) == in_use[1] - in_use[0]

    places = [{each.pod: (each.node, each.devices) for each in side} for side in (found.before, found.after)]
    assert {each.pod for each in found.moved} == {
        key for key in places[0].keys() & places[1].keys() if places[0][key] != places[1][key]
    }
    assert {each.pod for each in found.placed} == places[1].keys() - places[0].keys()
    # nobody is lost on the way
    everyone = Counter(f"default/{raw['metadata']['name']}" for raw in raws if raw["kind"] == "Pod")
    everyone += Counter(
        f"default/{each.raw['metadata']['name']}" for each in change.additions if each.raw["kind"] == "Pod"
    )
    assert Counter([*places[1], *(each.pod for each in found.unplaced)]) == everyone
    assert {each.pod for each in found.lost} >= places[0].keys() - places[1].keys()
    if not change.replace:
        stay = {each.pod for each in found.before if each.running and each.node not in change.without_nodes}
        assert not stay & {each.pod for each in found.moved}
