"""One object's failure never ends a loop, whatever it is; only what must end it passes."""

import asyncio
import logging

import pytest

from hami_dra.kube.guard import LoopGuard


class Lost(Exception):
    pass


def test_an_error_is_logged_with_the_object_counted_and_contained(caplog):
    counted = []
    guard = LoopGuard("undo", counted.append)
    with guard.each("evil/pod"):
        raise RecursionError("too deep")
    assert counted == ["undo"]
    (record,) = caplog.records
    assert "undo: evil/pod" in record.getMessage()
    assert record.exc_info


def test_the_same_error_of_the_same_object_is_logged_once(caplog):
    counted = []
    guard = LoopGuard("undo", counted.append)
    for _ in range(3):
        with guard.each("evil/pod"):
            raise ValueError("again")
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert len(counted) == 3


@pytest.mark.parametrize("error", [Lost(), ExceptionGroup("tasks", [Lost(), ValueError()])])
def test_what_must_end_the_loop_passes(error):
    guard = LoopGuard("undo", passing=(Lost,))
    with pytest.raises(type(error)), guard.each("some/pod"):
        raise error


def test_a_group_of_other_errors_is_contained():
    with LoopGuard("undo", passing=(Lost,)).each("some/pod"):
        raise ExceptionGroup("tasks", [ValueError()])


def test_a_cancellation_passes():
    with pytest.raises(asyncio.CancelledError), LoopGuard("undo").each("some/pod"):
        raise asyncio.CancelledError
