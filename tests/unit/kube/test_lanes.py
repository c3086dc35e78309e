"""Work by object, side by side and fair between namespaces: `hami_dra.kube.lanes`."""

import asyncio
from functools import partial

import pytest

from hami_dra.kube.lanes import Lanes
from tests.support.virtual_time import run


class Bench:
    """Notes what begins, and how much runs at a time."""

    def __init__(self):
        self.begun = []
        self.running = 0
        self.most = 0

    async def work(self, name, seconds=1.0):
        self.begun.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1


def test_lanes_take_turns():
    async def story():
        bench = Bench()
        async with Lanes(width=1, total=1) as lanes:
            for key in ("a/1", "a/2", "a/3", "b/1", "c/1", "a/1"):
                lanes.add(key[0], key, partial(bench.work, key))
        # the last a/1 came when the first was in work: it is done again
        assert bench.begun == ["a/1", "b/1", "c/1", "a/2", "a/3", "a/1"]
        assert bench.most == 1

    run(story())


def test_a_lane_has_only_so_much_in_work_and_the_others_go_on():
    async def story():
        bench = Bench()
        async with Lanes(width=2, total=3) as lanes:
            for number in range(4):
                lanes.add("slow", f"s{number}", partial(bench.work, f"s{number}", 100.0))
            lanes.add("quick", "q", partial(bench.work, "q"))
            await asyncio.sleep(2)
            assert bench.begun == ["s0", "s1", "q"]
            assert len(lanes) == 2
            assert lanes.waits("slow", "s2")
        assert bench.begun == ["s0", "s1", "q", "s2", "s3"]
        assert len(lanes) == 0

    run(story())


def test_a_key_waits_once_and_is_never_in_work_twice():
    async def story():
        bench = Bench()
        async with Lanes(width=2) as lanes:
            for number in range(5):
                lanes.add("a", "k", partial(bench.work, number))
        assert bench.begun == [0, 4]
        assert bench.most == 1

    run(story())


def test_what_is_added_before_the_block_waits_for_it():
    async def story():
        bench = Bench()
        lanes = Lanes(width=1)
        lanes.add("a", "k", partial(bench.work, "early"))
        await asyncio.sleep(5)
        assert bench.begun == []
        async with lanes:
            pass
        assert bench.begun == ["early"]

    run(story())


def test_what_is_added_for_later_comes_then_or_with_the_next():
    async def story():
        bench = Bench()
        async with Lanes(width=1) as lanes:
            lanes.add_later(10.0, "a", "k", partial(bench.work, "later"))
            lanes.add_later(10.0, "a", "other", partial(bench.work, "other"))
            await asyncio.sleep(5)
            lanes.add("a", "k", partial(bench.work, "now"))
            await asyncio.sleep(10)
            lanes.add_later(10.0, "a", "k", partial(bench.work, "never: the block has ended"))
        await asyncio.sleep(20)
        assert bench.begun == ["now", "other"]

    run(story())


def test_the_fullest_lane_loses_its_youngest_first():
    async def story():
        bench = Bench()
        lanes = Lanes(width=1)
        for key in ("a1", "b1", "a2", "a3"):
            lanes.add(key[0], key, partial(bench.work, key))
        lanes.drop_one()
        lanes.drop_one()
        lanes.drop_one()
        async with lanes:
            pass
        assert bench.begun == ["b1"]

    run(story())


def test_an_error_ends_all_and_nothing_follows():
    async def story():
        bench = Bench()

        async def fail():
            raise ValueError("broken")

        lanes = Lanes(width=1)
        lanes.add("a", "1", fail)
        lanes.add("a", "2", partial(bench.work, "2"))
        lanes.add("b", "1", partial(bench.work, "b"))
        with pytest.raises(ExceptionGroup):
            async with lanes:
                await asyncio.Event().wait()
        assert "2" not in bench.begun

    run(story())
