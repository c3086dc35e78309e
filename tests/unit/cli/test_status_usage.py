"""hami-dra status --usage: which pods are asked, what comes of their answers, and what is shown."""

import asyncio

import msgspec
import pytest

from controller.cli import container_usage, status_tables
from controller.cli.connection import Connection
from controller.cli.tables import TextLayout
from controller.views.overview import ContainerUse, Overview
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.kube.protocol import Forbidden, Listing
from tests.support import expositions
from tests.support.commands import Typed
from tests.unit.dashboard.test_page import card

USE = ContainerUse(
    namespace="team", pod="p", container="main", memory_used=3 << 30, memory_limit=4 << 30, utilization=12.4
)
OTHER = ContainerUse(namespace="other", pod="p", container="main", utilization=0.0)


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


def driver(name, node, phase="Running"):
    ports = [{"name": "webhook", "containerPort": 9443}, {"name": "http", "containerPort": 8080}]
    raw = {
        "metadata": {"name": name, "namespace": "system"},
        "spec": {"nodeName": node, "containers": [{"name": "driver", "ports": ports[: 1 if name == "other" else 2]}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(raw, Pod)


class Cluster:
    """Answers by the name of the pod; an exception is raised."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.selected = {}
        self.closed = False

    async def list(self, kind, **selected):
        self.selected = selected
        pods = [driver(name, f"node-{name}") for name in self.answers] + [driver("waits", "", "Pending")]
        return Listing(tuple(pods), "1")

    async def read_text(self, path):
        self.asked.append(path)
        answer = self.answers[path.split("/")[6].partition(":")[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        self.closed = True


def asked(monkeypatch, cluster):
    monkeypatch.setattr("hami_dra.kube.http.connect", lambda *_: cluster)
    return container_usage.read_usage(Connection(), "system")


def test_drivers_are_asked_through_the_api_server_and_one_without_an_answer_is_left_out(monkeypatch, capsys):
    cluster = Cluster(a=expositions.of_driver(), b=Forbidden("no right to pods/proxy"), c="\0garbage{", other="")
    found = asked(monkeypatch, cluster)
    assert cluster.asked[0] == "/api/v1/namespaces/system/pods/a:8080/proxy/metrics"
    assert cluster.selected == {
        "namespace": "system",
        "label_selector": f"{names.PART_OF_LABEL}=hami-dra,app.kubernetes.io/component=driver",
    }
    assert len(cluster.asked) == 3
    assert {node: len(cards) for node, cards in found.items()} == {"node-a": 1, "node-c": 0}
    notes = capsys.readouterr().err
    assert "node-b: its driver does not say what containers use: no right to pods/proxy" in notes
    assert "node-other: pod other is no driver of hami-dra: it has no port http" in notes
    assert cluster.closed


def test_a_driver_that_does_not_answer_is_waited_for_no_longer_than_a_while(monkeypatch, capsys):
    cluster = Cluster(a="")

    async def never(_path):
        await asyncio.Event().wait()

    cluster.read_text = never
    monkeypatch.setattr(container_usage, "_PATIENCE", 0.01)
    assert asked(monkeypatch, cluster) == {}
    assert "no answer" in capsys.readouterr().err


def test_without_drivers_the_namespace_is_asked_for(monkeypatch, capsys):
    assert asked(monkeypatch, Cluster()) == {}
    assert "--install-namespace" in capsys.readouterr().err


def use_of(used):
    return ContainerUse(**{name: getattr(used, name) for name in ContainerUse.__struct_fields__})


def test_a_driver_is_believed_about_cards_of_its_own_node_only():
    cards = (card(node="n1", uuid="u1", device="gpu-0"), card(node="n2", uuid="u2", device="gpu-0"))
    overview = Overview(cards=cards, nodes=(), namespaces=(), packing=(), problems={}, vanished=())
    found = {"n1": {"u1": (USE, OTHER), "u2": (USE,)}, "n3": {"u2": (USE,)}}
    used = container_usage.used_cards(overview, found, None)
    assert [(each.node, each.card, use_of(each)) for each in used] == [("n1", "gpu-0", USE), ("n1", "gpu-0", OTHER)]
    assert [use_of(each) for each in container_usage.used_cards(overview, found, "team")] == [USE]
    assert msgspec.to_builtins(used[0]) == {
        "node": "n1",
        "card": "gpu-0",
        "namespace": "team",
        "pod": "p",
        "container": "main",
        "memoryUsed": 3 << 30,
        "memoryLimit": 4 << 30,
        "utilization": 12.4,
    }
    lines = [line.text.split() for line in status_tables.usage(used, TextLayout())]
    assert lines[2:] == [
        ["n1", "gpu-0", "team/p", "main", "3GiB/4GiB", "12%"],
        ["n1", "gpu-0", "other/p", "main", "-", "0%"],
    ]
    assert "usageCache: host" in status_tables.usage([], TextLayout())[1].text


@pytest.mark.parametrize("with_", [["-f", "resourceslices/"], ["--watch"]])
def test_files_have_no_drivers_to_ask(hami_dra, with_):
    answer = hami_dra("status", "--usage", *with_)
    assert answer.code == 2
    assert "live cluster" in answer.stderr
