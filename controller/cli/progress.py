"""Progress of long operations: on stderr, and only after two seconds.

Used by commands that read a cluster or place many pods. Shows a bar on a terminal and nothing
elsewhere: logs and pipes contain what a command says, not how it goes. Must not write to stdout.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE: Final = 2.0
"""Seconds before anything is shown."""


OnProgress = Callable[[str, int, int], None]
"""Receives progress: the current step, units done and in total (0 while unknown)."""


def quiet(what: str, done: int, total: int) -> None:
    """Ignore progress."""


class Progress:
    """A context manager to be called with each update."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, terminal: bool | None = None) -> None:
        self._clock = clock
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._began = clock()
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
        if self._terminal and self._clock() - self._began >= PATIENCE:
            self._draw(what, done, total)

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(what)
            self._bar.start()
        self._bar.update(self._task, description=what, completed=done, total=total or None)
