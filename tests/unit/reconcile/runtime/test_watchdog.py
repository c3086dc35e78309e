"""When a main loop counts as stuck, what is noted about it, and what the next leader makes of the note."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from controller.cluster.pods.gang_key import GangKey
from controller.reconcile.runtime.heartbeat import Deciding, Heartbeat
from controller.reconcile.runtime.stalled import (
    PodRef,
    forgotten,
    hold_seconds,
    namespace_end,
    noted,
    read,
    seconds_left,
    taken_back,
)
from controller.reconcile.runtime.watchdog import EXIT_CODE, Watchdog
from hami_dra.api import kinds, names
from hami_dra.kube.lease import LeaderElector
from hami_dra.kube.lease_timings import Timings
from hami_dra.vendors.annotations import MOST_LENGTH
from tests.cards import pod as stored_pod
from tests.support.controller_settings import controller_settings
from tests.support.harness import DRIVER, SPACE, claim, play, pod
from tests.support.steered_cluster import SteeredCluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ELECTED = {"quiet_time": 0.0, "probe": False, "leader_election": True, "lease": Timings()}
ANNOTATION = names.STALLED_DECISIONS
A, B = PodRef(SPACE, "a", "uid-a"), PodRef(SPACE, "b", "uid-b")


class Story:
    """A watchdog whose ticks are played one by one. The elector leads on a memory cluster."""

    def __init__(self, **settings):
        self.now = 1_000.0
        self.heartbeat = Heartbeat()
        self.heartbeat.in_term = True
        self.cluster = SteeredCluster()
        self.elector = LeaderElector(self.cluster, "ns", "lease", identity="me", clock=lambda: self.now)
        self.exit_codes = []
        self.watchdog = Watchdog(
            self.heartbeat,
            controller_settings(managed=frozenset({DRIVER}), **settings).leadership,
            self.elector,
            wall=lambda: NOW,
            clock=lambda: self.now,
            end=self.exit_codes.append,
        )

    async def renew(self):
        assert await self.elector._attempt()

    async def ticks(self, seconds, *, beating=False, tick=0.5):
        for _ in range(int(seconds / tick)):
            self.now += tick
            self.heartbeat.beats += beating
            await self.watchdog._check()

    async def lease(self):
        return await self.cluster.get(kinds.LEASE, "lease", "ns")

    async def entries(self):
        return read((await self.lease()).metadata.annotations.get(ANNOTATION, ""))


async def test_a_decision_over_the_limit_gives_the_lease_back_with_a_note():
    story = Story()
    await story.renew()
    await story.ticks(30, beating=True)
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.ticks(19)
    assert story.exit_codes == []
    await story.ticks(2)
    assert story.exit_codes[0] == EXIT_CODE
    lease = await story.lease()
    assert lease.spec.holder_identity == ""
    [entry] = await story.entries()
    assert (entry.key, entry.uid, entry.count, entry.by) == (A.key, A.uid, 1, "me")
    assert not story.elector.holds()
    assert not await story.elector._attempt(), "who has given up never leads again"


async def test_a_note_is_made_early_and_taken_back_when_the_decision_ends():
    story = Story()
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.ticks(6)
    await story.renew()
    assert [entry.name for entry in await story.entries()] == ["a"]
    story.heartbeat.deciding = None
    await story.ticks(1, beating=True)
    await story.renew()
    assert await story.entries() == ()
    assert ANNOTATION not in (await story.lease()).metadata.annotations


async def test_a_process_that_was_stopped_or_a_machine_that_slept_is_nobodys_fault():
    story = Story()
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.ticks(1)
    for _ in range(5):
        story.now += 10_000  # one tick, in which this thread did not run either
        await story.watchdog._check()
    assert story.exit_codes == []
    assert story.watchdog.unhealthy() == ()


async def test_many_decisions_and_a_long_one_that_lets_the_loop_run_are_no_stall():
    story = Story()
    await story.renew()
    for serial in range(200):
        story.heartbeat.deciding = Deciding(A, serial)
        await story.ticks(0.5)
        await story.ticks(0.5, beating=True)
    await story.ticks(100, beating=True)  # of the last one, in pieces
    assert story.exit_codes == []


async def test_what_is_no_decision_gets_longer_and_names_no_pod():
    story = Story()
    await story.renew()
    await story.ticks(55)
    assert story.exit_codes == []
    story.heartbeat.deciding = Deciding(A, 1)  # the loop goes on with a pod after it stood still for a minute
    await story.ticks(3)
    story.heartbeat.deciding = None
    await story.renew()
    await story.ticks(5)
    assert story.exit_codes[0] == EXIT_CODE
    assert await story.entries() == ()


async def test_a_stall_in_the_terms_of_another_pod_is_noted_about_that_pod():
    story = Story()
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.ticks(6)
    await story.renew()
    assert [entry.key for entry in await story.entries()] == [A.key]
    story.heartbeat.term_reading.pod = stored_pod("x", namespace="evil", uid="uid-x")
    await story.ticks(1)
    await story.renew()
    assert [(entry.key, entry.uid) for entry in await story.entries()] == [("evil/x", "uid-x")]
    assert story.watchdog.unhealthy() == ()
    await story.ticks(14)
    assert story.exit_codes[0] == EXIT_CODE
    assert [entry.key for entry in await story.entries()] == ["evil/x"]


async def test_a_stall_in_a_handler_names_the_object_and_holds_nobody_back():
    story = Story()
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.ticks(1, beating=True)
    story.heartbeat.deciding = None  # decided, well before
    story.heartbeat.handling = lambda: "ResourceClaim evil/x"
    await story.ticks(59)
    assert "handling ResourceClaim evil/x" in story.watchdog.unhealthy()[0]
    await story.ticks(2)
    assert story.exit_codes[0] == EXIT_CODE
    assert await story.entries() == ()


def test_the_object_that_is_handled_is_known_while_listeners_run():
    async def story(harness):
        await harness.sleep(1)
        informers, told = harness.controller.informers, []
        informers.pods.subscribe(lambda _old, _new: told.append(informers.handling()))
        await harness.add(kinds.POD, pod("a"))
        await harness.sleep(1)
        assert {*told} == {"Pod default/a"}
        assert informers.handling() == ""

    play(story)


async def test_a_standby_and_a_single_replica_are_only_reported():
    story = Story()
    story.heartbeat.in_term = False
    await story.ticks(100)
    assert story.exit_codes == []
    assert story.watchdog.unhealthy() == ("the main loop has not run for 100 s, in no decision",)
    story.heartbeat.deciding = Deciding(A, 1)
    assert "deciding on pod default/a (uid-a)" in story.watchdog.unhealthy()[0]
    await story.ticks(1, beating=True)
    assert story.watchdog.unhealthy() == ()


async def test_a_leader_that_lost_its_lease_meanwhile_leaves_word_for_the_one_that_has_it():
    story = Story()
    await story.renew()
    story.heartbeat.deciding = Deciding(A, 1)
    await story.cluster.patch(kinds.LEASE, "lease", {"spec": {"holderIdentity": "other"}}, namespace="ns")
    await story.ticks(21)
    assert story.exit_codes[0] == EXIT_CODE
    assert (await story.lease()).spec.holder_identity == "other"
    assert [entry.name for entry in await story.entries()] == ["a"]


async def test_the_heartbeat_counts_how_long_the_loop_was_held_up():
    heartbeat, late = Heartbeat(), []
    task = asyncio.create_task(heartbeat.run(lambda: ["not synced"], late.append))
    await asyncio.sleep(0.01)
    assert (heartbeat.beats, heartbeat.unready) == (1, ("not synced",))
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.8
    while loop.time() < end:
        pass
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    [seconds] = late
    assert seconds >= 1.0


# --- the note ------------------------------------------------------------------------------------------------------------


def test_the_note_counts_doubles_and_is_forgotten():
    text = noted("", A, NOW, "x")
    assert noted(text, A, NOW, "x") == text, "a write without an answer is repeated"
    text = noted(noted(text, B, NOW, "x"), A, NOW + timedelta(minutes=6), "y")
    assert {(entry.name, entry.count, entry.by) for entry in read(text)} == {("a", 2, "y"), ("b", 1, "x")}
    assert [entry.name for entry in read(forgotten(text, read(text)[1:]))] == ["b"]
    assert forgotten(text, read(text)) == ""
    assert [hold_seconds(count) for count in (0, 1, 2, 3, 1_000_000)] == [300, 300, 600, 1200, 4 * 3600]


def test_what_was_to_be_forgotten_in_a_former_term_takes_nobody_elses_note():
    """An edit waits for the next write of this process, and that may be the one with which it takes over again."""
    mine = noted("", A, NOW, "me")
    since = noted(mine, A, NOW + timedelta(minutes=9), "other")
    assert taken_back(mine, A, "me") == ""
    assert taken_back(since, A, "me") == since
    assert forgotten(since, read(mine)) == since


def test_a_note_never_outgrows_an_annotation_and_keeps_the_latest():
    text = ""
    for number in range(200):
        text = noted(text, PodRef("n" * 63, f"{'p' * 250}{number}", f"{number:036}"), NOW, "i" * 100)
    assert 10_000 < len(text) < MOST_LENGTH
    assert read(text)[-1].uid == f"{199:036}"


@pytest.mark.parametrize("text", ["x", "{}", "[1]", '[{"name": 1}]', "[" * 100_000, '"\\ud800"', "[]"])
def test_what_cannot_be_read_is_as_if_nobody_had_written_it(text):
    assert read(text) == ()
    assert len(read(noted(text, A, NOW, "x"))) == 1
    assert forgotten(text, read(text)) == ""


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("2026-01-01T00:00:00Z", 300),
        ("2025-12-31T23:58:00Z", 180),
        ("2025-01-01T00:00:00Z", 0),
        ("2027-01-01T00:00:00Z", 300),  # a clock that goes wrong holds nobody back for longer
        ("yesterday", 300),
        ("2026-01-01T00:00:00", 300),
    ],
)
def test_the_time_is_read_by_clocks_that_differ(at, left):
    [entry] = read(json.dumps([{"namespace": "n", "name": "a", "uid": "u", "count": 1, "at": at, "by": "x"}]))
    assert seconds_left(entry, NOW) == left


def test_when_a_namespace_is_free_again():
    assert namespace_end([5.0, 9.0]) is None
    assert namespace_end([5.0, 9.0, 7.0]) == 5.0
    assert namespace_end([5.0, 9.0, 7.0, 8.0]) == 7.0


# --- the next leader -------------------------------------------------------------------------------------------------------


async def note(harness, *pod_names, count=1):
    text = ""
    for name in pod_names:
        found = (await harness.pod(name)).metadata
        for _ in range(count):
            text = noted(text, PodRef(SPACE, name, found.uid), harness.clock.wall() + timedelta(seconds=_), "former")
    patch = {"metadata": {"name": names.CONTROLLER, "annotations": {ANNOTATION: text}}, "spec": {}}
    await harness.cluster.create(kinds.LEASE, patch, namespace=names.SYSTEM_NAMESPACE)


async def lease_note(harness):
    lease = await harness.cluster.get(kinds.LEASE, names.CONTROLLER, names.SYSTEM_NAMESPACE)
    return read(lease.metadata.annotations.get(ANNOTATION, ""))


def test_a_noted_pod_waits_its_time_while_others_go_on_and_is_then_decided():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        await harness.add(kinds.POD, pod("a", claims=["a"]), pod("b", claims=["b"]))
        await note(harness, "a", count=2)
        harness.start(**ELECTED)
        await harness.bound("b", seconds=20)
        await harness.sleep(500)
        assert not await harness.node_of("a")
        assert harness.metric("hami_dra_held_back_pods") == 1
        [event] = await harness.events("DecisionStalled")
        assert "this pod held up the controller until it gave up (2 times in a row)" in event["note"]
        assert "it is tried again at 00:10:0" in event["note"]
        await harness.bound("a", seconds=110)
        await harness.sleep(5)
        assert await lease_note(harness) == ()
        assert harness.metric("hami_dra_held_back_pods") == 0

    play(story, controller=False)


def test_three_noted_pods_hold_their_namespace_back_until_one_of_them_is_gone():
    async def story(harness):
        await harness.add(kinds.NAMESPACE, {"metadata": {"name": "other"}})
        await harness.add(kinds.RESOURCE_CLAIM, *(claim(name) for name in "abcd"))
        elsewhere = claim("e")
        elsewhere["metadata"]["namespace"] = "other"
        await harness.add(kinds.RESOURCE_CLAIM, elsewhere)
        await harness.add(kinds.POD, *(pod(name, claims=[name]) for name in "abcd"))
        other = pod("e", claims=["e"])
        other["metadata"]["namespace"] = "other"
        await harness.add(kinds.POD, other)
        await note(harness, "a", "b", "c")
        harness.start(**ELECTED)

        async def other_is_bound():
            return bool((await harness.cluster.get(kinds.POD, "e", "other")).spec.node_name)

        await harness.until(other_is_bound, seconds=20)
        await harness.sleep(30)
        assert not await harness.node_of("d")
        [event] = [each for each in await harness.events("DecisionStalled") if each["regarding"]["name"] == "d"]
        assert "3 pods of this namespace held up" in event["note"]
        await harness.delete_pod("b")
        await harness.bound("d", seconds=10)
        assert not await harness.node_of("a")
        await harness.sleep(3)  # the next renewal
        assert {entry.name for entry in await lease_note(harness)} == {"a", "c"}

    play(story, controller=False)


def test_an_operator_frees_a_pod_by_removing_the_annotation():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("a", claims=["a"]))
        await note(harness, "a")
        harness.start(**ELECTED)
        await harness.sleep(20)
        assert not await harness.node_of("a")
        patch = {"metadata": {"annotations": {ANNOTATION: None}}}
        await harness.cluster.patch(kinds.LEASE, names.CONTROLLER, patch, namespace=names.SYSTEM_NAMESPACE)
        await harness.bound("a", seconds=10)

    play(story, controller=False)


def test_a_noted_gang_waits_as_a_whole_whichever_pod_was_named():
    """Deleting the named pod does not hand the gang on to the next one."""

    async def story(harness):
        def member(name):
            body = pod(name, claims=[name], gated=True)
            body["metadata"]["labels"] = {names.POD_GROUP_NAME: "g", names.POD_GROUP_MIN_AVAILABLE: "1"}
            return body

        await harness.add(kinds.RESOURCE_CLAIM, *(claim(name) for name in "abcde"))
        await harness.add(kinds.POD, *(member(name) for name in "abc"), pod("e", claims=["e"]))
        found, key = await harness.pod("a"), GangKey("labels", SPACE, "g")
        text = noted("", PodRef.of(found, key), harness.clock.wall(), "former")
        assert noted(text, PodRef.of(await harness.pod("b"), key), harness.clock.wall(), "later").count("uid") == 1
        patch = {"metadata": {"name": names.CONTROLLER, "annotations": {ANNOTATION: text}}, "spec": {}}
        await harness.cluster.create(kinds.LEASE, patch, namespace=names.SYSTEM_NAMESPACE)
        harness.start(**ELECTED)
        await harness.bound("e", seconds=20)
        await harness.delete_pod("a")
        await harness.add(kinds.POD, member("d"))
        await harness.sleep(200)
        assert [await harness.node_of(name) for name in "bcd"] == ["", "", ""]
        assert harness.metric("hami_dra_held_back_pods") == 1
        assert any("gang default/g held up" in each["note"] for each in await harness.events("DecisionStalled"))
        await harness.bound("b", "c", "d", seconds=110)
        await harness.sleep(5)
        assert await lease_note(harness) == ()

    play(story, controller=False)


def test_a_noted_gang_is_forgotten_with_its_last_member():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        body = pod("a", claims=["a"], gated=True)
        body["metadata"]["labels"] = {names.POD_GROUP_NAME: "g", names.POD_GROUP_MIN_AVAILABLE: "2"}
        await harness.add(kinds.POD, body)
        text = noted(
            "", PodRef.of(await harness.pod("a"), GangKey("labels", SPACE, "g")), harness.clock.wall(), "former"
        )
        patch = {"metadata": {"name": names.CONTROLLER, "annotations": {ANNOTATION: text}}, "spec": {}}
        await harness.cluster.create(kinds.LEASE, patch, namespace=names.SYSTEM_NAMESPACE)
        harness.start(**ELECTED)
        await harness.sleep(30)
        assert await lease_note(harness)
        await harness.delete_pod("a")
        await harness.sleep(30)
        assert not await lease_note(harness)

    play(story, controller=False)
