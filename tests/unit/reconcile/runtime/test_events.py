"""Events: HAMi's texts, series instead of floods, and nobody ever waits for them."""

import asyncio

import pytest

from controller.decide import Decision, Score, Unschedulable
from controller.reconcile.runtime import messages
from controller.reconcile.runtime.events import Events
from controller.reconcile.runtime.metrics import Metrics
from controller.settings.controller import ObservabilitySettings
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.kube.protocol import Forbidden, NotFound, Unavailable
from tests.support.steered_cluster import SteeredCluster
from tests.support.virtual_time import VirtualClock, run

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1"))


def test_the_texts_are_those_of_hami():
    decision = Decision("n1", (), Score(1.0), (("n1", 3.14159), ("n2", 2.0)), 2, 5)
    assert messages.placed(decision) == messages.Message(
        "Normal", "FilteringSucceed", "find fit node(n1), 5 nodes not fit, 2 nodes fit(n1:3.14,n2:2.00)"
    )
    refusal = Unschedulable(
        "no node fits: needs more",
        reasons={"CardInsufficientMemory": 8, "NodeNotReady": 1},
        node_counts={"NodeNotReady": 1, "CardInsufficientMemory": 2},
    )
    message = messages.refused(POD, refusal)
    assert message.note == (
        "no node fits: needs more. Run: hami-dra explain p -n ns [2 nodes CardInsufficientMemory, 1 node NodeNotReady]"
    )
    assert message.reason == "FilteringFailed"


def test_an_error_is_told_alone_and_long_notes_are_cut():
    message = messages.refused(POD, Unschedulable("no node fits", error="x" * 2000))
    assert len(message.note) == 1024
    assert message.note.endswith("...")


def playing(story):
    async def scenario():
        clock = VirtualClock()
        cluster = SteeredCluster(now=clock.wall)
        metrics = Metrics()
        events = Events(cluster, clock, metrics, ObservabilitySettings(identity="controller-0"))
        task = asyncio.create_task(events.run())
        try:
            await story(cluster, events, metrics)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])

    run(scenario())


async def sent(cluster):
    found = (await cluster.list(kinds.EVENT)).items
    return [await cluster.get_raw(kinds.EVENT, e.metadata.name, e.metadata.namespace) for e in found]


def test_an_event_says_who_did_what_to_whom():
    async def story(cluster, events, _metrics):
        events.report(kinds.POD, POD, messages.warning("InvalidPolicy", "bad"))
        await asyncio.sleep(1)
        [event] = await sent(cluster)
        assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "ns", "uid": "u1"}
        assert event["metadata"]["namespace"] == "ns"
        assert event["metadata"]["name"].startswith("p.")
        assert (event["type"], event["reason"], event["note"], event["action"]) == (
            "Warning",
            "InvalidPolicy",
            "bad",
            "Allocate",
        )
        assert event["reportingController"] == "hami.io/controller"
        assert event["reportingInstance"] == "controller-0"
        assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
        assert "series" not in event

    playing(story)


def test_an_object_without_namespace_has_its_events_in_default():
    async def story(cluster, events, _metrics):
        rule = Pod(metadata=ObjectMeta(name="rule", uid="u2"))
        events.report(kinds.DEVICE_TAINT_RULE, rule, messages.warning("FenceRestored", "x"))
        await asyncio.sleep(1)
        [event] = await sent(cluster)
        assert event["metadata"]["namespace"] == "default"
        assert "namespace" not in event["regarding"]

    playing(story)


def test_repetitions_become_a_series_that_is_counted_up_once_a_minute():
    async def story(cluster, events, _metrics):
        for _ in range(50):
            events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(61)
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(1)
        [event] = await sent(cluster)
        assert event["series"]["count"] >= 51
        assert event["series"]["lastObservedTime"].startswith("2026-01-01T00:01:01")
        assert cluster.requests["create events"] == 1
        assert cluster.requests["patch events"] == 1

    playing(story)


def test_other_texts_and_other_pods_are_other_events():
    async def story(cluster, events, _metrics):
        other = Pod(metadata=ObjectMeta(name="q", namespace="ns", uid="u2"))
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no memory"))
        events.report(kinds.POD, other, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(1)
        assert len(await sent(cluster)) == 3

    playing(story)


def test_after_a_while_the_same_again_is_a_new_event():
    async def story(cluster, events, _metrics):
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(601)
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(1)
        assert len(await sent(cluster)) == 2

    playing(story)


def test_what_went_well_is_told_slowly_while_commits_are_under_way():
    async def story(cluster, events, metrics):
        busy = True
        events.yield_to(lambda: busy)
        for number in range(200):
            pod = Pod(metadata=ObjectMeta(name=f"p{number}", namespace="ns", uid=f"u{number}"))
            events.report(kinds.POD, pod, messages.Message("Normal", "FilteringSucceed", "find fit node(n1)"))
        await asyncio.sleep(20)
        assert 65 <= cluster.requests["create events"] <= 75
        busy = False
        await asyncio.sleep(10)
        assert cluster.requests["create events"] == 200

    playing(story)


def test_what_went_well_is_told_slowly_and_after_every_warning():
    async def story(cluster, events, metrics):
        well = messages.Message("Normal", "FilteringSucceed", "find fit node(n1)")
        for number in range(200):
            pod = Pod(metadata=ObjectMeta(name=f"p{number}", namespace="ns", uid=f"u{number}"))
            events.report(kinds.POD, pod, well)
        await asyncio.sleep(5)
        assert 140 <= cluster.requests["create events"] <= 160
        for number in range(100):
            pod = Pod(metadata=ObjectMeta(name=f"q{number}", namespace="ns", uid=f"v{number}"))
            events.report(kinds.POD, pod, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(1)
        assert sum(event["type"] == "Warning" for event in await sent(cluster)) == 100
        await asyncio.sleep(20)
        assert cluster.requests["create events"] == 300
        assert metrics.registry.get_sample_value("hami_dra_events_dropped_total") == 0

    playing(story)


def test_a_flood_is_throttled_and_the_rest_dropped_and_counted():
    async def story(cluster, events, metrics):
        for number in range(5000):
            pod = Pod(metadata=ObjectMeta(name=f"p{number}", namespace="ns", uid=f"u{number}"))
            events.report(kinds.POD, pod, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(2)
        assert 300 <= cluster.requests["create events"] <= 360
        await asyncio.sleep(100)
        assert cluster.requests["create events"] == 2000
        assert metrics.registry.get_sample_value("hami_dra_events_dropped_total") == 3000

    playing(story)


@pytest.mark.parametrize("error", [Forbidden("no right"), NotFound("namespace is terminating")])
def test_an_event_that_cannot_be_sent_stops_nothing(error):
    async def story(cluster, events, _metrics):
        cluster.fail_next(error, verb="create", kind=kinds.EVENT)
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "lost"))
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "arrives"))
        await asyncio.sleep(1)
        assert [event["note"] for event in await sent(cluster)] == ["arrives"]

    playing(story)


def test_a_long_sentence_is_cut_before_the_command_and_the_codes():
    refusal = Unschedulable("no node fits: " + "x" * 2000, node_counts={"CardInsufficientMemory": 40})
    note = messages.refused(POD, refusal).note
    assert len(note) == 1024
    assert note.endswith("xxx.... Run: hami-dra explain p -n ns [40 nodes CardInsufficientMemory]")
    decision = Decision("n1", (), Score(1.0), (("n1", 3.0),), 30, 5)
    assert messages.placed(decision).note == "find fit node(n1), 5 nodes not fit, 30 nodes fit(n1:3.00,...)"


def test_other_figures_of_the_same_reason_are_an_event_of_their_own_only_after_a_while():
    async def story(cluster, events, _metrics):
        for nodes in range(3, 13):
            code = "CardInsufficientMemory"
            events.report(kinds.POD, POD, messages.Message("Warning", "FilteringFailed", f"{nodes} nodes", code))
            await asyncio.sleep(2)
        assert [event["note"] for event in await sent(cluster)] == ["3 nodes"]
        await asyncio.sleep(15)
        assert [event["note"] for event in await sent(cluster)] == ["3 nodes", "12 nodes"]
        events.report(
            kinds.POD, POD, messages.Message("Warning", "FilteringFailed", "2 nodes", "CardInsufficientMemory")
        )
        await asyncio.sleep(1)
        assert len(await sent(cluster)) == 2
        await asyncio.sleep(30)
        assert [event["note"] for event in await sent(cluster)] == ["3 nodes", "12 nodes", "2 nodes"]

    playing(story)


def test_figures_of_a_refusal_are_not_told_after_the_pod_was_placed():
    async def story(cluster, events, _metrics):
        for nodes in (3, 4):
            code = "CardInsufficientMemory"
            events.report(kinds.POD, POD, messages.Message("Warning", "FilteringFailed", f"{nodes} nodes", code))
        events.report(kinds.POD, POD, messages.Message("Normal", "FilteringSucceed", "find fit node(n1)"))
        await asyncio.sleep(100)
        assert [event["note"] for event in await sent(cluster)] == ["3 nodes", "find fit node(n1)"]

    playing(story)


def test_a_moment_that_is_rounded_down_does_not_put_news_off_for_ever():
    async def story(cluster, events, _metrics):
        await asyncio.sleep(8.8)  # 8.8 + 30 - 8.8 is less than 30
        for nodes in (3, 4):
            events.report(
                kinds.POD, POD, messages.Message("Warning", "FilteringFailed", f"{nodes} nodes", "NumaNotFit")
            )
        await asyncio.sleep(31)
        assert [event["note"] for event in await sent(cluster)] == ["3 nodes", "4 nodes"]

    playing(story)


def about(namespace, number):
    return Pod(metadata=ObjectMeta(name=f"p{number}", namespace=namespace, uid=f"{namespace}-{number}"))


def test_a_namespace_whose_events_hang_delays_nobody_elses():
    async def story(cluster, events, _metrics):
        async def hang(request):
            if request.kind is kinds.EVENT and request.namespace == "evil":
                await asyncio.sleep(4.9)
                raise Unavailable("a webhook does not answer")

        cluster.hooks.append(hang)
        for number in range(100):
            events.report(kinds.POD, about("evil", number), messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(1)
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        events.report(kinds.POD, POD, messages.Message("Normal", "FilteringSucceed", "find fit node(n1)"))
        await asyncio.sleep(2)
        assert [event["reason"] for event in await sent(cluster)] == ["FilteringFailed", "FilteringSucceed"]

    playing(story)


def test_a_namespace_with_thousands_of_events_loses_its_own():
    async def story(cluster, events, metrics):
        for number in range(5000):
            events.report(kinds.POD, about("evil", number), messages.warning("FilteringFailed", "no room"))
        events.report(kinds.POD, POD, messages.warning("FilteringFailed", "no room"))
        await asyncio.sleep(2)
        assert "ns" in {event["metadata"]["namespace"] for event in await sent(cluster)}
        assert metrics.registry.get_sample_value("hami_dra_events_dropped_total") >= 3000

    playing(story)
