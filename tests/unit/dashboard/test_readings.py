"""What cards really do, on the page: drivers' text into readings, which pods are asked and how long, what is shown."""

import asyncio
import math
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.dashboard import render
from controller.dashboard.fleet import ProductRow
from controller.dashboard.readings import AT_ONCE, CardReading, CardUse, Readings, Target, readings_of
from controller.dashboard.serving import DriverPods, NoAnswer, session_for_drivers, target_of
from controller.dashboard.source import ControllerState
from controller.dashboard.summary import summary
from controller.reconcile.runtime import Mode
from controller.views.overview.model import Packing
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.driver.simulated import machine
from tests.support.driver_metrics import exposition
from tests.support.virtual_time import run

MEMORY = 'hami_host_gpu_memory_used_bytes{device_uuid="u",source="nvml"} '


@pytest.mark.parametrize(
    "model", ["dgx-a100", "c500-8", "p800-oam-8", "trn1.32xlarge", "s60-8"], ids=["nvidia", "metax", "kunlunxin", "neuron", "enflame"]
)  # fmt: skip
def test_the_drivers_own_metrics_are_understood(model):
    found = readings_of(exposition("n", model))
    assert set(found) == {card.uuid for card in machine(model, "n").cards}
    for reading in found.values():
        assert reading.simulated
        assert 0 < reading.memory_used <= reading.memory_total
        assert 0 < reading.utilization <= 100
        assert reading.temperature > 0
        assert reading.power > 0


@pytest.mark.parametrize(
    "text",
    ["", "\0\n", "{", MEMORY, MEMORY + "x\n", MEMORY + "NaN\n", MEMORY + "+Inf\n", MEMORY + "-1\n", "hami_host_gpu_memory_used_bytes{\n",
     'hami_host_gpu_memory_used_bytes{device_uuid=""} 1\n', "hami_host_gpu_memory_used_bytes 1\n", "<html>" * 1000, 'other{device_uuid="u"} 1\n'],
)  # fmt: skip
def test_garbage_is_no_reading(text):
    assert readings_of(text) == {}


def test_what_is_told_is_kept_what_is_not_is_none_and_cards_have_an_end():
    assert readings_of(MEMORY + "5\n" + 'hami_device_power{device_uuid="u"} 71.5\n') == {
        "u": CardReading(5, power=71.5)
    }
    many = "".join(f'hami_device_power{{device_uuid="{number}"}} 1\n' for number in range(1000))
    assert len(readings_of(many)) == 256


def pod(**changed):
    raw = {
        "metadata": {
            "name": "d",
            "namespace": "system",
            "labels": {names.PART_OF_LABEL: "hami-dra", "app.kubernetes.io/component": "driver"},
        },
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7"},
    }
    for place, value in changed.items():
        raw[place] = {**raw[place], **value}
    return msgspec.convert(raw, Pod)


def test_running_drivers_of_the_system_namespace_are_asked_and_nobody_else():
    assert target_of(pod(), "system") == Target("n1", "http://10.0.0.7:8080/metrics")
    assert target_of(pod(status={"podIP": "fd00::7"}), "system").url == "http://[fd00::7]:8080/metrics"
    others = (
        {"metadata": {"namespace": "team"}},
        {"metadata": {"labels": {}}},
        {"metadata": {"labels": {names.PART_OF_LABEL: "hami-dra", "app.kubernetes.io/component": "webhook"}}},
        {"spec": {"nodeName": ""}},
        {"spec": {"containers": []}},
        {"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 70000}]}]}},
        {"status": {"phase": "Pending"}},
        {"status": {"podIP": ""}},
        {"status": {"podIP": "evil.example/x"}},
    )
    assert [target_of(pod(**other), "system") for other in others] == [None] * len(others)


@asynccontextmanager
async def answering(handler):
    app = web.Application()
    app.router.add_get("/metrics", handler)
    async with TestServer(app) as server, session_for_drivers() as session:
        yield DriverPods(lambda: [pod()], "system", session, most=1000), Target("n", str(server.make_url("/metrics")))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: web.Response(text="x" * 1001), "more than 1000"),
        (lambda: web.Response(status=500), "500"),
        (lambda: web.Response(status=302, headers={"Location": "/metrics"}), "302"),
    ],
)
async def test_too_much_and_other_answers_are_none(answer, why):
    async def handler(_request):
        return answer()

    async with answering(handler) as (drivers, target):
        with pytest.raises(NoAnswer, match=why):
            await drivers.ask(target)


async def test_an_answer_is_text_whatever_its_bytes():
    async def handler(_request):
        return web.Response(body=b"\xff" + b"x" * 999)

    async with answering(handler) as (drivers, target):
        assert len(await drivers.ask(target)) == 1000
        assert [each.node for each in drivers.targets()] == ["n1"]


class Scripted:
    """Node → text, or what is raised; a node without an answer hangs."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        self.now = self.most = 0

    def targets(self):
        return [Target(node, node) for node in self.answers]

    async def ask(self, target):
        self.asked.append(target.node)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            answer = self.answers[target.node]
            if answer is None:
                await asyncio.sleep(math.inf)
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.now -= 1


async def ended(task):
    task.cancel()
    await asyncio.wait({task})


async def test_a_driver_that_hangs_fails_or_talks_nonsense_costs_its_reading_only():
    nodes = {f"n{number}": MEMORY + "7\n" for number in range(40)}
    meters = Scripted({**nodes, "hangs": None, "fails": OSError("refused"), "raves": "<html>"})
    reported = asyncio.Event()
    readings = Readings(meters, reported.set, longest=0.05)
    task = asyncio.create_task(readings.run())
    assert readings.of("n1", "u") is None
    readings.wanted()
    await reported.wait()
    await ended(task)
    assert readings.known(meters.answers) == 40
    assert readings.of("n1", "u") == CardReading(7)
    assert readings.of("n1", "of another node") is readings.of("hangs", "u") is None
    assert meters.most <= AT_ONCE


def test_nobody_is_asked_while_nobody_looks_and_never_more_often_than_that():
    async def scenario():
        meters = Scripted({})
        rounds = []
        meters.targets = lambda: rounds.append(1) or []
        readings = Readings(meters)
        task = asyncio.create_task(readings.run())
        await asyncio.sleep(300)
        assert len(rounds) == 0
        for _ in range(100):
            readings.wanted()
            await asyncio.sleep(1)
        assert len(rounds) == 4
        await asyncio.sleep(300)
        assert len(rounds) <= 5
        await ended(task)

    run(scenario())


async def test_old_readings_are_none():
    moment, reported = [0.0], asyncio.Event()
    readings = Readings(Scripted({"n": MEMORY + "7\n"}), reported.set, now=lambda: moment[0])
    task = asyncio.create_task(readings.run())
    readings.wanted()
    await reported.wait()
    assert readings.known(["n"]) == 1
    moment[0] = 121.0
    readings.wanted()
    await ended(task)
    assert readings.known(["n"]) == 0


EVIL = '<script>alert("x")</script>'
PACKED = Packing(
    driver=EVIL, vendor=EVIL, nodes=2, empty_nodes=0, cards=2, usable_cards=2, free_cards=1, partly_used_cards=0, full_cards=0,
    free_islands={}, free_capacity=1.0, fragmentation=0.0, memory_total=100 << 30, memory_used=0, cores_total=0, cores_used=0,
    shares_total=0, shares_used=0,
)  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_overview_shows_real_use_beside_allocation(language):
    context = {
        "packing": [PACKED], "linked": {EVIL: ()}, "products": [ProductRow(EVIL, EVIL, 2, 1, 0, 0, 1)], "summary": summary([PACKED], (0, "")), "waiting": [], "reserved": 0, "spans": {"2h": ""}, "span": "2h", "allocated": None,
        "pending": None, "tiles": [], "machines": None, "nodes": 50, "states": {}, "problems": {}, "known": 48, "has_readings": True,
        "state": ControllerState("1.0", Mode.NATIVE, False, "none"),
    }  # fmt: skip
    use = CardUse(memory_used=30 << 30, memory_total=80 << 30, busy=80.0, measured=2, simulated=True)
    text = render.fragment("overview.html", context | {"uses": {EVIL: use}}, language)
    assert "30 GiB" in text
    assert "40%" in text
    assert ("simulated" if language == "en" else "模拟") in text
    assert ("readings of 48 of 50 nodes" if language == "en" else "50 个节点中已有 48 个") in text
    assert "<script" not in text
    without = render.fragment("overview.html", context | {"uses": {}, "known": 0}, language)
    for word in ("In use", "Utilization", "使用情况", "利用率"):
        assert word not in without, "no rows without readings"
