"""Progress of long operations: on stderr, and only after two seconds.

Used by commands that read a cluster or place many pods. Shows a bar on a terminal, else a line at
intervals, so that logs stay short. Must not write to stdout.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE: Final = 2.0
"""Seconds before anything is shown."""
BETWEEN_LINES: Final = 10.0
"""Seconds between two lines without a terminal."""


class OnProgress(Protocol):
    """Receives progress: the current step, units done and in total (0 while unknown)."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def quiet(what: str, done: int, total: int) -> None:
    """Ignore progress."""


class Progress:
    """A context manager to be called with each update."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, terminal: bool | None = None) -> None:
        self._clock = clock
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._began = self._said = clock()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if now - self._began < PATIENCE:
            return
        if self._terminal:
            self._draw(what, done, total)
        elif now - self._said >= BETWEEN_LINES or self._said == self._began:
            self._said = now
            typer.echo(f"{what}: {done}" + (f" of {total}" if total else ""), err=True)

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(what)
            self._bar.start()
        self._bar.update(self._task, description=what, completed=done, total=total or None)
