"""The driver's looks at cards at work, who has what of them, and what Prometheus is told. Simulated machines, virtual time."""

import asyncio
import contextlib
import logging
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_dra.api.legacy_metrics import NameSet
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.monitoring import Monitoring
from hami_dra.driver.node.tenants import CardTenant, granted_containers, loads, tenants
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.driver.prepare.records import ContainerView, GrantedDevice, Record
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools
from hami_dra.monitor import simulated
from hami_dra.monitor.readings import Reading, Sample
from hami_dra.monitor.simulated import Load, SimulatedSampler
from hami_dra.monitor.usage import CardUsage, ContainerUsage, GrantedContainer
from hami_dra.vendors.registry import containers
from tests.support.node import at_once
from tests.support.virtual_time import run

NODE = "n1"
FOUND = machine("g4dn.12xlarge", NODE)
CARDS = FOUND.cards
GIB = 1 << 30
SAMPLE = Sample({CARDS[0].uuid: Reading(uuid=CARDS[0].uuid, power=70.0)})


class Scripted:
    """A sampler whose answers are set by the test."""

    source = "smi"

    def __init__(self, answer=SAMPLE):
        self.answer = answer
        self.looks = 0
        self.closed = 0

    def sample(self, cards):
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self):
        self.closed += 1


@contextlib.asynccontextmanager
async def looking(sampler, *, every=15.0, cards=lambda: CARDS, call=at_once):
    monitoring = Monitoring("nvidia", sampler, cards, every, call=call)
    task = asyncio.create_task(monitoring.run())
    try:
        yield monitoring
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- looking ---------------------------------------------------------------------------------------------------------


def test_it_looks_again_and_again_and_ends_what_it_started():
    async def scenario():
        sampler = Scripted()
        async with looking(sampler) as monitoring:
            await asyncio.sleep(61)
            assert (sampler.looks, monitoring.looks) == (5, 5)
            assert monitoring.readings == SAMPLE.readings
        assert sampler.closed == 1

    run(scenario())


def test_without_cards_nobody_looks():
    async def scenario():
        sampler = Scripted()
        async with looking(sampler, cards=lambda: ()):
            await asyncio.sleep(100)
        assert sampler.looks == 0

    run(scenario())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ToolMissing("no smi"), "missing"),
        (ToolFailed("smi ended"), "failed"),
        (Unreadable("smi: expected"), "unreadable"),
        (ZeroDivisionError("a mistake"), "unexpected"),
    ],
)
def test_what_fails_is_said_once_counted_and_forgotten_when_it_is_old(error, kind, caplog):
    async def scenario():
        sampler = Scripted()
        async with looking(sampler) as monitoring:
            await asyncio.sleep(1)
            sampler.answer = error
            await asyncio.sleep(20)
            assert monitoring.readings == SAMPLE.readings
            await asyncio.sleep(600)
            assert monitoring.readings == {}
            assert monitoring.failures == Counter({kind: sampler.looks - 1})
            assert 3 < sampler.looks < 15  # ever more rarely
            sampler.answer = SAMPLE
            await asyncio.sleep(500)
            assert monitoring.readings == SAMPLE.readings

    with caplog.at_level(logging.INFO, "hami_dra.driver.node.monitoring"):
        run(scenario())
    said = [record.getMessage() for record in caplog.records if not record.exc_info]
    assert len(said) == 2
    assert str(error) in said[0]
    assert said[1] == "nvidia: smi reports again"


def test_what_cannot_be_read_is_said_once(caplog):
    async def scenario():
        sampler = Scripted()
        async with looking(sampler) as monitoring:
            for number in range(5):
                sampler.answer = Sample(SAMPLE.readings, (f"broken {number}",))
                await asyncio.sleep(15)
            assert monitoring.problems == ("broken 4",)
            assert monitoring.readings == SAMPLE.readings

    run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["nvidia: monitoring: broken 0"]


def test_a_look_that_hangs_is_counted_and_none_is_begun_beside_it():
    async def scenario():
        sampler = Scripted()
        begun, gate = [], asyncio.Event()

        async def call(work):
            begun.append(work)
            if len(begun) == 2:
                await gate.wait()
            return work()

        async with looking(sampler, call=call) as monitoring:
            await asyncio.sleep(300)
            assert len(begun) == 2
            assert monitoring.failures["hangs"] >= 2
            assert monitoring.readings == {}
            gate.set()
            await asyncio.sleep(400)
            assert len(begun) > 2
            assert monitoring.readings == SAMPLE.readings

    run(scenario())


# --- simulated cards -------------------------------------------------------------------------------------------------


def test_simulated_cards_follow_what_is_allocated():
    idle = simulated.reading("u", 16 * GIB, Load(), 0.0)
    half = simulated.reading("u", 16 * GIB, Load(8 * GIB, 50, 1), 0.0)
    full = simulated.reading("u", 16 * GIB, Load(16 * GIB, 100, 2), 0.0)
    assert (idle.utilization, idle.memory_used) == (0, 1 << 28)
    for name in ("memory_used", "utilization", "temperature", "memory_temperature", "power"):
        assert getattr(idle, name) < getattr(half, name) < getattr(full, name)


def test_simulated_tenants_without_a_share_of_cores_compute_all_the_same():
    assert simulated.reading("u", 16 * GIB, Load(8 * GIB, 0, 1), 0.0).utilization > 20


@pytest.mark.parametrize("moment", [0.0, 17.0, 100.0, 1e6])
@pytest.mark.parametrize("load", [Load(), Load(99 * GIB, 250, 9), Load(GIB, 0, 1)])
def test_simulated_readings_can_be_true(moment, load):
    found = simulated.reading("u", 16 * GIB, load, moment)
    assert 0 <= found.memory_used <= found.memory_total == 16 * GIB
    assert 0 <= found.utilization <= 100
    assert 20 < found.temperature < 90
    assert 50 < found.power < 400
    assert found == simulated.reading("u", 16 * GIB, load, moment)


def test_simulated_cards_move_and_each_in_its_own_way():
    sampler = SimulatedSampler(lambda: {card.uuid: Load(8 * GIB, 80, 1) for card in CARDS}, iter([0.0, 60.0]).__next__)
    one, other = sampler.sample(CARDS).readings, sampler.sample(CARDS).readings
    assert all(one[uuid].utilization != other[uuid].utilization for uuid in one)
    assert len({reading.utilization for reading in one.values()}) > 1
    assert sampler.source == "simulated"


# --- who has what ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inventory():
    (pool,) = machine_pools(FOUND)
    devices = [device for content in pool.slices for device in content.devices]
    return inventory_of("nvidia.hami.io", NODE, devices, containers("nvidia").sites(CARDS))


def held(request, index, consumed=None, **options):
    return GrantedDevice(
        request=request,
        pool=NODE,
        device=f"gpu-{index}",
        card=CARDS[index].uuid,
        consumed=consumed or {},
        whole=consumed is None,
        **options,
    )


def record(uid, *given, views=()):
    return Record(
        namespace="default", name=uid, uid=uid, allocation="", state="prepared", held=given, views=tuple(views)
    )


PART = {"memory": 4 * GIB, "cores": 30, "shares": 1}


def test_limits_by_container_in_the_order_in_which_it_sees_the_cards(inventory):
    own = ContainerView(name="v", asked=(("a", "b"), ("a", "s")), users=(("pod", "main"),))
    both = ContainerView(name="w", asked=(("a", "s"),), users=(("pod", "init"), ("pod", "side")))
    records = {
        "a": record(
            "a", held("s/small", 2, PART), held("b", 0, PART), held("b", 0, PART | {"cores": 0}), views=[own, both]
        ),
        "x": record(
            "x", held("r", 1, admin=True), held("q", 3), views=[ContainerView(name="y", asked=(("x", "r"), ("x", "q")))]
        ),
    }
    found = tenants(records, inventory)
    assert found == [
        CardTenant("default", "pod", "init", 0, CARDS[2].uuid, 4 * GIB, 30),
        CardTenant("default", "pod", "main", 0, CARDS[0].uuid, 8 * GIB, 30, view="v"),
        CardTenant("default", "pod", "main", 1, CARDS[2].uuid, 4 * GIB, 30, view="v"),
        CardTenant("default", "pod", "side", 0, CARDS[2].uuid, 4 * GIB, 30),
    ]
    assert loads(records, inventory) == {
        CARDS[0].uuid: Load(8 * GIB, 30, 2),
        CARDS[2].uuid: Load(4 * GIB, 30, 1),
        CARDS[3].uuid: Load(CARDS[3].memory, 100, 1),
    }
    assert (tenants(records, None), loads(records, None)) == ([], {})


def test_containers_with_edits_of_their_own_are_read_with_their_files_and_cards(inventory):
    own = ContainerView(name="v", asked=(("a", "b"),), users=(("pod", "main"),))
    both = ContainerView(name="w", asked=(("a", "s"),), users=(("pod", "init"), ("pod", "side")))
    mounts = [
        {"hostPath": "/host", "containerPath": "/in", "options": ["rw"]},
        {"hostPath": "tmpfs", "containerPath": "/memory", "type": "tmpfs"},
    ]
    edits = {"env": ["A=1=2", "B="], "mounts": mounts}
    spec = {"devices": [{"name": f"a-{view}", "containerEdits": edits} for view in ("v", "w")]}
    found = record("a", held("b", 0, PART), held("s", 1, PART), views=[own, both])
    assert granted_containers({"a": msgspec.structs.replace(found, spec=spec)}, inventory) == [
        GrantedContainer(
            view="v",
            label="default/pod, container main",
            env={"A": "1=2", "B": ""},
            mounts={"/in": "/host"},
            cards={CARDS[0].uuid: 2 * CARDS[0].memory},
        )
    ]
    assert granted_containers({"a": found}, inventory) == []
    assert granted_containers({"a": found}, None) == []


def test_a_namesake_whose_claim_is_not_taken_back_yet_is_counted_once(inventory):
    def one(uid):
        return record(
            uid, held("r", 1, PART), views=[ContainerView(name=uid, asked=((uid, "r"),), users=(("pod", "main"),))]
        )

    assert len(tenants({"a": one("a"), "b": one("b")}, inventory)) == 1


def test_a_whole_card_has_all_its_memory_and_no_limit_of_cores(inventory):
    view = ContainerView(name="v", asked=(("a", "r"),), users=(("pod", "main"),))
    (found,) = tenants({"a": record("a", held("r", 1), views=[view])}, inventory)
    assert (found.memory, found.cores) == (CARDS[1].memory, 0)


def test_records_of_older_drivers_name_no_user(inventory):
    old = msgspec.json.decode(
        b'{"name": "v", "asked": [["a", "r"]], "pods": ["u"], "containers": ["main"]}', type=ContainerView
    )
    assert tenants({"a": record("a", held("r", 1), views=[old])}, inventory) == []


# --- what Prometheus is told -----------------------------------------------------------------------------------------


def scraped(*watched, also=()):
    """(name, labels) → value, of what is not the driver's own."""
    metrics = DriverMetrics()
    metrics.watch(NODE, lambda: watched, also)
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("hami_dra_driver_c")
    }


def looked(sampler):
    async def scenario():
        async with looking(sampler) as monitoring:
            await asyncio.sleep(1)
        return monitoring

    return run(scenario())


def test_names_and_labels_are_those_of_hami_and_its_webui():
    card = CARDS[0]
    reading = Reading(
        uuid=card.uuid,
        memory_total=16 * GIB,
        memory_used=GIB,
        utilization=40.5,
        memory_utilization=10.0,
        temperature=50.0,
        memory_temperature=55.0,
        power=70.5,
        fan=30.0,
        ecc_corrected=7,
        ecc_uncorrected=0,
    )
    monitoring = looked(Scripted(Sample({card.uuid: reading}, ("a problem",))))
    tenant = CardTenant("default", "pod", "main", 0, card.uuid, 4 * GIB, 30)
    whole = CardTenant("default", "pod", "all", 0, card.uuid, 16 * GIB, 0)
    found = scraped(
        MonitoredVendor("nvidia.hami.io", "nvidia", CARDS, frozenset({CARDS[1].uuid}), [tenant, whole], monitoring)
    )

    def value(name, **labels):
        return found.get((name, tuple(sorted(labels.items()))))

    host = {"node": NODE, "device_index": "0", "device_uuid": card.uuid, "device_type": card.product, "source": "smi"}
    device = {
        "node": NODE,
        "provider": "nvidia",
        "device_type": card.product,
        "device_uuid": card.uuid,
        "driver_version": card.driver_version,
        "device_no": "0",
        "source": "smi",
    }
    assert value("hami_host_gpu_memory_used_bytes", **host) == GIB
    assert value("hami_host_gpu_memory_total_bytes", **host) == 16 * GIB
    assert value("hami_host_gpu_utilization_ratio", **host) == 40.5
    assert value("hami_host_gpu_memory_controller_utilization_ratio", **host) == 10.0
    assert value("hami_device_temperature", **device) == 50.0
    assert value("hami_device_memory_temperature", **device) == 55.0
    assert value("hami_device_power", **device) == 70.5
    assert value("hami_device_fan_speed_p", **device) == 30.0
    assert value("hami_device_hardware_health", **device) == 1
    sick = device | {"device_uuid": CARDS[1].uuid, "device_no": "1"}
    assert value("hami_device_hardware_health", **sick) == 0
    assert value("hami_device_temperature", **sick) is None
    assert value("hami_device_ecc_errors_total", **device, error="corrected") == 7
    assert value("hami_device_ecc_errors_total", **device, error="uncorrected") == 0
    container = {"node": NODE, "namespace": "default", "pod": "pod", "vdevice_index": "0", "device_uuid": card.uuid}
    assert value("hami_vgpu_memory_limit_bytes", **container, container="main") == 4 * GIB
    assert value("hami_vgpu_core_limit_ratio", **container, container="main") == 30
    assert value("hami_vgpu_memory_limit_bytes", **container, container="all") == 16 * GIB
    assert value("hami_vgpu_core_limit_ratio", **container, container="all") is None
    assert value("hami_dra_driver_monitor_looks_total", driver="nvidia.hami.io") == 1
    assert value("hami_dra_driver_monitor_problems", driver="nvidia.hami.io") == 1
    assert value("hami_dra_driver_monitor_failures_total", driver="nvidia.hami.io", kind="hangs") == 0


USED = CardUsage(memory_used=5 * GIB, memory_context=GIB, memory_module=GIB, memory_buffer=GIB, utilization=25.0)
TENANT = CardTenant("default", "pod", "main", 0, CARDS[0].uuid, 8 * GIB, 30, view="v")


def using(usage, *tenants, problems=()):
    sampler = Scripted(Sample({"v": usage}, problems))
    return MonitoredVendor("nvidia.hami.io", "nvidia", (), frozenset(), tenants, None, looked(sampler))


def test_what_containers_use_has_names_of_ours_and_with_the_switch_those_of_hamis_monitor():
    usage = ContainerUsage(cards={CARDS[0].uuid: USED, CARDS[1].uuid: USED}, last_kernel=1_000_000_000)
    other = replace(TENANT, container="side", view="")
    watched = using(usage, TENANT, other, problems=("a problem",))
    labels = {
        "node": NODE,
        "namespace": "default",
        "pod": "pod",
        "container": "main",
        "vdevice_index": "0",
        "device_uuid": CARDS[0].uuid,
    }

    def values(*also):
        found = scraped(watched, also=also)
        used = {key: value for key, value in found.items() if "limit" not in key[0] and "problems" not in key[0]}
        assert all({("container", "main"), ("ctrname", "main")} & set(key[1]) for key in used)
        return {(name, dict(each).get("part")): value for (name, each), value in used.items()}

    assert found_of(watched, "hami_dra_driver_usage_problems") == [1]
    ours = {
        ("hami_dra_container_memory_used_bytes", None): 5 * GIB,
        ("hami_dra_container_memory_part_bytes", "context"): GIB,
        ("hami_dra_container_memory_part_bytes", "module"): GIB,
        ("hami_dra_container_memory_part_bytes", "buffer"): GIB,
        ("hami_dra_container_utilization_ratio", None): 0.25,
        ("hami_dra_container_last_kernel_timestamp_seconds", None): 1_000_000_000,
    }
    assert values() == ours
    hami = {name: value for (name, _), value in values(NameSet.HAMI).items() if not name.startswith("hami_dra")}
    assert hami.pop("hami_container_last_kernel_elapsed_seconds") > 1_000_000
    assert hami == {
        "hami_vgpu_memory_used_bytes": 5 * GIB,
        "hami_container_device_memory_bytes": 5 * GIB,
        "hami_container_device_utilization_ratio": 25,
        "hami_vgpu_memory_context_bytes": GIB,
        "hami_vgpu_memory_module_bytes": GIB,
        "hami_vgpu_memory_buffer_bytes": GIB,
    }
    assert (("hami_vgpu_memory_used_bytes", tuple(sorted(labels.items())))) in scraped(watched, also=[NameSet.HAMI])
    old = scraped(watched, also=[NameSet.HAMI_2_7])
    old_labels = {
        "podnamespace": "default",
        "podname": "pod",
        "ctrname": "main",
        "vdeviceid": "0",
        "deviceuuid": CARDS[0].uuid,
    }
    parts = {"context": str(GIB), "module": str(GIB), "data": str(GIB), "offset": str(2 * GIB)}
    assert old["vGPU_device_memory_usage_in_bytes", tuple(sorted(old_labels.items()))] == 5 * GIB
    assert old["vGPU_device_memory_limit_in_bytes", tuple(sorted(old_labels.items()))] == 8 * GIB
    assert old["Device_memory_desc_of_container", tuple(sorted((old_labels | parts).items()))] == 5 * GIB
    assert old["Device_utilization_desc_of_container", tuple(sorted(old_labels.items()))] == 25
    assert old["Device_last_kernel_of_container", tuple(sorted(old_labels.items()))] > 1_000_000


def found_of(watched, name):
    return [value for (each, _), value in scraped(watched).items() if each == name]


def test_of_numbers_that_are_not_known_there_is_no_sample():
    watched = using(ContainerUsage(cards={CARDS[0].uuid: CardUsage()}), TENANT)
    said = scraped(watched, also=NameSet)
    assert {name for name, _ in said} == {
        "hami_vgpu_memory_limit_bytes",
        "hami_vgpu_core_limit_ratio",
        "vGPU_device_memory_limit_in_bytes",
        "hami_dra_driver_usage_problems",
    }


def test_cards_that_nobody_looks_at_have_only_their_health():
    found = scraped(MonitoredVendor("nvidia.hami.io", "nvidia", CARDS, frozenset(), [], None))
    assert {name for name, _ in found} == {"hami_device_hardware_health"}
    assert len(found) == len(CARDS)


def test_texts_of_hardware_are_escaped():
    card = replace(CARDS[0], product='a "b"\\c\nd')
    found = scraped(MonitoredVendor("nvidia.hami.io", "nvidia", [card], frozenset(), [], None))
    ((_, labels),) = found
    assert dict(labels)["device_type"] == card.product
