"""The life of a gang: none of its pods runs, and none holds a device, before enough of them can run."""

from hami_dra.api import kinds
from tests.unit.reconcile.gang_stories import QUICK, gates, holders, member, nodes, prepare, story_of


@story_of()
async def test_a_complete_gang_runs(harness):
    await prepare(harness, *(member(f"m{i}") for i in range(4)))
    harness.start(**QUICK)
    await harness.bound("m0", "m1", "m2", "m3")
    await harness.check_bound_pods_have_their_claims()
    assert harness.metric("hami_dra_gang_decisions_total", result="placed") == 1
    kept = harness.controller.decision_log.of_pod("default/m2")
    assert (kept.outcome, kept.gang.gang, kept.gang.min_count) == ("placed", "gang default/train", 4)
    assert {each.pod: each.node for each in kept.gang.members}["default/m2"] == kept.node


@story_of()
async def test_an_incomplete_gang_holds_nothing_and_says_so(harness):
    """It keeps its gates past the patience: an autoscaler could not help."""
    await prepare(harness, *(member(f"m{i}") for i in range(3)))
    harness.start(**QUICK)
    await harness.sleep(60)
    assert await gates(harness) == {"m0", "m1", "m2"}
    assert await holders(harness) == set()
    found = {event["regarding"]["name"]: event["note"] for event in await harness.events("GangIncomplete")}
    assert found == {
        "m0": "3 of 4 members of gang default/train exist: none is placed until the others exist",
        "m1": "waits with gang default/train: 3 of 4 members exist",
        "m2": "waits with gang default/train: 3 of 4 members exist",
    }
    await harness.add(kinds.POD, member("m3"))
    await harness.bound("m0", "m1", "m2", "m3")


@story_of()
async def test_members_that_come_one_after_the_other_cause_no_warning(harness):
    await prepare(harness)
    harness.start(**QUICK)
    for i in range(4):
        await harness.add(kinds.POD, member(f"m{i}"))
        await harness.sleep(0.9)
    await harness.bound("m0", "m1", "m2", "m3")
    assert await harness.events("GangIncomplete") == []


@story_of()
async def test_of_two_gangs_with_room_for_one_the_other_holds_nothing_at_any_moment(harness):
    held = []

    async def watch(request):
        if request.is_write and request.kind is kinds.RESOURCE_CLAIM:
            held.append({name[0] for name in await holders(harness)})

    await prepare(harness, *(member(f"{gang}{i}", gang, 3) for gang in "ab" for i in range(3)))
    harness.cluster.hooks.append(watch)
    harness.start(**QUICK)
    await harness.bound("a0", "a1", "a2")
    await harness.sleep(100)
    assert all(gangs <= {"a"} for gangs in held)
    assert {name for name, node in (await nodes(harness)).items() if node} == {"a0", "a1", "a2"}
    for i in range(3):
        await harness.delete_pod(f"a{i}")
    await harness.bound("b0", "b1", "b2")


@story_of()
async def test_members_are_counted_in_the_state_of_their_gang(harness):
    def pending():
        return {
            state: harness.metric("hami_dra_pending_pods", state=state) for state in ("ready", "no_room", "waiting")
        }

    await prepare(harness, *(member(f"m{i}", least=5) for i in range(5)), *(member(f"i{i}", "part", 3) for i in "ab"))
    harness.start(**QUICK)
    await harness.sleep(30)
    assert pending() == {"ready": 0, "no_room": 5, "waiting": 2}
    await harness.add_node("n9")
    await harness.bound(*(f"m{i}" for i in range(5)))
    assert pending() == {"ready": 0, "no_room": 0, "waiting": 2}
    await harness.add(kinds.POD, member("ic", "part", 3))
    await harness.sleep(30)
    assert pending() == {"ready": 0, "no_room": 3, "waiting": 0}


@story_of(nodes=0)
async def test_gates_of_members_that_must_be_spread_are_lifted_one_after_the_other_in_their_order(harness):
    """Of equal age, they arrived in an order that is not that of their names; the one of priority 9 is first."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spread["labelSelector"] = {"matchLabels": {"pod-group.scheduling.sigs.k8s.io/name": "train"}}
    order = ["m2", "m10", "m1", "m0"]
    lifted, under_way = [], []

    async def watch(request):
        if request.label == "patch pods":
            lifted.append(request.name)
            under_way.append(request.name)
            assert len(under_way) == 1
            await harness.sleep(0.01)
            under_way.clear()

    await prepare(harness)
    harness.cluster.hooks.append(watch)
    harness.start(**QUICK)
    for name in ("n0", "n1"):
        await harness.add_node(name, labels={"kubernetes.io/hostname": name})
    for name in order:
        spec = {"topologySpreadConstraints": [spread], "priority": 9 if name == "m1" else 0}
        await harness.add(kinds.POD, member(name, **spec))
    await harness.bound(*order)
    assert lifted == ["m1", "m2", "m10", "m0"]
    assert {found.status.nominated_node_name for found in await harness.pods()} == {""}
    assert sorted((await nodes(harness)).values()) == ["n0", "n0", "n1", "n1"]
