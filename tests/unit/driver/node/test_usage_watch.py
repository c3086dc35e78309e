"""The loop that reads what containers use: it goes on whatever a reader does, and removes only what is stale."""

import asyncio
import contextlib

from hami_dra.driver.node.usage_watch import EVERY, UsageWatch
from hami_dra.kube.guard import LoopGuard
from hami_dra.monitor.readings import Sample
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer
from tests.support.node import at_once
from tests.support.virtual_time import run

CONTAINER = GrantedContainer(view="v", label="default/pod, container main")
SAMPLE = Sample({"v": ContainerUsage(last_kernel=5)})


class Scripted:
    source = "scripted"

    def __init__(self, stale=()):
        self.answers = []
        self.stale = list(stale)
        self.asked = []
        self.closed = 0

    def sample(self, containers):
        self.asked.append(list(containers))
        answer = self.answers.pop(0) if self.answers else SAMPLE
        if isinstance(answer, Exception):
            raise answer
        return answer

    def own_folders(self):
        if isinstance(self.stale, Exception):
            raise self.stale
        return self.stale

    def release(self):
        return ()

    def close(self):
        self.closed += 1


def watching(reader, seconds, *, containers=lambda: [CONTAINER], used=()):
    """The watch after so many seconds, and what its guard counted."""
    counted = []

    async def folders():
        return used

    watch = UsageWatch("nvidia", reader, containers, folders, at_once)

    async def scenario():
        task = asyncio.create_task(watch.run(300.0, LoopGuard("offers", counted.append)))
        await asyncio.sleep(seconds)
        readings = watch.monitoring.readings
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return readings

    return run(scenario()), counted


def test_containers_are_read_every_five_seconds_and_let_go_at_the_end():
    reader = Scripted()
    readings, counted = watching(reader, 4 * EVERY + 1)
    assert readings == SAMPLE.readings
    assert reader.asked == [[CONTAINER]] * 5
    assert (reader.closed, counted) == (1, [])


def test_a_reader_that_fails_is_asked_again():
    reader = Scripted()
    reader.answers = [SAMPLE, ZeroDivisionError("a mistake"), OSError("a folder")]
    readings, _ = watching(reader, 60)
    assert readings == SAMPLE.readings


def test_without_containers_nothing_is_read():
    reader = Scripted()
    watching(reader, 60, containers=list)
    assert reader.asked == []


def test_stale_folders_are_removed_and_one_that_cannot_be_is_tried_again(tmp_path):
    for name in ("stale", "used"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / f"{name}.hami-dra").touch()
    (tmp_path / "file").touch()
    bad = tmp_path / "file" / "below"
    reader = Scripted([str(bad), str(tmp_path / "stale"), str(tmp_path / "used")])
    _, counted = watching(reader, 301, used=[str(tmp_path / "used")])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "used", "used.hami-dra"]
    assert counted == ["offers"] * 2


def test_while_prepared_claims_are_not_known_nothing_is_stale(tmp_path):
    (tmp_path / "stale").mkdir()
    watching(Scripted([str(tmp_path / "stale")]), 301, used=None)
    assert (tmp_path / "stale").exists()


def test_a_reader_that_cannot_look_for_stale_folders_ends_nothing():
    reader = Scripted()
    reader.stale = ZeroDivisionError("a mistake")
    readings, counted = watching(reader, 301)
    assert readings == SAMPLE.readings
    assert counted == ["offers"] * 2
