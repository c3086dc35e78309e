"""A tool that prints one report a line until it is stopped, kept running. Used by `neuron`, in a thread.

It ends with this process in every case: `close` kills it with everything it started; if this
process is killed, its output pipe has no reader any more, so the next line it prints ends it
(SIGPIPE). A tool that ends, hangs or floods is killed and started again at the next request.
"""

import os
import subprocess
import threading
import time
from typing import Final

from hami_dra.discovery.errors import ToolFailed
from hami_dra.discovery.tool import Tool, end, ending, last_words

_CHUNK: Final = 1 << 16
_WORDS: Final = 2_000
"""Bytes kept of its standard error."""


class Stream:
    """A running tool. Call `next` from one thread at a time, `close` from any."""

    def __init__(self, tool: Tool, arguments: tuple[str, ...] = ()) -> None:
        """Prepare the tool; `next` starts it.

        `tool.timeout`: seconds to wait for a report; `tool.limit`: most bytes of one.
        """
        self._tool = tool
        self._arguments = arguments
        self._news = threading.Condition()
        self._closed = False
        self._run: _Run | None = None

    def next(self) -> str:
        """Return the last complete line, once; at the first call wait for one. Raises ToolMissing, ToolFailed."""
        said = " ".join([self._tool.name, *self._arguments])
        with self._news:
            if self._closed:
                raise ToolFailed(f"{said} is not read any more")
            if self._run is None:
                self._run = _Run(self._tool.start(*self._arguments), self._tool.limit, self._news)
            run = self._run
            deadline = time.monotonic() + self._tool.timeout
            while not run.line and not run.over and (left := deadline - time.monotonic()) > 0:
                self._news.wait(left)
            line, run.line = run.line, b""
            if line and not run.over:
                return line.decode(errors="replace")
            self._run = None
            over, flooded = run.over, run.flooded
        end(run.process)
        run.let_go()
        if flooded:
            raise ToolFailed(f"{said} printed a line of more than {self._tool.limit} bytes and was killed")
        if over:
            words = run.words.decode(errors="replace")
            raise ToolFailed(f"{said} {ending(run.process.returncode)}; it said: {last_words(words)}")
        raise ToolFailed(f"{said} gave no report within {self._tool.timeout:g} s and was killed")

    def close(self) -> None:
        with self._news:
            self._closed = True
            run, self._run = self._run, None
            if run is not None:
                run.over = True
                self._news.notify_all()
        if run is not None:
            end(run.process)
            run.let_go()


class _Run:
    """One process of the tool. Its fields change under the lock of `news`."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int, news: threading.Condition) -> None:
        self.process = process
        self.line = b""
        """The last complete line that has not been read."""
        self.words = b""
        """The end of its standard error."""
        self.over = False
        self.flooded = False
        self._limit = limit
        self._news = news
        self._readers = [
            threading.Thread(target=self._read_reports, name="reports", daemon=True),
            threading.Thread(target=self._read_words, name="words", daemon=True),
        ]
        for reader in reversed(self._readers):  # the first waits for the second
            reader.start()

    def let_go(self) -> None:
        """Join the readers after the process ended.

        They have reached the end of their pipes by then; if a child of the tool holds a pipe open,
        they are left behind.
        """
        for reader in self._readers:
            reader.join(1.0)
        if not any(reader.is_alive() for reader in self._readers):
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _read_reports(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while chunk := os.read(self.process.stdout.fileno(), _CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            whole = [line for line in lines if line.strip()]
            with self._news:
                if whole:
                    self.line = whole[-1]
                    self._news.notify_all()
                if max(len(rest), len(self.line)) > self._limit:
                    self.flooded = True
                    break
        if not self.flooded:
            self._readers[1].join(1.0)  # so that its last error output is included
        with self._news:
            self.over = True
            self._news.notify_all()

    def _read_words(self) -> None:
        assert self.process.stderr is not None
        while chunk := os.read(self.process.stderr.fileno(), _CHUNK):
            with self._news:
                self.words = (self.words + chunk)[-_WORDS:]
