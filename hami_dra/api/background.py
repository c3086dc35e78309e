"""Calls that may block for as long as hardware or a network hangs, in threads that delay no end of the process.

`asyncio.to_thread` and executors wait for their threads when a program ends.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T], name: str | None = None) -> Future[T]:
    """Return the outcome to come of the call. Giving it up leaves the thread to end on its own."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            outcome.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return outcome
