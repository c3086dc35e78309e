"""Run a vendor's command line tool and return its output, whatever the tool does.

Called by the back ends. In: the tool, its arguments. Out: its standard output as text, or an error
that says what to do. A tool that hangs is killed with everything it started; one that floods is cut
off.
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from hami_dra.discovery.errors import ToolFailed, ToolMissing, shown

_CHUNK: Final = 1 << 16
_LOOK: Final = 0.2
"""Seconds between checks whether the tool has ended while a child process keeps its output open."""
_GRACE: Final = 2.0
"""Seconds to wait for a killed tool: one that hangs inside the kernel never ends, and is left behind."""
_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"
_PLAIN: Final = {"LC_ALL": "C", "LANG": "C", "TERM": "dumb", "NO_COLOR": "1"}


class Tool(Struct, frozen=True):
    """One command line tool."""

    name: str
    folders: tuple[Path, ...] = ()
    """Further folders of the tool when it is not in PATH (a service of systemd has a short one)."""
    libraries: tuple[Path, ...] = ()
    """Folders of libraries that the dynamic linker does not know, such as in the driver's container."""
    timeout: float = 20.0
    """Seconds for one run."""
    limit: int = 8 << 20
    """Maximum bytes of output."""

    def run(self, *arguments: str) -> str:
        """Return the output; bytes that are not UTF-8 are replaced. Raises ToolMissing, ToolFailed."""
        said = " ".join([self.name, *arguments])
        with self.start(*arguments) as process:
            try:
                output, errors = self._collect(process, said)
            finally:
                end(process)
        if process.returncode != 0:
            words = errors.decode(errors="replace") or output.decode(errors="replace")
            raise ToolFailed(f"{said} {ending(process.returncode)}; it said: {last_words(words)}")
        return output.decode(errors="replace")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run it, with pipes for its output, until `end`; the caller reads them. Raises ToolMissing, ToolFailed."""
        command = [str(self._find()), *arguments]
        try:
            return subprocess.Popen(  # noqa: S603 (no shell; the arguments are constants of the back ends)
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | _PLAIN | self._library_path(),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ToolMissing(f"{command[0]} cannot be started: {error}") from error
        except OSError as error:
            raise ToolFailed(f"{command[0]} cannot be started: {error}") from error

    def _library_path(self) -> dict[str, str]:
        """Return LD_LIBRARY_PATH with the tool's folders last; nothing for a tool without any."""
        folders = [*filter(None, [os.environ.get(_LIBRARY_PATH, "")]), *map(str, self.libraries)]
        return {_LIBRARY_PATH: ":".join(folders)} if self.libraries else {}

    def _find(self) -> Path:
        found = shutil.which(self.name)
        if found:
            return Path(found)
        for folder in self.folders:
            if (folder / self.name).is_file():
                return folder / self.name
        places = ", ".join(["PATH", *map(str, self.folders)])
        raise ToolMissing(
            f"{self.name} was not found in {places}: this machine has no such hardware, or its driver is not installed "
            "or not mounted into this container"
        )

    def _collect(self, process: subprocess.Popen[bytes], said: str) -> tuple[bytes, bytes]:
        assert process.stdout is not None
        assert process.stderr is not None
        parts: dict[int, list[bytes]] = {process.stdout.fileno(): [], process.stderr.fileno(): []}
        deadline = time.monotonic() + self.timeout
        size = 0
        with selectors.DefaultSelector() as selector:
            for pipe in parts:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ToolFailed(f"{said} gave no answer within {self.timeout:g} s and was killed")
                ready = selector.select(min(left, _LOOK))
                if not ready and process.poll() is not None:
                    break
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fd)
                    parts[key.fd].append(chunk)
                    size += len(chunk)
                if size > self.limit:
                    raise ToolFailed(f"{said} printed more than {self.limit} bytes and was killed")
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"{said} did not end within {self.timeout:g} s and was killed") from None
        output, errors = (b"".join(chunks) for chunks in parts.values())
        return output, errors


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool, if it runs, and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        # Popen's own exit would wait without end for a process that not even SIGKILL ends
        process.returncode = -signal.SIGKILL


def last_words(text: str) -> str:
    """Return the end of a tool's output, for a message."""
    return shown(text.strip()[-1_000:]) if text.strip() else "nothing"


def ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
