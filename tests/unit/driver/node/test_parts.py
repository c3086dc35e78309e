"""Parts of the node driver: threads that hang, whose turn it is, what kubelet hears, device plugins, the command's options."""

import asyncio
import threading

import msgspec
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from hami_dra.api.core import Node
from hami_dra.api.errors import ConfigError, InputError
from hami_dra.api.hardware import Fault
from hami_dra.driver.kubelet.protocol import Verdict
from hami_dra.driver.node.damping import Counted
from hami_dra.driver.node.driver_runtime import DeviceHealths
from hami_dra.driver.node.metrics import DriverMetrics, Metered
from hami_dra.driver.node.plugin import offered_by_plugin
from hami_dra.driver.node.publisher_lock import PublisherLock
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.node.threads import in_thread
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools
from tests.support.virtual_time import run

# --- threads ---------------------------------------------------------------------------------------------------------


async def test_a_call_in_a_thread_returns_or_raises():
    assert await in_thread(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_who_stops_waiting_leaves_a_hanging_thread_behind():
    """And the answer that comes too late hurts nobody."""
    hanging, let_go = threading.Event(), threading.Event()

    def work():
        hanging.set()
        let_go.wait()

    task = asyncio.create_task(in_thread(work))
    while not hanging.is_set():  # noqa: ASYNC110 (the event is a thread's)
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    let_go.set()
    await in_thread(lambda: None)


# --- turns -----------------------------------------------------------------------------------------------------------


def test_the_second_waits_until_the_first_gives_back(tmp_path):
    async def scenario():
        first, second = PublisherLock(tmp_path / "d" / "lock"), PublisherLock(tmp_path / "d" / "lock")
        await first.take()
        waiting = asyncio.create_task(second.take())
        await asyncio.sleep(10)
        assert (first.is_ours, second.is_ours) == (True, False)
        first.give_back()
        first.give_back()
        await waiting
        assert (first.is_ours, second.is_ours) == (False, True)
        second.give_back()

    run(scenario())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"lock cannot be created: .* \(--root\)"):
        run(PublisherLock(tmp_path / "file" / "lock").take())


# --- health ----------------------------------------------------------------------------------------------------------


def test_verdicts():
    found = machine("a2-ultragpu-2g-mig", "n1")
    (pool,) = machine_pools(found)
    health = DeviceHealths()

    def verdicts():
        return {each.verdict for each in health.current()}

    health.update(pool, {}, "")
    assert verdicts() == {Verdict.HEALTHY}
    assert len(health.current()) == sum(len(content.devices) for content in pool.slices)

    sick = Counted(Fault(code="xid-79", message="fell off the bus"), lasting=False)
    health.update(pool, {found.cards[1].uuid: [sick]}, "")
    unwell = [each for each in health.current() if each.verdict is Verdict.UNHEALTHY]
    assert {each.device.split("-mig-")[0] for each in unwell} == {"gpu-1"}  # the card and all of its parts

    health.update(pool, {found.cards[1].uuid: [sick]}, "the tool hangs")
    assert verdicts() == {Verdict.UNHEALTHY, Verdict.UNKNOWN}


async def test_a_change_is_noticed_by_all_who_wait_and_by_who_looks_later():
    (pool,) = machine_pools(machine("g4dn.12xlarge", "n1"))
    health = DeviceHealths()
    health.current()
    waiting = [asyncio.create_task(health.changed()) for _ in range(2)]
    await asyncio.sleep(0)
    health.update(pool, {}, "")
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting)
        await health.changed()
    health.current()
    health.update(pool, {}, "")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await health.changed()


# --- device plugins --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "allocatable", "expected"),
    [
        ("nvidia.hami.io", {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "4"}),
        ("nvidia.hami.io", {"nvidia.com/gpu": "0"}, {}),
        ("nvidia.hami.io", {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": "2"}),
        ("nvidia.hami.io", {"nvidia.com/gpu": "many"}, {"nvidia.com/gpu": "many"}),
        ("nvidia.hami.io", {"aws.amazon.com/neuron": "4", "cpu": "3"}, {}),
        ("neuron.hami.io", {"aws.amazon.com/neuron": "4"}, {"aws.amazon.com/neuron": "4"}),
        ("metax.hami.io", {"metax-tech.com/gpu": "1"}, {"metax-tech.com/gpu": "1"}),
        ("kunlunxin.hami.io", {"kunlunxin.com/xpu": "8"}, {"kunlunxin.com/xpu": "8"}),
        ("enflame.hami.io", {"enflame.com/gcu": "8"}, {"enflame.com/gcu": "8"}),
        ("ascend.hami.io", {"huawei.com/Ascend910B4": "8"}, {"huawei.com/Ascend910B4": "8"}),
    ],
)
def test_what_a_device_plugin_offers(driver, allocatable, expected):
    node = msgspec.convert({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, Node)
    assert offered_by_plugin(node, driver) == expected


# --- counting --------------------------------------------------------------------------------------------------------


class _Preparing:
    async def prepare(self, claims):
        return dict(zip(claims, [(), "no room"], strict=True))

    async def unprepare(self, claims):
        return dict.fromkeys(claims, "")


async def test_kubelets_calls_are_counted():
    metrics, times = DriverMetrics(), iter([10.0, 10.3, 20.0, 20.1])
    metered = Metered(_Preparing(), metrics, "d", now=lambda: next(times))
    assert await metered.prepare(["a", "b"]) == {"a": (), "b": "no room"}
    assert await metered.unprepare(["a", "b"]) == {"a": "", "b": ""}

    def sample(name, **labels):
        return metrics.registry.get_sample_value(name, {"driver": "d", **labels})

    assert sample("hami_dra_driver_claims_total", call="prepare", result="done") == 1
    assert sample("hami_dra_driver_claims_total", call="prepare", result="refused") == 1
    assert sample("hami_dra_driver_claims_total", call="unprepare", result="done") == 2
    assert sample("hami_dra_driver_claim_seconds_sum", call="prepare") == pytest.approx(0.3)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "--node: which node is this?"),
        (["--vendor", "amd"], "--vendor: 'amd' is none of nvidia, metax, neuron, enflame, kunlunxin, ascend"),
        (["--machine", "pdp-11"], "--machine: there is no machine 'pdp-11'"),
        (
            ["--machine", "c500-8", "--vendor", "nvidia"],
            "--vendor: c500-8 has no devices of nvidia; it has those of metax",
        ),
        (["--simulated-faults", "f"], "--simulated-faults: works with --machine only"),
        (["--driver-root", "driver"], "--driver-root: 'driver' is not an absolute path"),
        (["--driver-root-mount", "/driver-root"], "--driver-root-mount: say with --driver-root which folder"),
        (["--taint-effect", "xid=Evict"], "--taint-effect: 'xid=Evict' is not KIND=EFFECT"),
        (["--taint-effect", "cold=None"], "with a kind of lost, xid, memory-error, unhealthy"),
        (["--device-policy", "best"], "--device-policy: 'best' is not one of"),
        (["--slots", "0"], "--slots: 0 is not a whole number from 1 to 1000000"),
        (["--memory-scaling", "much"], "--memory-scaling: 'much' is not a number such as 1.5"),
        (["--health-every", "soon"], "--health-every: 'soon' is not a duration"),
        (["--health-every", "0"], "--health-every: '0' is out of range: from 0.1s to 86400s"),
    ],
)
def test_a_wrong_option_is_named_with_the_fix(options, problem, monkeypatch):
    monkeypatch.setattr("hami_dra.logs.configure", lambda *_: None)  # it would outlive the test
    monkeypatch.delenv("NODE_NAME", raising=False)
    node = ["--node", "n1"] if options else []
    result = CliRunner().invoke(app, ["driver", *node, *options])
    assert isinstance(result.exception, InputError), result.output
    assert problem in str(result.exception)


def test_native_mode_never_has_the_fence_in_its_slices():
    assert NodeSettings(node="n", native=True, fence="on").fence_mode == "off"
    assert NodeSettings(node="n", fence="on").fence_mode == "on"
