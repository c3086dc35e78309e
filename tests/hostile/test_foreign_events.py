"""Events that a tenant writes under the names of the controller's own: before it, or in place of one that it deletes.

The controller reads no events. What is asked here: does it write into one of somebody else, and is its own one lost?
"""

import asyncio

import pytest

from controller.reconcile.runtime import messages
from controller.reconcile.runtime.events import Events
from controller.reconcile.runtime.metrics import Metrics
from controller.settings.controller import ObservabilitySettings
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.kube.protocol import Forbidden, Invalid, Unavailable
from tests.support.steered_cluster import SteeredCluster
from tests.support.virtual_time import VirtualClock, run

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1"))
NOTES = ["", "x" * 1024, "\x1b[2J\u202e", "needs more"]


def foreign(name, note):
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "hami.io/controller",
        "reportingInstance": "somebody",
        "action": "Allocate",
        "reason": "InvalidPolicy",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p", "uid": "u1"},
        "note": note,
        "type": "Warning",
    }


def playing(story):
    async def scenario():
        clock = VirtualClock()
        cluster = SteeredCluster(now=clock.wall)
        events = Events(cluster, clock, Metrics(), ObservabilitySettings(identity="controller-0"))
        task = asyncio.create_task(events.run())
        await story(cluster, events)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    run(scenario())


async def speak(events, minutes=1):
    for _ in range(minutes * 12):
        events.report(kinds.POD, POD, messages.warning("InvalidPolicy", "bad"))
        await asyncio.sleep(5)


async def stored(cluster, instance):
    found = (await cluster.list(kinds.EVENT)).items
    raws = [await cluster.get_raw(kinds.EVENT, event.metadata.name, "ns") for event in found]
    return [raw for raw in raws if raw["reportingInstance"] == instance]


@pytest.mark.parametrize("note", NOTES)
def test_a_name_that_was_guessed_costs_one_event_and_the_next_has_another_name(note):
    async def story(cluster, events):
        async def be_quicker(request):
            if request.label == "create events":
                cluster.hooks.clear()
                await cluster.create(kinds.EVENT, foreign(request.body["metadata"]["name"], note), namespace="ns")

        cluster.hooks.append(be_quicker)
        await speak(events)
        (theirs,) = await stored(cluster, "somebody")
        assert theirs["note"] == note
        assert "series" not in theirs
        (ours,) = await stored(cluster, "controller-0")
        assert ours["note"] == "bad"

    playing(story)


@pytest.mark.parametrize("note", NOTES)
def test_an_event_that_somebody_puts_in_the_place_of_ours_is_not_touched(note):
    async def story(cluster, events):
        await speak(events)
        (ours,) = await stored(cluster, "controller-0")
        name = ours["metadata"]["name"]
        await cluster.delete(kinds.EVENT, name, namespace="ns")
        await cluster.create(kinds.EVENT, foreign(name, note), namespace="ns")
        await speak(events, minutes=30)
        (theirs,) = await stored(cluster, "somebody")
        assert "series" not in theirs
        (ours,) = await stored(cluster, "controller-0")
        assert ours["series"]["count"] > 1

    playing(story)


@pytest.mark.parametrize("error", [Forbidden("exceeded quota: count/events"), Invalid("no"), Unavailable("no answer")])
@pytest.mark.parametrize("applied", [False, True])
def test_events_that_are_refused_are_not_tried_without_end_and_come_when_they_may(error, applied):
    async def story(cluster, events):
        cluster.fail_next(error, kind=kinds.EVENT, applied=applied, times=10**6)
        await speak(events, minutes=60)
        assert cluster.requests["create events"] <= 60  # one a minute
        cluster.clear_faults()
        await speak(events, minutes=30)
        assert await stored(cluster, "controller-0")

    playing(story)
