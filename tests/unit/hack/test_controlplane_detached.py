"""hack/controlplane/detached.py without a cluster: what is recorded, found, and taken down."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from hack.controlplane import build, detached
from hack.controlplane.processes import start_time


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMI_DRA_CACHE", str(tmp_path))
    build.folder_of.cache_clear()
    yield tmp_path
    build.folder_of.cache_clear()


@pytest.fixture
def cluster(empty_cache):
    """A record as the supervisor writes it, of a process that only sleeps."""
    folder = empty_cache / "clusters" / "play"
    (folder / "logs").mkdir(parents=True)
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as supervisor:
        state = detached.Detached(
            "play", "1.37.1", "https://h:1", "/k", str(folder / "logs"), supervisor.pid, start_time(supervisor.pid)
        )
        (folder / "state.json").write_text(json.dumps(asdict(state)))
        yield state
        supervisor.kill()


def test_a_running_cluster_is_found_and_up_returns_it(cluster):
    assert detached.find("play") == cluster
    assert detached.running() == [cluster]
    assert detached.up("play", "1.37.1") == cluster
    with pytest.raises(detached.ClusterError, match=r"'play' is up with Kubernetes 1\.37\.1: take it down first"):
        detached.up("play", "1.36.4")


def test_spawned_programs_get_the_kubeconfig_and_end_with_the_cluster(cluster, empty_cache):
    script = "import os, time; print(os.environ['KUBECONFIG'], flush=True); time.sleep(300)"
    pid = detached.spawn("play", "controller", [sys.executable, "-c", script])
    log = empty_cache / "clusters" / "play" / "logs" / "controller.log"
    deadline = time.monotonic() + 20
    while log.read_text() != "/k\n":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    detached.down("play")
    assert start_time(pid) is None
    assert start_time(cluster.pid) is None
    assert list(empty_cache.iterdir()) == []


def test_a_record_of_a_dead_supervisor_is_not_a_cluster_and_spares_a_reused_pid(cluster, empty_cache):
    path = empty_cache / "clusters" / "play" / "state.json"
    path.write_text(json.dumps({**asdict(cluster), "pid": os.getpid(), "started": 1}))
    assert detached.find("play") is None
    detached.down("play")
    assert not path.parent.exists()
    with pytest.raises(detached.ClusterError, match="'play' is not up"):
        detached.spawn("play", "x", ["true"])


def test_down_without_a_cluster_does_nothing(empty_cache):
    detached.down("play")
    assert detached.running() == []


def test_names_cannot_leave_the_folder():
    with pytest.raises(detached.ClusterError, match="is no cluster name"):
        detached.down("../x")
