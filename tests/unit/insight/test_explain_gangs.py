"""`explain` on a member of a gang: the gang's decision, and the pod's own among the others."""

import msgspec

from controller.insight.explain import explain, with_gang
from controller.insight.simulation import SimulationSettings, pending_pods, question
from tests.support.gang_objects import annotated, in_labelled_group, named
from tests.support.manifests import cluster, documents, part, pod, template

REQUIRED = {"kueue.x-k8s.io/podset-required-topology": "rack"}


def nodes():
    raws = [*cluster("n1", "n2"), template("card", part("15Gi", "100"))]
    racks = {"n1": "a", "n2": "b"}
    for raw in raws:
        if raw["kind"] == "Node":
            raw["metadata"]["labels"] = {"rack": racks[raw["metadata"]["name"]]}
    return raws


def members(number, annotations=None):
    gang = [in_labelled_group(pod("m", "template:card"), "train", number)]
    return [annotated(each, annotations or {}) for each in named(gang[0], *(f"m{i}" for i in range(number)))]


def explained(*raws, name="m0"):
    asked = question(documents(*raws), "pod", f"default/{name}", SimulationSettings())
    if asked.request is None:
        return asked.problem, asked.gang
    return with_gang(explain(asked.inventory, asked.request, asked.options), asked.gang)


def test_the_members_of_a_gang_that_fits_are_shown_at_their_nodes():
    found = explained(*nodes(), *members(4, REQUIRED))
    assert found.outcome == "placed"
    assert found.gang.fits
    assert {each.node for each in found.gang.members} == {found.node}
    assert [each.chosen for each in found.gang.domains].count(True) == 1


def test_a_member_is_explained_among_the_others():
    """Four cards a node: where three members have their places, one card is left to the fourth on theirs."""
    found = explained(*nodes(), *members(4, REQUIRED))
    [place] = [each for each in found.nodes if each.node == found.node]
    assert sum(card.code == "" for card in place.cards) == 1


def test_a_gang_without_room_leaves_its_member_without_a_node():
    found = explained(*nodes(), *members(5, REQUIRED))
    assert (found.outcome, found.node, found.chosen) == ("refused", "", ())
    assert found.message.startswith("gang default/train: 4 of 5 members fit at once in one domain of rack")
    assert not any(each.chosen for each in found.nodes)
    assert {each.name for each in found.gang.domains} == {"rack=a", "rack=b"}
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_a_gang_without_a_topology_constraint_has_no_domains():
    assert explained(*nodes(), *members(4)).gang.domains == ()
    assert explained(*nodes(), *members(9)).gang.domains == ()


def test_an_incomplete_gang_says_so():
    problem, gang = explained(*nodes(), *members(3)[:2])
    assert problem == ("gang default/train is incomplete: 2 of 3 members exist; none is placed until the others exist")
    assert not gang.fits


def test_a_pod_without_a_gang_has_none():
    assert explained(*nodes(), pod("m0", "template:card")).gang is None


def test_pods_that_wait_with_their_gang_say_what_it_lacks():
    gang = members(5, REQUIRED)
    found = pending_pods(documents(*nodes(), *gang), SimulationSettings(), may_be_meant="default/m0".__eq__)
    [entry] = found.pods
    assert entry.why[0].startswith("gang default/train: 4 of 5 members fit at once in one domain of rack")
    assert entry.reasons
    assert entry.gang == "gang default/train"
    [entry, *_] = pending_pods(documents(*nodes(), *gang[:2]), SimulationSettings()).pods
    assert entry.why == (
        "gang default/train is incomplete: 2 of 5 members exist; none is placed until the others exist",
    )
    found = pending_pods(documents(*nodes(), *members(4, REQUIRED)), SimulationSettings())
    assert {each.why for each in found.pods} == {("gang default/train fits, 4 members at once; it is not decided yet",)}
