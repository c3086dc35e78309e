"""hack/controlplane/processes.py: children are measured, paused, stopped, and never outlive their owner."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from hack.controlplane import processes
from hack.controlplane.processes import Component, ComponentDied, Guardian, end_group, start_time


@pytest.fixture
def guardian():
    one = Guardian()
    yield one
    one.close()


@pytest.fixture
def component(tmp_path, guardian):
    made = []

    def make(script):
        made.append(Component("tool", ["/bin/sh", "-c", script], tmp_path / "tool.log", guardian))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.kill()


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_stop_asks_first(component, tmp_path):
    tool = component(f"trap 'echo asked > {tmp_path}/asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    until(lambda: "ready" in tool.tail())
    tool.stop()
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert not tool.running


def test_stop_insists_on_a_deaf_one_and_takes_its_children_along(component, tmp_path):
    tool = component(f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/child; wait; sleep 300")
    until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = int((tmp_path / "child").read_text())
    tool.stop(grace=0.1)
    until(lambda: start_time(child) is None)
    assert not tool.running


def test_a_paused_one_can_be_resumed_and_stopped(component):
    tool = component("exec sleep 300")  # one process: a shell that waits for a vfork cannot be stopped at once
    tool.pause()
    until(lambda: processes._status_fields(tool.pid)[0] == "T")
    assert tool.running
    tool.resume()
    until(lambda: processes._status_fields(tool.pid)[0] != "T")
    tool.pause()
    tool.stop()
    assert not tool.running


def test_one_that_dies_by_itself_is_noticed_and_can_be_started_again(component):
    tool = component("echo 'no such flag' >&2; exit 3")
    until(lambda: not tool.running)
    with pytest.raises(ComponentDied, match="no such flag"):
        tool.check()
    tool.start()
    until(lambda: tool.tail().count("no such flag") == 2)


def test_cpu_time_adds_up_over_lives(component):
    tool = component("while :; do :; done")
    until(lambda: tool.cpu_seconds() > 0.05)
    tool.kill()
    former = tool.cpu_seconds()
    assert former > 0.05
    tool.start()
    until(lambda: tool.cpu_seconds() > former + 0.05)
    assert tool.memory_bytes() > 0


def test_nothing_outlives_an_owner_that_is_killed(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import time, pathlib
                from hack.controlplane.processes import Component, Guardian
                folder = pathlib.Path({str(folder)!r})
                one = Component("one", ["sleep", "300"], folder / "log", Guardian(folder))
                one.start()
                print(one.pid, flush=True)
                time.sleep(300)
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        child = int(owner.stdout.readline())
        assert start_time(child)
        owner.send_signal(signal.SIGKILL)
    until(lambda: start_time(child) is None)
    until(lambda: not folder.exists())


def test_end_group_spares_a_process_that_got_the_same_pid():
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        started = start_time(process.pid)
        end_group(process.pid, started - 1)
        assert process.poll() is None
        end_group(process.pid, started)
        assert process.wait() == -signal.SIGTERM


def test_a_stopped_guardian_takes_no_more_processes(tmp_path):
    guardian = Guardian()
    guardian.close()
    one = Component("one", ["sleep", "300"], tmp_path / "log", guardian)
    with pytest.raises(RuntimeError, match="this cluster has been stopped"):
        one.start()
    assert not one.running


def test_free_ports_are_free_and_below_the_ephemeral_ones():
    ports = [processes.free_port() for _ in range(20)]
    lowest = int(processes._EPHEMERAL_PORTS.read_text().split()[0])
    for port in ports:
        assert port < lowest
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_process_that_is_gone_has_no_times():
    with subprocess.Popen(["true"]) as process:
        pass
    assert start_time(process.pid) is None
    assert processes.cpu_seconds(process.pid) == 0
    assert processes.memory_bytes(process.pid) == 0
    assert start_time(os.getpid()) is not None
