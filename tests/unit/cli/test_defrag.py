"""hami-dra defrag as a user types it. What it plans is for tests/unit/insight/test_defrag.py."""

import json

import pytest
import yaml

from controller.cli.snapshot import snapshot_text
from tests.docs.commands_in_docs import ROOT, blocks
from tests.support.commands import Typed
from tests.support.scattered import Scattered


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def state(tmp_path):
    found = Scattered(n1=[16, 16], n2=[16, 16])
    found.protect(2, "web", app="web")
    found.run("a", "n1", [0], 4, labels={"app": "web"})
    found.run("b", "n1", [1], 4)
    found.run("c", "n2", [0], 4)
    found.run("d", "n2", [1], 4, owners=[])
    found.wait("late", 2, 16)
    path = tmp_path / "state.yaml"
    path.write_text(yaml.safe_dump_all(found.raws))
    return path


POLICY = ("--node-policy", "binpack", "--device-policy", "binpack")


def test_a_table_that_begins_with_the_conclusion(hami_dra, state):
    result = hami_dra("defrag", "-f", state, "--free-nodes", 1, *POLICY)
    assert (result.code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "Moving 2 pods (8 GiB of device memory) frees 1 node."
    assert lines[1] == "Cordon until all moves are done: n1"
    assert lines[3].split() == ["MOVE", "POD", "FROM", "DEVICES", "TO", "DEVICES", "MEMORY,", "GIB", "DEVICES", "FREED"]
    assert lines[4].split()[:4] == ["1", "default/a", "n1", "gpu-0"]
    assert "default/web        2           1" in result.stdout
    assert "1 pod            no controller would create it again" in result.stdout
    assert "0 → 1" in lines[-1]


def test_the_page_shows_what_is_printed(hami_dra, state):
    (shown,) = [text for language, text in blocks(ROOT / "docs/defrag.md") if language == "text"]
    printed = hami_dra("defrag", "-f", state, "--free-nodes", 1, "--device-policy", "binpack").stdout
    assert shown.splitlines() == printed.splitlines()


def test_json_and_yaml_say_the_same_and_names_are_the_pods_in_order(hami_dra, state):
    words = ("defrag", "-f", state, "--for", "late", *POLICY, "-o")
    document = json.loads(hami_dra(*words, "json").stdout)
    assert document == yaml.safe_load(hami_dra(*words, "yaml").stdout)
    assert document["goal"] == "a place for pod default/late"
    assert (document["asked"], document["gained"]) == (1, 1)
    assert document["stays"] == {"default/d": "no controller would create it again"}
    pods = hami_dra(*words, "name").stdout.split()
    assert pods == [f"pod/{each['pod']}" for each in document["moves"]]
    assert pods == ["pod/default/a", "pod/default/b"]


def test_the_exit_status_tells_that_the_goal_is_not_reached(hami_dra, state):
    result = hami_dra("defrag", "-f", state, "--free-nodes", 2)
    assert (result.code, result.stderr) == (1, "")
    assert "frees 1 node, of 2 asked for: " in result.stdout
    assert hami_dra("defrag", "-f", state, "--free-nodes", 1, "--moves", 1).code == 1
    assert hami_dra("defrag", "-f", state, "--whole-devices", 2, *POLICY).code == 0


def test_without_a_goal_it_says_what_a_few_moves_bring(hami_dra, state):
    result = hami_dra("defrag", "-f", state, *POLICY)
    assert result.code == 0
    assert result.stdout.startswith("100% of the free nvidia capacity is on partly used devices. Moving 2 pods (8 GiB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--for", "a"], "--for default/a: the pod waits for no node (it is on n1)"),
        (["--for", "team/x"], "no Pod team/x; namespace team has no pod"),
        (["--for", "late", "--free-nodes", "1"], "give one of --for, --whole-devices and --free-nodes"),
        (["--free-nodes", "0"], "'--free-nodes'"),
        (["--moves", "x"], "'--moves'"),
        (["--whole-devices", "1", "--of-devices", "2"], "--of-devices: it counts nodes, so give --free-nodes"),
        (["--node-policy", "pack"], "--node-policy: 'pack' is not one of"),
        (["--free-nodes", "1", "--execute", "--yes"], "--execute: it moves pods of a live cluster, so leave out -f"),
    ],
)
def test_what_cannot_be_done(hami_dra, state, options, message):
    result = hami_dra("defrag", "-f", state, *options)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--execute", "--yes"], "--execute: give a goal: --for, --whole-devices or --free-nodes"),
        (["--free-nodes", "1", "--execute"], "nothing was moved. Give --yes"),
        (["--free-nodes", "1", "--execute", "--yes", "--patience", "0s"], "--patience: '0s' is out of range"),
    ],
)
def test_what_cannot_be_carried_out(hami_dra, options, message):
    result = hami_dra("defrag", *options)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_snapshot_says_which_pods_have_local_volumes(hami_dra, tmp_path):
    found = Scattered(n1=[16], n2=[16])
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}]
    found.run("a", "n1", [0], 4, volumes=[*volumes, {"name": "keys", "secret": {"secretName": "hidden"}}])
    found.run("b", "n2", [0], 4, owners=[])
    path = tmp_path / "state.yaml"
    path.write_text(yaml.safe_dump_all(found.raws))
    text = snapshot_text(found.documents())
    assert "hidden" not in text
    (pod,) = [each for each in json.loads(text)["items"] if each["metadata"]["name"] == "a"]
    assert pod["spec"]["volumes"] == [{"emptyDir": {}, "name": "cache"}]
    taken = tmp_path / "taken.json"
    taken.write_text(text)
    for file in (path, taken):
        result = hami_dra("defrag", "-f", file, "--free-nodes", 1)
        assert "the data of its volume cache would be lost" in result.stdout
