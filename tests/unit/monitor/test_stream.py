"""A tool that is kept running: its lines, its ends, and that nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hami_dra.discovery.errors import ToolFailed, ToolMissing
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.stream import Stream
from tests.support.tools import FakeTools


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


@pytest.fixture
def made():
    """Makes streams that end with the test."""
    streams = []

    def make(**options):
        streams.append(Stream(Tool("mon", **{"timeout": 20.0, **options}), ("-a", "1")))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


def wait_until_gone(pid):
    """Until the process is no more, or only waits for its parent to look."""
    path = Path(f"/proc/{pid}/stat")
    while True:
        try:
            if path.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)  # the kernel tells nobody but the parent


def test_each_line_is_given_once_and_the_last_one_counts(tools, made, tmp_path):
    os.mkfifo(tmp_path / "more")
    # both ends stay open, so that nothing is lost between two lines
    tools.script(
        "mon",
        f"exec 3<> '{tmp_path}/more'; echo \"one $*\"; echo; while read -r line <&3; do printf '%b\\n' \"$line\"; done",
    )
    stream = made()
    assert stream.next() == "one -a 1"
    (tmp_path / "more").write_text("two\n", encoding="utf-8")
    assert stream.next() == "two"
    (tmp_path / "more").write_text(r"three\nfour\n\0377" + "\n", encoding="utf-8")
    while (line := stream.next()) != "\ufffd":  # lines may arrive one by one
        assert line in {"three", "four"}


def test_one_that_ends_says_why_and_is_started_again(tools, made, tmp_path):
    count = tmp_path / "count"
    tools.script("mon", f"echo x >> '{count}'; echo 'no driver' >&2; exit 3")
    stream = made()
    for _ in range(2):
        with pytest.raises(ToolFailed, match=r"mon -a 1 ended with exit code 3; it said: \"no driver\""):
            stream.next()
    assert count.read_text(encoding="utf-8") == "x\nx\n"


def test_one_that_is_missing(tools, made):
    with pytest.raises(ToolMissing, match="mon was not found"):
        made().next()


def test_one_that_hangs_is_killed_with_what_it_started(tools, made, tmp_path):
    pids = tmp_path / "pids"
    tools.script("mon", f"sleep 300 & echo $! $$ > '{pids}.new'; mv '{pids}.new' '{pids}'; wait")
    with pytest.raises(ToolFailed, match=r"gave no report within 1 s and was killed"):
        made(timeout=1.0).next()
    for pid in pids.read_text(encoding="utf-8").split():
        wait_until_gone(pid)


def test_one_that_floods_is_killed(tools, made):
    tools.script("mon", "exec cat /dev/zero")
    with pytest.raises(ToolFailed, match="printed a line of more than 100000 bytes and was killed"):
        made(limit=100_000).next()


def test_closing_ends_a_wait_and_the_tool(tools, made, tmp_path):
    os.mkfifo(tmp_path / "ready")
    tools.script("mon", f"echo $$ > '{tmp_path}/ready'; exec sleep 300")
    stream = made(timeout=60.0)
    refused = []

    def wait():
        try:
            stream.next()
        except ToolFailed as error:
            refused.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    pid = (tmp_path / "ready").read_text(encoding="utf-8").strip()
    stream.close()
    waiting.join(30)
    assert len(refused) == 1
    wait_until_gone(pid)
    with pytest.raises(ToolFailed, match="is not read any more"):
        stream.next()
    stream.close()


DRIVER = """
import sys
from pathlib import Path
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.stream import Stream
print(Stream(Tool("mon", (Path(sys.argv[1]),), timeout=30.0)).next(), flush=True)
sys.stdin.read()
"""


def test_it_ends_with_a_driver_that_is_killed(tools):
    """Nobody reads what it prints any more."""
    tools.script("mon", "while echo $$; do sleep 0.05; done")
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tools.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        pid = driver.stdout.readline().strip()
        assert pid
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_until_gone(pid)
