"""kube-scheduler binds in an order of its own: hard topology spread must hold in whatever order that is."""

import pytest

from controller.inventory.inventory import Inventory
from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.queueing_hints import Change, News
from controller.reconcile.queueing.refused_groups import Rank
from hami_dra.api import kinds
from tests.cards import node as node_object
from tests.cards import pod as pod_object
from tests.support.harness import SPACE, play, pod, template

ZONE = "topology.kubernetes.io/zone"
QUICK = {"quiet_time": 0.0, "probe": False}


def constraint(app="web", skew=1, **more):
    selector = {"matchLabels": {"app": app}}
    return {
        "maxSkew": skew,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
        **more,
    }


def zones(*names):
    inventory = Inventory()
    for name in names:
        inventory.node_changed(None, node_object(name, labels={ZONE: name}))
    return inventory


def spread_pod(name, *, app="web", **options):
    return pod_object(name, labels={"app": app}, topologySpreadConstraints=[constraint(app, **options)])


def assume(inventory, **nodes):
    for name, node in nodes.items():
        inventory.assume_pod(spread_pod(name), node)


def bind(inventory, **nodes):
    for name, node in nodes.items():
        inventory.pod_changed(None, pod_object(name, labels={"app": "web"}, nodeName=node))


def even(inventory, names="abc", **options):
    """The nodes on which one more pod would be even whatever comes first."""
    return [name for name in names if inventory.rules.fits_in_any_order(spread_pod("next", **options), name)]


@pytest.mark.parametrize(
    ("assumed", "bound", "expected"),
    [
        pytest.param({}, {}, ["a", "b", "c"], id="nothing yet"),
        pytest.param({"p": "a"}, {}, ["b", "c"], id="its own domain is full if the other comes first"),
        pytest.param({"p": "a", "q": "b", "r": "c"}, {}, [], id="a whole round is under way"),
        pytest.param({"q": "b", "r": "c"}, {"p": "a"}, [], id="one of it is bound"),
        pytest.param({}, {"p": "a", "q": "b", "r": "c"}, ["a", "b", "c"], id="all of it is bound"),
        pytest.param({"s": "a"}, {"p": "a", "q": "b", "r": "c"}, ["b", "c"], id="the next round"),
    ],
)
def test_what_is_decided_but_not_bound_counts_where_it_is_worse(assumed, bound, expected):
    inventory = zones("a", "b", "c")
    bind(inventory, **bound)
    assume(inventory, **assumed)
    assert even(inventory) == expected


@pytest.mark.parametrize(("skew", "app", "expected"), [(1, "web", "bc"), (2, "web", "abc"), (1, "other", "abc")])
def test_a_pod_without_constraints_leaves_room_to_one_that_is_not_bound_yet(skew, app, expected):
    """It may be bound first, and the other would be one too many in its domain then."""
    inventory = zones("a", "b", "c")
    inventory.assume_pod(spread_pod("p", skew=skew), "a")
    plain = pod_object("plain", labels={"app": app})
    assert [name for name in "abc" if inventory.rules.fits_in_any_order(plain, name)] == list(expected)
    bind(inventory, p="a")
    assert all(inventory.rules.fits_in_any_order(plain, name) for name in "abc")


def test_a_larger_skew_leaves_more_room():
    inventory = zones("a", "b", "c")
    for name, node in {"p": "a", "q": "b", "r": "c"}.items():
        inventory.assume_pod(spread_pod(name, skew=2), node)
    assert even(inventory, skew=2) == ["a", "b", "c"]
    assert even(inventory) == []


def test_pods_of_others_and_soft_constraints_do_not_matter():
    inventory = zones("a", "b", "c")
    assume(inventory, p="a", q="b", r="c")
    assert even(inventory, app="other") == ["a", "b", "c"]
    assert even(inventory, whenUnsatisfiable="ScheduleAnyway") == []
    bind(inventory, p="a", q="b", r="c")
    inventory.assume_pod(spread_pod("s", whenUnsatisfiable="ScheduleAnyway"), "a")
    assert even(inventory, whenUnsatisfiable="ScheduleAnyway") == ["a", "b", "c"]


def test_a_pod_is_not_in_its_own_way():
    inventory = zones("a", "b")
    moving = spread_pod("p")
    inventory.assume_pod(moving, "a")
    assert inventory.rules.fits_in_any_order(moving, "a")
    assert inventory.rules.fits_in_any_order(moving, "b")


def test_an_unknown_node_is_somebody_elses_problem():
    inventory = zones("a")
    assume(inventory, p="a")
    assert inventory.rules.fits_in_any_order(spread_pod("next"), "gone")


# --- the queue -----------------------------------------------------------------------------------------------------------


def test_only_groups_that_the_news_may_help_are_tried_and_one_pod_at_a_time():
    queue = Queue()
    for key, helps in (("x/a1", Change.PODS_MOVED), ("x/a2", Change.PODS_MOVED), ("x/b1", Change.QUOTA)):
        queue.ready(key, Rank(0, "", key))
        queue.pop(0.0)
        queue.no_room(key, key[:3].encode(), refused_at=-100.0, helps=helps)
    news = News()
    news.add(Change.PODS_MOVED, "y")
    queue.room_made(0.0, news)
    assert queue.pop(0.0) is None, "it is news in another namespace"
    news.add(Change.PODS_MOVED, "x")
    queue.room_made(0.0, news)
    queue.room_made(0.0, news)
    assert [queue.pop(0.0), queue.pop(0.0)] == ["x/a1", None]
    queue.placed("x/a1")
    assert queue.pop(0.0) == "x/a2"
    queue.placed("x/a2")
    assert queue.groups_in([b"x/a", b"x/b"]) == {b"x/b"}
    assert "x/b1" in queue.keys_in("no_room")


def test_a_group_is_reviewed_one_pod_at_a_time_however_many_there_are():
    queue = Queue()
    for number in range(3):
        key = f"p{number}"
        queue.ready(key, Rank(0, "", key))
        queue.pop(float(number))
        queue.no_room(key, b"a", refused_at=0.0 if number == 0 else None, helps=Change.QUOTA, review=300.0)
    assert queue.next_timer() == 300.0
    assert queue.pop(299.0) is None
    assert [queue.pop(300.0), queue.pop(300.0)] == ["p0", None]
    queue.no_room("p0", b"a", refused_at=300.0, helps=Change.QUOTA, review=600.0)
    assert queue.pop(500.0) is None
    assert queue.pop(600.0) is not None


def test_a_review_that_is_due_while_the_group_is_tried_waits_for_the_result():
    queue, news = Queue(), News()
    for key, rank in (("refused", Rank(0, "", "refused")), ("urgent", Rank(-5, "", "urgent"))):
        queue.ready(key, rank)
    assert queue.pop(0.0) == "urgent"
    assert queue.pop(0.0) == "refused"
    queue.no_room("refused", b"a", refused_at=0.0, helps=Change.QUOTA, review=300.0)
    news.add(Change.QUOTA)
    queue.room_made(299.0, news)
    queue.ready("urgent", Rank(-5, "", "urgent"))
    assert [queue.pop(301.0), queue.pop(301.0), queue.pop(301.0)] == ["urgent", "refused", None]
    queue.no_room("refused", b"a", refused_at=301.0, helps=Change.QUOTA, review=601.0)
    assert queue.pop(600.0) is None
    assert queue.pop(601.0) == "refused"


def test_the_earliest_review_of_equal_pods_counts():
    queue = Queue()
    for key, refused_at, review in (("first", 0.0, 300.0), ("second", None, 5.0), ("third", None, 200.0)):
        queue.ready(key, Rank(0, "", key))
        queue.pop(0.0)
        queue.no_room(key, b"a", refused_at=refused_at, helps=Change.QUOTA, review=review)
    assert queue.next_timer() == 5.0
    assert [queue.pop(5.0), queue.pop(5.0)] == ["first", None]


# --- the controller ------------------------------------------------------------------------------------------------------


def test_pods_are_allocated_in_rounds_that_kube_scheduler_may_bind_in_any_order():
    """The scheduler is played by hand: the last of a round is bound first."""
    names = [f"p{number}" for number in range(7)]

    async def allocated(harness):
        claims = {name: await harness.claims_of(name) for name in names}
        return [name for name, [claim] in claims.items() if claim.status.allocation is not None]

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 2))
        for number, zone in enumerate("abc"):
            await harness.add_node(f"n{number}", labels={ZONE: zone})
        for name in names:
            spec = pod(name, templates=["small"], gated=True, topologySpreadConstraints=[constraint()])
            spec["metadata"]["labels"] = {"app": "web"}
            await harness.add(kinds.POD, spec)
        for expected in (3, 6, 7):
            await harness.sleep(1)
            found = await allocated(harness)
            assert len(found) == expected
            assert not await harness.events("FilteringFailed")
            for name in reversed(found):
                if not await harness.node_of(name):
                    [claim] = await harness.claims_of(name)
                    (term,) = claim.status.allocation.node_selector.node_selector_terms
                    (node,) = term.match_fields[0].values
                    await harness.cluster.bind(name, SPACE, node)
        await harness.check_never_overcommitted()

    play(story, nodes=0, scheduler=False, **QUICK)
