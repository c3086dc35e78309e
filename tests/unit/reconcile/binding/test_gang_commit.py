"""The commit of a gang ends for all members, whatever is raised wherever, and no member stays written alone."""

import asyncio

import pytest

from controller.gangs import GangKey
from controller.reconcile.binding.claim_commit import Prepared
from controller.reconcile.binding.claim_writer import Rejected, Stale
from controller.reconcile.binding.commit_slots import CommitSlots
from controller.reconcile.binding.gang_commit import GangCommit
from controller.reconcile.runtime.writer import LeadershipLost
from hami_dra.api import kinds
from hami_dra.api.core import Pod, PodSpec, TopologySpreadConstraint
from hami_dra.api.meta import ObjectMeta
from hami_dra.kube.protocol import Unavailable
from tests.support.harness import play
from tests.support.virtual_time import run
from tests.unit.reconcile.gang_stories import QUICK, add_group, gates, grouped, holders, nodes, prepare

NAMES = ("m0", "m1", "m2")
ERRORS = [
    Stale("changed"),
    Rejected("a policy says no"),
    Unavailable("away"),
    LeadershipLost("another one leads"),
    TimeoutError(),
    ValueError("cannot be decoded"),
    KeyError("spec"),
    AssertionError(),
    RecursionError(),
    ExceptionGroup("several", [OSError("no route"), TypeError("none")]),
    asyncio.CancelledError(),
]


class Committer:
    """Raises `error` where `point` says so, for one member."""

    def __init__(self, point, error, victim):
        self.point, self.error, self.victim = point, error, victim
        self.written = set()

    async def _step(self, point, pod):
        await asyncio.sleep(0.1 * (1 + NAMES.index(pod.metadata.name)))
        if point == self.point and pod.metadata.name == self.victim:
            raise self.error

    async def prepare(self, pod, _decision, *, nominate):
        await self._step("prepare", pod)
        return Prepared(pod, ())

    async def allocate(self, pod, _decision, _prepared):
        await self._step("allocate", pod)
        self.written.add(pod.metadata.name)
        return ()

    async def take_back(self, _written, pod):
        await self._step("take_back", pod)
        self.written.discard(pod.metadata.name)


def committed(point, error, *, victim="m1", spread=False):
    """Returns results by member, and who stayed written."""
    constraints = (TopologySpreadConstraint(when_unsatisfiable="DoNotSchedule"),) if spread else ()
    pods = [
        Pod(
            metadata=ObjectMeta(name=name, namespace="team", uid=name),
            spec=PodSpec(topology_spread_constraints=constraints),
        )
        for name in NAMES
    ]
    committer, ended = Committer(point, error, victim), []

    async def check():
        if point in ("check", "take_back"):
            raise error if point == "check" else ValueError("first")
        return ""

    async def scenario():
        slots = CommitSlots(8, 5.0, 8)
        commit = GangCommit(
            GangKey("labels", "team", "train"), pods, committer, slots, check=check, done=lambda: ended.append(True)
        )

        async def one(pod):
            try:
                return await commit.commit(pod, None)
            finally:
                commit.member_ended()

        tasks = [asyncio.create_task(one(pod)) for pod in pods]
        _, waiting = await asyncio.wait(tasks, timeout=60)
        assert not waiting, "a member waits for ever"
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(scenario())
    assert ended == [True]
    return dict(zip(NAMES, results, strict=True)), committer.written


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("point", ["prepare", "allocate", "check"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_member_waits_and_none_stays_written(error, point, spread):
    results, written = committed(point, error, spread=spread)
    assert all(isinstance(result, BaseException) for result in results.values())
    if not isinstance(error, asyncio.CancelledError):  # that one ends the process: the next leader takes it back
        assert written == set()
    assert sum(isinstance(result, Stale) for result in results.values()) >= 2
    assert [type(error)] == list({type(result) for result in results.values()} - {Stale}) or isinstance(error, Stale)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_member_that_cannot_be_taken_back_hinders_no_other(error):
    results, written = committed("take_back", error)
    assert type(results["m1"]) is type(error)
    assert written <= {"m1"}


def test_without_an_error_all_are_written():
    results, written = committed("nowhere", None)
    assert [type(result) for result in results.values()] == [Pod, Pod, Pod]
    assert written == set(NAMES)


@pytest.mark.parametrize("error", [Unavailable("away"), TimeoutError(), ValueError("cannot be decoded")])
def test_the_gang_runs_once_its_group_can_be_read(error):
    """The PodGroup is read before the gates are lifted; the first time that fails."""

    async def story(harness):
        class Wrapped:
            raised = 0

            def __getattr__(self, name):
                call = getattr(harness.cluster, name)
                if name != "list":
                    return call

                async def listed(kind, *arguments, **options):
                    if kind is kinds.POD_GROUP and options.get("field_selector") and not Wrapped.raised:
                        Wrapped.raised += 1
                        raise error
                    return await call(kind, *arguments, **options)

                return listed

        harness.start(through=Wrapped(), **QUICK)
        await add_group(harness, "train", 3)
        await prepare(harness, *map(grouped, NAMES))
        await harness.sleep(90)
        assert Wrapped.raised == 1
        assert all((await nodes(harness)).values())
        assert await gates(harness) == set()
        assert await holders(harness) == set(NAMES)

    play(story, controller=False)
