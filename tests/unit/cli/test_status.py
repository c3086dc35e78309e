"""hami-dra status as a user types it."""

import copy
import json
import os
import pty
import subprocess
import sys

import pytest
import yaml
from msgspec.structs import replace

from controller.cli import state
from controller.cli.connection import Connection
from controller.views.overview import Reservation
from hami_dra.api.printable import in_bytes
from hami_dra.kube.documents import read_documents
from tests.support.commands import Typed
from tests.support.gang_objects import in_labelled_group, in_pod_group, named, pod_group
from tests.support.manifests import claim, cluster, part, pod, template
from tests.support.quotas import guarantee

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "cards", "namespace": "team"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "8192"}},
}


def holder(name, device, *, namespace="team", node="n1", memory="4Gi"):
    """A running pod and its allocated claim."""
    result = {"request": "gpu", "driver": "nvidia.hami.io", "pool": node, "device": device, "shareID": name}
    result["consumedCapacity"] = {"memory": memory, "cores": "30", "shares": "1"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "nvidia-vgpu.hami.io"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": "1"}],
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{name}", "namespace": namespace},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
        "status": {"phase": "Running"},
    }
    return [claim, pod]


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def file(tmp_path):
    def file(*raws):
        path = tmp_path / "state.yaml"
        path.write_text(
            yaml.safe_dump_all([raw for each in raws for raw in (each if isinstance(each, list) else [each])])
        )
        return path

    return file


@pytest.fixture
def some(file):
    return file(cluster("n1"), cluster("n2"), holder("a", "gpu-0"), holder("b", "gpu-0", namespace="other"), QUOTA)


def test_a_line_for_each_card_with_its_tenants_and_a_summary(hami_dra, some):
    lines = hami_dra("status", "-f", some).stdout.splitlines()
    assert lines[0].split() == ["NODE", "DEVICE", "PRODUCT", "MEMORY", "CORES", "SHARES", "HEALTH", "TENANTS"]
    first = lines[1].rstrip()
    assert first.startswith("n1")
    assert "8GiB/15GiB" in first
    assert "60/100" in first
    assert first.endswith("other/pod-b (4GiB, 30 cores)")
    assert lines[2].split() == ["team/pod-a", "(4GiB,", "30", "cores)"]
    vendor = next(line for line in lines if line.startswith("nvidia "))
    assert vendor.split()[:7] == ["nvidia", "2", "1", "8", "7", "1", "0"]


def test_json_is_the_whole_of_it_and_nothing_else_on_stdout(hami_dra, some):
    document = json.loads(hami_dra("status", "-f", some, "-o", "json").stdout)
    assert set(document) == {
        "cards",
        "nodes",
        "namespaces",
        "packing",
        "quotas",
        "unpublished",
        "problems",
        "vanished",
        "reservations",
    }
    assert document["cards"][0]["tenants"][1]["pod"] == "pod-a"
    assert document["quotas"] == [
        {"namespace": "team", "quota": "cards", "resource": "limits.nvidia.com/gpumem", "unit": "MiB", "used": 4096, "hard": 8192, "kind": "limit"}
    ]  # fmt: skip


@pytest.fixture
def kept(file):
    """A member of a gang has its device, and another one that misses keeps the gang from running."""
    [claim, waits] = holder("m0", "gpu-0")
    claim["status"]["allocation"]["allocationTimestamp"] = "2026-11-21T08:00:00Z"
    claim["status"]["reservedFor"] = []
    waits = in_labelled_group(waits, "train", 2)
    waits["metadata"]["creationTimestamp"] = "2026-11-21T07:57:00Z"
    del waits["spec"]["nodeName"], waits["status"]
    return file(cluster("n1"), [claim, waits], holder("other", "gpu-0"))


def test_tables_say_what_is_held_for_a_gang(hami_dra, kept):
    lines = hami_dra("status", "-f", kept).stdout.splitlines()
    [line] = [line for line in lines if "team/pod-m0" in line]
    assert line.endswith("team/pod-m0 (4GiB, 30 cores, held for gang team/train)")
    assert sum("held for" in line for line in lines) == 1
    lines = hami_dra("status", "--pending", "-f", kept).stdout.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
        "kube-scheduler has not bound it yet",
        "holds gpu-0 of n1 for gang team/train",
    ]
    assert lines[1].split()[:2] == ["team/pod-m0", "3m"]


def test_nothing_is_kept_for_pods_whose_group_schedules_them_one_by_one(hami_dra, file):
    [claim, waits] = holder("m0", "gpu-0")
    waits = in_pod_group(waits, "train")
    del waits["spec"]["nodeName"], waits["status"]
    group = {**pod_group("train", 2), "metadata": {"name": "train", "namespace": "team"}}
    both = file(cluster("n1"), [claim, waits, group])
    assert json.loads(hami_dra("status", "-f", both, "-o", "json").stdout)["reservations"]
    group["spec"]["schedulingPolicy"] = {"basic": {}}
    both = file(cluster("n1"), [claim, waits, group])
    assert json.loads(hami_dra("status", "-f", both, "-o", "json").stdout)["reservations"] == []


def test_json_says_what_is_kept_for_a_gang(hami_dra, kept):
    expected = {
        "kind": "gang", "namespace": "team", "name": "train", "holder": "gang team/train", "pod": "team/pod-m0", "node": "n1",
        "devices": ["nvidia.hami.io/n1/gpu-0"], "since": "2026-11-21T08:00:00Z", "until": "",
        "movesBegin": "",
    }  # fmt: skip
    assert json.loads(hami_dra("status", "-f", kept, "-o", "json").stdout)["reservations"] == [expected]
    elsewhere = hami_dra("status", "-f", kept, "-o", "json", "-n", "default").stdout
    assert json.loads(elsewhere)["reservations"] == []


@pytest.fixture
def led(monkeypatch, kept, file):
    """A cluster whose leader holds a place for a pod of another team, on a card that is in use and on one that is not."""
    place = Reservation(
        kind="reserved", namespace="big", name="one", holder="pod big/one", pod="big/one", node="n1",
        devices=("nvidia.hami.io/n1/gpu-0", "nvidia.hami.io/n1/gpu-1"), since="", until="2026-11-21T09:00:00+00:00",
    )  # fmt: skip
    documents = read_documents([kept])
    documents += read_documents([file([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "big"}}])])
    monkeypatch.setattr(Connection, "check", lambda _: None)
    monkeypatch.setattr(state, "read_state", lambda *_, **__: documents)
    monkeypatch.setattr(state, "ask_cluster", lambda *_, **__: (place,))
    return place


def test_what_the_leader_holds_is_shown_with_the_devices(hami_dra, led):
    lines = hami_dra("status").stdout.splitlines()
    held = [line for line in lines if "big/one (reserved for pod big/one, until 2026-11-21T09:00:00+00:00)" in line]
    assert len(held) == 2
    document = json.loads(hami_dra("status", "-o", "json").stdout)
    assert [each["pod"] for each in document["reservations"]] == ["team/pod-m0", "big/one"]
    assert [card["free"] for card in document["cards"] if card["node"] == "n1"] == [False, False, True, True]


@pytest.mark.parametrize(
    "case",
    [
        ("moves", "", "held by moves for pod big/one, until 2026-11-21T09:00:00+00:00)"),
        ("preemption", "", "held for pod big/one, until 2026-11-21T09:00:00+00:00)"),
        ("reserved", "2026-11-21T08:30:00+00:00", "; pods that are too young yet may move for it at 2026-11-21T08:30:00+00:00)"),
    ],
)  # fmt: skip
def test_a_place_is_called_what_it_is_and_says_what_it_waits_for(hami_dra, led, monkeypatch, case):
    kind, begin, words = case
    monkeypatch.setattr(state, "ask_cluster", lambda *_, **__: (replace(led, kind=kind, moves_begin=begin),))
    assert hami_dra("status").stdout.count(words) == 2
    (shown,) = [
        each for each in json.loads(hami_dra("status", "-o", "json").stdout)["reservations"] if each["pod"] == "big/one"
    ]
    assert (shown["kind"], shown["movesBegin"]) == (kind, begin)


def test_what_is_held_for_other_namespaces_is_not_shown_with_one(hami_dra, led):
    of = {name: json.loads(hami_dra("status", "-n", name, "-o", "json").stdout) for name in ("big", "team")}
    assert {name: [each["pod"] for each in found["reservations"]] for name, found in of.items()} == {
        "big": ["big/one"],
        "team": ["team/pod-m0"],
    }
    assert [card["device"] for card in of["big"]["cards"]] == ["gpu-0", "gpu-1"]
    assert "big/one" not in hami_dra("status", "-n", "team").stdout


def test_what_the_lease_says_cannot_command_the_terminal(hami_dra, led, monkeypatch):
    evil = replace(
        led, pod="big/\x1b[31m[red]", holder="pod \x1b]0;x\x07", until="\u202e\n\r", devices=(*led.devices, "\x00//")
    )
    monkeypatch.setattr(state, "ask_cluster", lambda *_, **__: (evil,))
    for words in ((), ("-o", "wide"), ("-o", "json"), ("--by", "node")):
        shown = hami_dra("status", *words)
        assert shown.code == 0
        assert not {"\x1b", "\x07", "\x00", "\u202e", "\r"} & {*shown.stdout}
    assert "[red]" in hami_dra("status").stdout


def test_by_node_and_by_namespace(hami_dra, some):
    nodes = hami_dra("status", "-f", some, "--by", "node").stdout.splitlines()
    assert [line.split()[0] for line in nodes[1:3]] == ["n1", "n2"]
    assert "ready" in nodes[1]
    namespaces = hami_dra("status", "-f", some, "--by", "namespace").stdout.splitlines()
    assert [line.split()[:5] for line in namespaces[1:3]] == [
        ["other", "nvidia", "1", "1", "1"],
        ["team", "nvidia", "1", "1", "1"],
    ]


def test_only_one_node_vendor_or_namespace(hami_dra, some):
    def cards(*options):
        return json.loads(hami_dra("status", "-f", some, "-o", "json", *options).stdout)["cards"]

    assert {card["node"] for card in cards("--node", "n2")} == {"n2"}
    assert len(cards("--vendor", "nvidia")) == len(cards("--vendor", "nvidia.hami.io")) == 8
    assert [card["device"] for card in cards("-n", "team")] == ["gpu-0"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vendor", "intel"], "vendors with devices here: nvidia"),
        (["--node", "n9"], "--node n9: there is no such node"),
        (["--watch"], "leave out --watch or -f"),
    ],
)
def test_what_is_not_there_is_named(hami_dra, some, options, words):
    result = hami_dra("status", "-f", some, *options)
    assert (result.code, result.stdout) == (2, "")
    assert words in result.stderr


def test_labels_that_no_node_has(hami_dra, some):
    text = hami_dra("status", "-f", some, "-l", "pool=a100").stdout
    assert text == "no node with the labels pool=a100 has devices; status without -l shows all devices\n"


def test_quota_lines(hami_dra, some, file):
    lines = hami_dra("status", "-f", some, "--quota").stdout.splitlines()
    assert lines[1].split() == ["team", "cards", "limits.nvidia.com/gpumem", "4096", "8192", "MiB", "limit"]
    owed = hami_dra("status", "-f", file(guarantee({"nvidia.com/gpu": 3}, namespace="team")), "--quota").stdout
    assert owed.splitlines()[1].split() == [
        "team",
        "guarantee",
        "limits.nvidia.com/gpu",
        "0",
        "3",
        "devices",
        "guarantee",
    ]
    assert "no ResourceQuota" in hami_dra("status", "-f", file(cluster("n1")), "--quota").stdout


def test_slices_alone_are_enough_and_it_says_what_it_assumed(hami_dra, file):
    slices = [raw for raw in cluster("n1") if raw["kind"] == "ResourceSlice"]
    result = hami_dra("status", "-f", file(slices), "--by", "node")
    assert "ready" in result.stdout
    assert "assumed n1, ready and empty" in result.stderr
    assert "no devices" in hami_dra("status", "-f", file(QUOTA)).stdout


def test_names_are_never_markup_and_a_held_device_that_is_gone_is_told(hami_dra, file):
    path = file(cluster("n1"), holder("[red]a", "gpu-0"), holder("b", "gpu-77"))
    shown = hami_dra("status", "-f", path).stdout
    assert "team/pod-[red]a (4GiB, 30 cores)" in shown
    assert "nvidia.hami.io/n1/gpu-77 is held by team/pod-b, but no slice publishes it" in shown


def test_what_a_driver_publishes_cannot_command_the_terminal(hami_dra, file):
    objects = cluster("n1")
    for raw in objects:
        for device in raw.get("spec", {}).get("devices", ()):
            device["attributes"]["hami.io/productName"] = {"string": "\x1b[2JT4"}
    shown = hami_dra("status", "-f", file(objects)).stdout
    assert "\\u001b[2JT4" in shown
    assert "\x1b" not in shown


def test_watching_needs_a_terminal_or_json(hami_dra):
    assert "use -o json" in hami_dra("status", "--watch").stderr


def test_watching_a_cluster_that_is_not_there_ends_at_once(tmp_path):
    """On a terminal, as a user has it: one sentence, no traceback, the screen as it was."""
    config = tmp_path / "config"
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    user = {"name": "u", "user": {"token": "t"}}
    here = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "clusters": [server], "users": [user], "contexts": [here], "current-context": "x"})
    )  # fmt: skip
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "controller.cli.main", "status", "--watch", "--kubeconfig", str(config)]
    ended = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(theirs)
    os.close(ours)
    assert ended.returncode == 2
    assert ended.stderr.startswith("hami-dra: list nodes: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "1B"), (1536, "1.5KiB"), (16 << 30, "16GiB"), (1 << 60, "1024PiB"), ((1 << 30) + 1, "1GiB")],
)
def test_bytes_for_people(amount, text):
    assert in_bytes(amount) == text


def test_pending_pods_and_what_they_wait_for(hami_dra, file):
    """Plugin, object and figure of the node filter, as in events; what is missing beside the nodes; cards that are taken."""
    port = pod("port", "template:t")
    port["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    runs = copy.deepcopy(port)
    runs["metadata"]["name"] = "web"
    runs["spec"] |= {"nodeName": "n1", "resourceClaims": []}
    volume = pod("volume", "template:t", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    large = pod("large", "c")
    fits = pod("fits", "c", namespace="other")
    path = file(
        *cluster("n1"),
        template("t"),
        claim("c", part(memory="90Gi")),
        claim("c", namespace="other"),
        runs,
        port,
        volume,
        large,
        fits,
    )
    found = json.loads(hami_dra("status", "--pending", "-f", path, "-o", "json").stdout)["pending"]
    by_pod = {each["pod"]: each for each in found["pods"]}
    assert "NodePorts: port 8080/TCP is taken by Pod default/web" in " ".join(by_pod["default/port"]["why"])
    assert by_pod["default/port"]["reasons"] == {"NodePortsTaken": 1}
    assert "PersistentVolumeClaim default/data does not exist; create it" in by_pod["default/volume"]["why"][0]
    assert [name for name, each in by_pod.items() if each["held"]] == ["default/volume"]
    assert by_pod["default/large"]["reasons"] == {"CardInsufficientMemory": 4}
    assert by_pod["other/fits"]["fits"]
    text = hami_dra("status", "--pending", "-n", "default", "-f", path).stdout
    assert "port 8080/TCP is taken by Pod default/web" in text
    assert "other/fits" not in text


def test_a_gang_that_waits_is_one_line_with_its_members_below(hami_dra, file):
    gang = [in_labelled_group(pod("m", "template:t"), "train", 9)]
    members = named(gang[0], *(f"m{i}" for i in range(9)))
    path = file(*cluster("n1"), template("t", part(memory="16Gi")), pod("alone", "c"), claim("c", part()), *members)
    lines = hami_dra("status", "--pending", "-f", path).stdout.splitlines()
    [line] = [each for each in lines if "of 9 members fit at once" in each]
    assert line.startswith("gang default/train ")
    assert line.count("gang default/train") == 1
    at = lines.index(line)
    assert [each.split()[0] for each in lines[at + 1 : at + 10]] == [f"default/m{i}" for i in range(9)]
    assert any(each.startswith("default/alone") and "it fits on n1" in each for each in lines)


def test_no_pod_waits(hami_dra, file):
    assert hami_dra("status", "--pending", "-f", file(*cluster("n1"))).stdout == "no pod waits for devices\n"
