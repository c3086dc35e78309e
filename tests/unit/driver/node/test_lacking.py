"""What containers on a node would lack: asked again and again, told once, published as an annotation."""

import asyncio
import contextlib
import logging

import pytest

from hami_dra.api.nodelacks import MOST, InvalidLacks, Lack, LackKind, decode, encode
from hami_dra.driver.node.lacking import LackWatch
from hami_dra.kube.guard import LoopGuard

CORE = Lack(LackKind.LIMITS, "HAMi-core is not installed")
CUDA = Lack(LackKind.LIBRARIES, "there is no libcuda")


async def watched(answers, caplog):
    """Texts as they were published, one for each change; `answers`: one for each time it was asked."""
    published, left = [], list(answers)
    done = asyncio.Event()

    def ask():
        answer = left.pop(0)
        if not left:
            done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(work):
        return work()

    watch = LackWatch("nvidia.hami.io", ask, lambda: published.append(watch.text))
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(watch.run(0.0, call, LoopGuard("offers", lambda _: None)))
        await done.wait()
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return published


async def test_it_is_published_when_it_changes_and_told_once(caplog):
    published = await watched([[CORE], [CORE], [CORE, CUDA], OSError("no disk"), [], []], caplog)
    assert [decode(text) if text else () for text in published] == [(CORE,), (CORE, CUDA), ()]
    reported = [record.message for record in caplog.records if record.name.endswith("lacking")]
    assert reported == [f"nvidia.hami.io: {lack.message}" for lack in (CORE, CUDA)]


async def test_that_nothing_is_lacking_is_news_to_what_an_earlier_driver_published(caplog):
    assert await watched([[], []], caplog) == [""]


def test_the_annotation_has_a_bound():
    text = encode([Lack(LackKind.LIMITS, "x" * 5_000)] * 100)
    assert len(text) <= MOST
    assert {lack.message for lack in decode(text)} == {"x" * 1_000}


@pytest.mark.parametrize(
    "text", ["", "{}", "[7]", '[{"kind":"other","message":""}]', "[" * 10_000, '[{"kind":"limits"}]']
)
def test_what_no_driver_writes_is_refused(text):
    with pytest.raises(InvalidLacks):
        decode(text)


def test_nothing_of_a_message_can_act_on_a_terminal():
    assert decode('[{"kind":"limits","message":"a\\u001b[2Jb\\nc"}]') == (Lack(LackKind.LIMITS, "a[2Jbc"),)
