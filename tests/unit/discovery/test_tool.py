"""Whatever a vendor's tool does, there is its output or an error that says what happened."""

import os
import time
from pathlib import Path

import pytest

from hami_dra.discovery.errors import ToolFailed, ToolMissing
from hami_dra.discovery.tool import Tool
from tests.support.tools import FakeTools


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def test_output_and_arguments(tools):
    tools.script("smi", 'echo "got: $*"; echo noise >&2')
    assert Tool("smi").run("-q", "-x") == "got: -q -x\n"


def test_a_tool_outside_path(tools, tmp_path):
    folder = tmp_path / "opt"
    folder.mkdir()
    tools.script("smi", "echo there").rename(folder / "smi")
    assert Tool("smi", (tmp_path / "nowhere", folder)).run() == "there\n"


def test_a_tool_that_is_not_there():
    with pytest.raises(
        ToolMissing, match=r"hami-no-such-smi was not found in PATH, /opt/x: .* driver is not installed"
    ):
        Tool("hami-no-such-smi", (Path("/opt/x"),)).run("-L")


def test_a_tool_whose_interpreter_is_missing(tools):
    tools.script("smi", "").write_text("#!/no/such/shell\n", encoding="utf-8")
    with pytest.raises(ToolMissing, match="cannot be started"):
        Tool("smi").run()


def test_a_file_that_is_no_program(tools, tmp_path):
    (tmp_path / "smi").write_text("text", encoding="utf-8")
    with pytest.raises(ToolFailed, match="smi cannot be started"):
        Tool("smi", (tmp_path,)).run()


def test_an_exit_code_carries_the_last_words(tools):
    tools.script("smi", "echo half; echo 'no driver' >&2; exit 3")
    with pytest.raises(ToolFailed, match=r'^smi -L ended with exit code 3; it said: "no driver"$'):
        Tool("smi").run("-L")


def test_an_exit_code_without_words_on_stderr(tools):
    tools.script("smi", "echo 'failed to open /dev/mxcd'; exit 1")
    with pytest.raises(ToolFailed, match="failed to open /dev/mxcd"):
        Tool("smi").run()


def test_an_exit_code_without_any_words(tools):
    tools.script("smi", "exit 1")
    with pytest.raises(ToolFailed, match="exit code 1; it said: nothing"):
        Tool("smi").run()


def test_long_words_are_cut(tools):
    tools.script("smi", "yes error | head -c 100000 >&2; exit 1")
    with pytest.raises(ToolFailed) as caught:
        Tool("smi").run()
    assert len(str(caught.value)) < 300


def test_a_crash(tools):
    tools.script("smi", "kill -SEGV $$")
    with pytest.raises(ToolFailed, match="smi was ended by signal 11"):
        Tool("smi").run()


def _gone(pid: int) -> bool:
    """Or dead and waiting for init to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_hang_is_killed_with_all_that_it_started(tools, tmp_path):
    pids = tmp_path / "pids"
    tools.script("smi", f"sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; trap '' TERM; echo half; wait")
    with pytest.raises(ToolFailed, match=r"smi -q gave no answer within 3 s and was killed"):
        Tool("smi", timeout=3).run("-q")
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        while not _gone(pid):  # the test's own time limit ends this
            time.sleep(0.01)


def test_a_tool_that_closes_its_output_and_stays(tools):
    tools.script("smi", "exec >&- 2>&-; sleep 1000")
    with pytest.raises(ToolFailed, match=r"smi did not end within 3 s and was killed"):
        Tool("smi", timeout=3).run()


def test_a_child_that_keeps_the_output_open_does_not_hold_the_answer_up(tools):
    tools.script("smi", "echo answer; sleep 1000 &")
    assert Tool("smi", timeout=60).run() == "answer\n"


def test_a_flood_is_cut_off(tools):
    tools.script("smi", "yes flood")
    with pytest.raises(ToolFailed, match="smi printed more than 100000 bytes and was killed"):
        Tool("smi", limit=100_000).run()


def test_much_output_on_both_sides_does_not_block(tools):
    tools.script("smi", "yes out | head -c 300000; yes err | head -c 300000 >&2; yes out | head -c 300000")
    assert len(Tool("smi").run()) == 600_000


def test_bytes_that_are_no_text(tools):
    tools.script("smi", r"printf '35\342\204\203 \377\n'")
    assert Tool("smi").run() == "35℃ �\n"


def test_the_tool_speaks_english_and_waits_for_nobody(tools, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    tools.script("smi", 'cat; echo "$LC_ALL $TERM"')
    assert Tool("smi").run() == "C dumb\n"
    assert os.environ["LC_ALL"] == "zh_CN.UTF-8"
