"""H2: no namespace keeps the decision loop from the others, whatever it asks for and however often."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.queueing_hints import ANY, News
from controller.reconcile.queueing.refused_groups import FOREVER, Rank
from hami_dra.api import kinds
from tests.support.harness import SPACE, claim, first_fit, play, pod

COST = 0.001
SHARERS = 60
QUICK = {"quiet_time": 0.0, "probe": False}


def rank(key, priority=0, created="2026-01-01T00:00:00Z"):
    return Rank(-priority, created, key)


def turns(queue, cost=lambda key: COST, most=FOREVER):
    """Keys in the order of their turns, each charged what it costs."""
    keys = []
    while len(keys) < most and (key := queue.pop(0.0)) is not None:
        queue.charge(cost(key))
        keys.append(key)
    return keys


def filled(pods):
    """`pods`: namespace → how many are ready."""
    queue = Queue(turn_cost=COST)
    for namespace, count in pods.items():
        for number in range(count):
            queue.ready(f"{namespace}/{number:04}", rank(f"{namespace}/{number:04}"))
    return queue


def test_one_pod_among_thousands_is_next_but_one():
    queue = filled({"greedy": 5_000})
    turns(queue, most=100)
    queue.ready("honest/p", rank("honest/p", created="2027-01-01T00:00:00Z"))
    assert "honest/p" in turns(queue, most=2)


def test_time_that_another_namespace_causes_is_charged_to_it():
    queue = filled({"causing": 40, "honest": 40, "third": 40})
    keys = []
    while len(keys) < 60:
        keys.append(key := queue.pop(0.0))
        if key.startswith("honest/"):
            queue.charge(5 * COST, {"causing": 4 * COST})
        else:
            queue.charge(COST)
    counts = [sum(key.startswith(f"{name}/") for key in keys) for name in ("causing", "honest", "third")]
    assert counts[0] <= counts[1] // 4 + 1
    assert abs(counts[1] - counts[2]) <= 1


def test_time_counts_and_not_the_number_of_turns():
    queue = filled({"slow": 50, "quick": 50})
    order = turns(queue, cost=lambda key: 10 * COST if key.startswith("slow") else COST, most=22)
    assert sum(key.startswith("slow") for key in order) == 2


def test_what_was_never_decided_on_comes_before_retries():
    queue = Queue()
    for name in ("old", "older"):
        queue.ready(f"team/{name}", rank(f"team/{name}", created="2020-01-01T00:00:00Z"))
    for key in turns(queue):
        queue.no_room(key, key.encode(), refused_at=0.0)
    queue.room_made(1.0, News(ANY))
    queue.ready("team/new", rank("team/new"), changed=True)
    assert [queue.pop(1.0) for _ in range(3)] == ["team/new", "team/old", "team/older"]


def test_a_pod_that_asks_for_something_else_counts_as_new():
    queue = Queue()
    for name in ("a", "b"):
        queue.ready(f"team/{name}", rank(f"team/{name}"))
        queue.no_room(queue.pop(0.0), b"same", refused_at=0.0)
    queue.ready("team/a", rank("team/a"))
    queue.ready("team/b", rank("team/b"), changed=True)
    assert turns(queue) == ["team/b", "team/a"]


def test_a_group_that_is_refused_again_and_again_pauses_twice_as_long_each_time_up_to_a_second():
    queue = Queue(pause_first=0.02, pause_most=1.0)
    queue.ready("team/p", rank("team/p"))
    now, pauses = 100.0, []
    for _ in range(9):
        assert queue.pop(now) == "team/p"
        queue.no_room("team/p", b"s", refused_at=now)
        queue.room_made(now, News(ANY))
        assert queue.pop(now) is None
        pauses.append(round(queue.next_timer() - now, 6))
        now = queue.next_timer()
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    queue.pop(now)
    queue.placed("team/p")
    queue.ready("team/q", rank("team/q"))
    queue.pop(now)
    queue.no_room("team/q", b"s", refused_at=now)
    queue.room_made(now, News(ANY))
    assert queue.next_timer() == pytest.approx(now + 0.02), "one of them was placed: the next pause is a short one"


def test_room_after_the_pause_is_used_at_once():
    queue = Queue()
    queue.ready("team/p", rank("team/p"))
    queue.no_room(queue.pop(0.0), b"s", refused_at=0.0)
    assert queue.pop(5.0) is None
    queue.room_made(5.0, News(ANY))
    assert queue.pop(5.0) == "team/p"


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 30), min_size=2),
    st.lists(st.sampled_from([1, 1, 1, 2, 5, 20]), min_size=1, max_size=10),
)
def test_no_namespace_with_ready_pods_waits_while_another_takes_two_turns_more_than_its_share(pods, costs):
    """Of any two that have pods all the time, neither gets ahead by more than one turn of each."""
    queue, left, used, longest = filled(pods), dict(pods), dict.fromkeys(pods, 0), max(costs)
    for number in range(sum(pods.values())):
        key = queue.pop(0.0)
        assert key is not None, "work is conserved"
        namespace = key.partition("/")[0]
        cost = costs[number % len(costs)]
        queue.charge(cost * COST)
        used[namespace] += cost
        left[namespace] -= 1
        waiting = [used[each] for each in pods if left[each]]
        if all(left[each] + 1 for each in pods) and len(waiting) == len(pods):
            assert max(waiting) - min(waiting) <= 2 * longest
    assert queue.pop(0.0) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_a_higher_priority_always_comes_first_and_nothing_is_lost(asked):
    queue, waiting = Queue(), []
    for number, (namespace, priority, takes) in enumerate(asked):
        key = f"{namespace}/{number}"
        queue.ready(key, rank(key, priority))
        heapq.heappush(waiting, -priority)
        if takes:
            key = queue.pop(0.0)
            assert asked[int(key.partition("/")[2])][1] == -heapq.heappop(waiting)
            queue.charge(COST)
    rest = [asked[int(key.partition("/")[2])][1] for key in turns(queue)]
    assert rest == [-each for each in sorted(waiting)]


class Counted:
    """`decide`, and on which pods it was called."""

    def __init__(self):
        self.pods = []

    def __call__(self, inventory, request, options):
        self.pods.append(request.pod.metadata.name)
        return first_fit(inventory, request, options)


async def share_impossible_claim(harness):
    await harness.add(kinds.RESOURCE_CLAIM, claim("shared", memory=1_000))
    for number in range(SHARERS):
        await harness.add(kinds.POD, pod(f"p{number:03}", claims=["shared"]))
    await harness.sleep(3)


async def patch_shared(harness, metadata):
    await harness.cluster.patch(kinds.RESOURCE_CLAIM, "shared", {"metadata": metadata}, namespace=SPACE)
    await harness.sleep(3)


def test_a_claim_of_many_pods_is_decided_once_and_not_once_per_pod():
    decide = Counted()

    async def story(harness):
        await share_impossible_claim(harness)
        assert len(decide.pods) <= 2
        decide.pods.clear()
        await patch_shared(harness, {"annotations": {"hami.io/gpu-scheduler-policy": "spread"}})
        assert len(decide.pods) <= 2, "a policy may change the answer, of all of them at once"

    play(story, decide=decide, **QUICK)


def test_metadata_that_nobody_reads_wakes_nobody():
    decide = Counted()

    async def story(harness):
        await share_impossible_claim(harness)
        decide.pods.clear()
        queue = harness.controller.metrics.queue.queue
        versions = {key: queue._items[key].version for key in queue.keys_in("no_room")}
        await patch_shared(harness, {"annotations": {"example.com/x": "y"}, "labels": {"a": "b"}})
        for name in ("p000", "p001"):
            patch = {"metadata": {"labels": {"a": "b"}, "annotations": {"example.com/x": "y"}}}
            await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE)
        await harness.sleep(3)
        assert decide.pods == []
        assert versions == {key: queue._items[key].version for key in queue.keys_in("no_room")}

    play(story, decide=decide, **QUICK)


def test_when_one_of_many_sharers_goes_nobody_is_tried():
    """It was in nobody's way."""
    decide = Counted()

    async def story(harness):
        await share_impossible_claim(harness)
        decide.pods.clear()
        for number in range(10):
            await harness.delete_pod(f"p{number:03}")
        await harness.sleep(3)
        assert decide.pods == []

    play(story, decide=decide, **QUICK)


def test_a_sharer_that_goes_makes_room_for_the_one_that_waits_on_its_node():
    """Two pods cannot be on one node together: one runs, the other waits."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("shared"))
        await harness.add(kinds.POD, *(pod(name, claims=["shared"], cpu="5") for name in ("a", "b")))
        await harness.sleep(30)
        assert [found.metadata.name for found in await harness.pods() if found.spec.node_name] == ["a"]
        await harness.delete_pod("a")
        await harness.bound("b", seconds=3)

    play(story, **QUICK)


def test_a_label_that_another_pod_keeps_away_wakes_its_pod():
    """The exception: labels decide where a pod with an anti-affinity to them runs."""

    async def story(harness):
        term = {"labelSelector": {"matchLabels": {"app": "noisy"}}, "topologyKey": "host"}
        away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await harness.add(kinds.POD, pod("quiet", nodeName="n0", affinity=away))
        await harness.add(kinds.RESOURCE_CLAIM, claim("mine"))
        noisy = pod("noisy", claims=["mine"])
        noisy["metadata"]["labels"] = {**noisy["metadata"].get("labels", {}), "app": "noisy"}
        await harness.add(kinds.POD, noisy)
        await harness.sleep(3)
        assert not (await harness.claim("mine")).results
        await harness.cluster.patch(kinds.POD, "noisy", {"metadata": {"labels": {"app": "calm"}}}, namespace=SPACE)
        await harness.sleep(3)
        assert (await harness.claim("mine")).results

    play(story, nodes=1, node_options={"labels": {"host": "n0"}}, **QUICK)
