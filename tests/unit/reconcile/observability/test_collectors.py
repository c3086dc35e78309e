"""What /metrics says of cards, pods, the queue and watches: kept by difference, computed when it is asked."""

import asyncio
import random
from datetime import UTC, datetime

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.inventory.inventory import Inventory
from controller.reconcile.observability.collectors.cards import CardGauges
from controller.reconcile.observability.collectors.figures import PackingFigures, QuotaFigures
from controller.reconcile.observability.collectors.lines import BLOCK, Gauge, blocks, labels
from controller.reconcile.observability.collectors.pods import PodGauges
from controller.reconcile.observability.collectors.running import QueueFigures
from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.refused_groups import Rank
from controller.reconcile.runtime.informers import allocated_devices
from controller.reconcile.runtime.metrics import Metrics
from controller.views.overview.card_table import CardTable
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.httpserver import Exposition, serving
from hami_dra.kube.store import Store
from tests.cards import DRIVER, card, claim, node, slice_of, whole
from tests.support import expositions
from tests.support.expositions import SETTINGS, furnish, text_of
from tests.support.harness import play
from tests.support.quotas import quota_object
from tests.unit.insight.test_overview import mig_card

GIB = 1 << 30
LEGACY = frozenset(NameSet)


def samples(text):
    """(name, *values of labels by name) → value. A series that is there twice is an error, as for Prometheus."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def said(gauges):
    return samples("".join(gauges.blocks()))


def of_card(found, name, uuid):
    (value,) = [value for key, value in found.items() if key[0] == name and f"device_uuid={uuid}" in key]
    return value


def share(device, node_name="n1", driver=DRIVER, **consumed):
    held = {"request": "gpu", "driver": driver, "pool": node_name, "device": device}
    return {**held, "shareID": device, "consumedCapacity": consumed} if consumed else held


def holding(name, *results, pods=(), namespace="default"):
    found = claim(name, namespace=namespace, allocation={"devices": {"results": list(results)}} if results else None)
    raw = msgspec.json.decode(msgspec.json.encode(found))
    raw.setdefault("status", {})["reservedFor"] = [{"resource": "pods", "name": each, "uid": each} for each in pods]
    return msgspec.json.decode(msgspec.json.encode(raw), type=type(found))


class CardExposition:
    """An inventory and the claims beside it, with the gauges that are kept on them."""

    def __init__(self, also=frozenset(), pods=()):
        self.inventory = Inventory()
        self.claims = Store(device=allocated_devices)
        self.pods = {each.key: each for each in pods}
        self.table = CardTable(self.inventory)
        self.cards = CardGauges(self.table, also)
        self.users = PodGauges(self.table, self.claims, self.pods.get, also)

    def there(self, *slices, nodes=("n1",)):
        for each in nodes:
            self.inventory.node_changed(None, node(each))
        for each in slices:
            self.inventory.slice_changed(None, each)
        return self

    def put(self, new):
        old = self.claims.get(new.key)
        self.claims.put(new)
        self._tell(old, new)

    def drop(self, key):
        old = self.claims.get(key)
        self.claims.remove(key)
        self._tell(old, None)

    def _tell(self, old, new):
        self.inventory.claim_changed(old, new)
        self.users.claim_changed(old, new)

    def fresh(self):
        """As somebody says it who has seen nothing before."""
        table = CardTable(self.inventory)
        return said(CardGauges(table)) | said(PodGauges(table, self.claims, self.pods.get))

    def now(self):
        return said(self.cards) | said(self.users)


# --- cards -----------------------------------------------------------------------------------------------------------


def test_a_card_by_the_names_and_labels_of_hami_dra():
    exposition = CardExposition().there(slice_of("n1", [card(0), card(1)]))
    exposition.put(holding("c", share("gpu-1", memory="4Gi", cores="30", shares="1"), pods=["p"]))
    found = said(exposition.cards)
    known = (
        "device_index=1",
        "device_name=gpu-1",
        "device_type=Tesla T4",
        "device_uuid=GPU-1",
        "node=n1",
        "vendor=nvidia",
    )
    assert {key[0]: value for key, value in found.items() if key[1:] == known} == {
        "hami_dra_gpu_memory_limit_bytes": 16 * GIB,
        "hami_dra_gpu_memory_allocated_bytes": 4 * GIB,
        "hami_dra_gpu_core_limit_ratio": 1,
        "hami_dra_gpu_core_allocated_ratio": 0.3,
        "hami_dra_gpu_shares_limit": 10,
        "hami_dra_gpu_shares_allocated": 1,
        "hami_dra_gpu_health": 1,
    }
    assert of_card(found, "hami_dra_gpu_memory_allocated_bytes", "GPU-0") == 0


def test_a_role_that_nobody_publishes_has_no_sample_and_a_foreign_card_its_pool():
    exposition = CardExposition().there(slice_of("n1", [whole(0)], driver="gpu.example.com", pool="rack-7"))
    found = said(exposition.cards)
    assert {key[0] for key in found} == {
        "hami_dra_gpu_shares_limit",
        "hami_dra_gpu_shares_allocated",
        "hami_dra_gpu_health",
    }
    assert all("pool=rack-7" in key and "vendor=gpu.example.com" in key for key in found)


def test_cores_are_a_share_of_the_card_whatever_the_driver_counts():
    device = {
        "name": "neuron-0",
        "allowMultipleAllocations": True,
        "attributes": {"hami.io/uuid": {"string": "N-0"}},
        "capacity": {"neuroncores": {"value": "8"}},
    }
    exposition = CardExposition(LEGACY).there(slice_of("n1", [device], driver="neuron.hami.io"))
    exposition.put(holding("c", share("neuron-0", driver="neuron.hami.io", neuroncores="2"), pods=["p"]))
    found = exposition.now()
    assert of_card(found, "hami_dra_gpu_core_limit_ratio", "N-0") == 1
    assert of_card(found, "hami_dra_gpu_core_allocated_ratio", "N-0") == 0.25
    assert of_card(found, "hami_gpu_core_allocated_ratio", "N-0") == 25
    assert of_card(found, "hami_dra_vgpu_core_allocated_ratio", "N-0") == 0.25
    assert of_card(found, "hami_vgpu_core_allocated_ratio", "N-0") == 25


@pytest.mark.parametrize(
    ("key", "effect", "healthy"),
    [
        ("hami.io/xid", "NoSchedule", 0),
        ("hami.io/xid", "None", 1),
        ("hami.io/cordoned", "NoSchedule", 1),
        ("hami.io/controller-allocates", "NoSchedule", 1),
    ],
)
def test_health_is_what_taints_say(key, effect, healthy):
    tainted = card(0) | {"taints": [{"key": key, "value": "x", "effect": effect}]}
    found = said(CardExposition().there(slice_of("n1", [tainted, card(1)])).cards)
    assert of_card(found, "hami_dra_gpu_health", "GPU-0") == healthy
    assert of_card(found, "hami_dra_gpu_health", "GPU-1") == 1


def test_what_parts_of_a_card_hold_is_the_cards():
    exposition = CardExposition().there(*mig_card())
    exposition.put(holding("c", share("gpu-0-mig-0"), pods=["p"]))
    found = exposition.now()
    assert of_card(found, "hami_dra_gpu_memory_allocated_bytes", "GPU-0") == 8 * GIB
    assert found[
        "hami_dra_vgpu_memory_allocated_bytes", "device_uuid=GPU-0", "namespace=default", "node=n1", "pod=p"
    ] == (8 * GIB)


def test_cards_that_cannot_be_told_apart_do_not_cost_the_scrape():
    """Without uuid and index they are one to HAMi's labels; two pools with a device of the same name are told apart by the pool."""
    nameless = [{"name": name} for name in ("left", "middle", "right")]
    exposition = CardExposition(LEGACY).there(
        slice_of("n1", nameless, driver="gpu.example.com"),
        slice_of("n1", [card(0)], name="new", driver="net.example.com"),
        slice_of("n1", [card(0)], name="old", driver="net.example.com", pool="n1-left-behind"),
    )
    found = said(exposition.cards)
    health = [key for key in found if key[0] == "hami_dra_gpu_health"]
    assert len(health) == 5
    assert len([key for key in health if "pool=n1-left-behind" in key]) == 1
    assert len([key for key in found if key[0] == "hami_gpu_shared_count"]) == 2


def test_names_of_hami_are_there_only_on_demand():
    exposition = CardExposition(frozenset({NameSet.HAMI_2_7})).there(slice_of("n1", [card(0)]))
    names = {key[0] for key in said(exposition.cards)}
    assert "GPUDeviceMemoryLimit" in names
    assert "hami_gpu_memory_limit_bytes" not in names


def test_hami_counts_in_percent_and_says_the_zone():
    found = samples(expositions.of_controller(LEGACY))
    known = ("device_index=0", "device_type=Tesla T4", "device_uuid=GPU-0-0", "node=gpu-0", "zone=vGPU")
    assert found["hami_gpu_core_limit_ratio", *known] == 100
    old = ("deviceidx=0", "devicetype=Tesla T4", "deviceuuid=GPU-0-0", "nodeid=gpu-0", "zone=vGPU")
    assert found["GPUDeviceCoreAllocated", *old] == 100
    assert found["GPUDeviceMemoryAllocated", "devicecores=100", *old] == 12 * GIB
    assert (
        found["QuotaUsed", "limit=40960", "quotaName=nvidia.com/gpumem", "quotanamespace=default", "zone=vGPU"] == 16384
    )


# --- pods ------------------------------------------------------------------------------------------------------------


def line(pod, uuid="GPU-0", namespace="default", node_name="n1"):
    return (
        "hami_dra_vgpu_memory_allocated_bytes",
        f"device_uuid={uuid}", f"namespace={namespace}", f"node={node_name}", f"pod={pod}",
    )  # fmt: skip


def memory(exposition):
    return {key: value for key, value in said(exposition.users).items() if "memory" in key[0]}


def test_what_a_pod_has_of_a_card_is_added_up_over_its_claims():
    exposition = CardExposition().there(slice_of("n1", [card(0), card(1)]))
    exposition.put(holding("a", share("gpu-0", memory="4Gi", cores="30"), share("gpu-1"), pods=["p"]))
    exposition.put(holding("b", share("gpu-0", memory="2Gi", cores="10"), pods=["p"]))
    assert memory(exposition) == {line("p"): 6 * GIB, line("p", "GPU-1"): 16 * GIB}
    exposition.drop("default/a")
    assert memory(exposition) == {line("p"): 2 * GIB}
    exposition.drop("default/b")
    assert memory(exposition) == {}


def test_a_shared_claim_is_said_of_each_of_its_pods_and_an_unused_one_of_none():
    exposition = CardExposition().there(slice_of("n1", [card(0)]))
    exposition.put(holding("a", share("gpu-0", memory="4Gi"), pods=["p", "q"]))
    exposition.put(holding("b", share("gpu-0", memory="1Gi")))
    assert memory(exposition) == {line("p"): 4 * GIB, line("q"): 4 * GIB}
    exposition.put(holding("a", share("gpu-0", memory="4Gi"), pods=["q"]))
    assert memory(exposition) == {line("q"): 4 * GIB}


def test_a_claim_on_a_card_that_is_not_published_counts_once_it_is():
    exposition = CardExposition().there(slice_of("n1", []))
    exposition.put(holding("a", share("gpu-0", memory="4Gi"), pods=["p"]))
    assert memory(exposition) == {}
    exposition.there(slice_of("n1", [card(0)], version="2"))
    assert memory(exposition) == {line("p"): 4 * GIB}
    exposition.inventory.slice_changed(slice_of("n1", [card(0)], version="2"), None)
    assert memory(exposition) == {}


def pod_with(*containers, init=()):
    def written(name, claims):
        return {"name": name, "resources": {"claims": [{"name": each} for each in claims]}}

    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {
                "containers": [written(f"c{index}", claims) for index, claims in enumerate(containers)],
                "initContainers": [written("i", init)],
                "resourceClaims": [{"name": "mine", "resourceClaimName": "a"}],
            },
        },
        Pod,
    )


@pytest.mark.parametrize(
    ("pod", "index"),
    [(pod_with((), ("mine",), ("mine",)), "1"), (pod_with(("other",), init=("mine",)), ""), (None, "")],
)
def test_hamis_container_is_the_first_that_uses_the_claim(pod, index):
    exposition = CardExposition(LEGACY, pods=[pod] if pod else ()).there(slice_of("n1", [card(0)]))
    exposition.put(holding("a", share("gpu-0", memory="4Gi"), pods=["p"]))
    found = said(exposition.users)
    named = [key for key in found if key[0] == "hami_vgpu_memory_allocated_bytes"]
    assert [part for key in named for part in key if part.startswith("container_index")] == [f"container_index={index}"]
    assert any(key[0] == "vGPUMemoryAllocated" and f"containeridx={index}" in key for key in found)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_it_is_what_a_newcomer_would_say(seed):
    dice = random.Random(seed)
    exposition = CardExposition().there(nodes=("n1", "n2"))
    published = {}
    for step in range(60):
        name = dice.choice(["n1", "n2"])
        match dice.randrange(5):
            case 0:
                devices = [card(index, memory=dice.choice(["8Gi", "16Gi"])) for index in range(dice.randrange(4))]
                for each in devices:
                    each["attributes"]["hami.io/uuid"] = {"string": f"{name}-{each['name']}-{dice.randrange(2)}"}
                fresh = slice_of(name, devices, version=str(step + 2))
                exposition.inventory.slice_changed(published.get(name), fresh)
                published[name] = fresh
            case 1 if name in published:
                exposition.inventory.slice_changed(published.pop(name), None)
            case 2 if len(exposition.claims):
                exposition.drop(dice.choice([each.key for each in exposition.claims]))
            case _:
                results = [
                    share(f"gpu-{index}", name, memory=f"{dice.randrange(1, 5)}Gi", cores=str(dice.randrange(30)))
                    for index in dice.sample(range(4), dice.randrange(3))
                ]
                pods = dice.sample(["p", "q", "r"], dice.randrange(3))
                exposition.put(holding(f"c{dice.randrange(6)}", *results, pods=pods))
        if dice.random() < 0.4:
            assert exposition.now() == exposition.fresh()
    assert exposition.now() == exposition.fresh()


# --- text ------------------------------------------------------------------------------------------------------------


def test_labels_are_escaped():
    text = labels([("product", 'a "b" \\ c\nd')])
    assert text == r'product="a \"b\" \\ c\nd"'
    found = samples("".join(blocks(Gauge("g", "x"), [text], [1])))
    assert found == {("g", 'product=a "b" \\ c\nd'): 1}


def test_much_comes_in_pieces():
    many = [f'n="{number}"' for number in range(2 * BLOCK + 1)]
    pieces = list(blocks(Gauge("g", "x"), many, list(range(len(many)))))
    assert [piece.count("\n") for piece in pieces] == [2, BLOCK, BLOCK, 1]


# --- figures ---------------------------------------------------------------------------------------------------------


def collected(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


def test_packing_by_driver():
    exposition = CardExposition().there(slice_of("n1", [card(0), card(1)]))
    exposition.put(holding("c", share("gpu-1", memory="4Gi", cores="50"), pods=["p"]))
    found = collected(PackingFigures(exposition.table))
    ours = ("driver=nvidia.hami.io", "vendor=nvidia")
    states = {key[2]: value for key, value in found.items() if key[0] == "hami_dra_cards"}
    assert states == {"state=free": 1, "state=partly_used": 1, "state=full": 0, "state=unusable": 0}
    assert found["hami_dra_fragmentation_ratio", *ours] == pytest.approx(0.5 / 1.5)
    assert found["hami_dra_memory_allocated_bytes", *ours] == 4 * GIB


def test_quotas_of_one_namespace_with_the_same_key_are_told_apart():
    inventory = Inventory()
    inventory.quota_changed(None, quota_object({"nvidia.com/gpumem": 3000}, "a"))
    inventory.quota_changed(None, quota_object({"nvidia.com/gpumem": 2000}, "b"))
    found = collected(QuotaFigures(inventory, LEGACY))
    limits = {key[3]: value for key, value in found.items() if key[0] == "hami_resource_quota_limit"}
    assert limits == {"resourcequota=a": 3000, "resourcequota=b": 2000}
    assert [key for key in found if key[0] == "QuotaUsed"] == [
        ("QuotaUsed", "limit=2000", "quotaName=nvidia.com/gpumem", "quotanamespace=default", "zone=vGPU")
    ]


def test_the_queue_says_how_many_wait_and_since_when():
    queue = Queue()
    for key, created in (("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:30Z"), ("c", "2026-01-01T00:00:50Z")):
        queue.ready(key, Rank(0, created, key))
    queue.pop(0.0)
    queue.no_room("a", b"kind")
    found = collected(QueueFigures(lambda: queue, lambda: datetime(2026, 1, 1, 0, 1, tzinfo=UTC)))
    assert {key: value for key, value in found.items() if value} == {
        ("hami_dra_pending_pods", "state=ready"): 2,
        ("hami_dra_pending_pods", "state=no_room"): 1,
        ("hami_dra_pending_pod_oldest_seconds", "state=ready"): 30,
        ("hami_dra_pending_pod_oldest_seconds", "state=no_room"): 60,
    }
    assert collected(QueueFigures(lambda: None, lambda: datetime.now(UTC))) == {}


# --- the controller --------------------------------------------------------------------------------------------------


def test_only_the_leader_tells_of_the_cluster():
    async def story(harness):
        await furnish(harness)
        harness.start(**SETTINGS, leader_election=True)
        one = harness.controller
        await harness.sleep(10)
        harness.start(**SETTINGS, leader_election=True)
        two = harness.controller
        await harness.sleep(10)
        leading, standing_by = text_of(one), text_of(two)
        for name in ("hami_dra_gpu_health{", "hami_dra_cards{", "hami_resource_quota_used{", "hami_dra_pending_pods{"):
            assert (name in leading, name in standing_by) == (True, False), name
        assert "hami_dra_watched_objects{" in standing_by

    play(story, nodes=0, controller=False)


def test_cards_can_be_left_out():
    async def story(harness):
        await furnish(harness)
        await harness.sleep(1)
        text = text_of(harness.controller)
        assert "hami_dra_cards{" in text
        assert "hami_dra_gpu_" not in text
        assert "hami_dra_vgpu_" not in text

    play(story, nodes=0, card_metrics=False, **SETTINGS)


def test_a_watch_that_fails_is_counted():
    async def story(harness):
        await harness.sleep(1)
        found = samples(text_of(harness.controller))
        assert found["hami_dra_watch_lists_total", "resource=pods"] == 1
        assert found["hami_dra_watch_failures_total", "resource=pods"] == 0
        assert found["hami_dra_watched_objects", "resource=nodes"] == 2
        reflector = next(harness.controller.informers.feeds()).reflector
        assert reflector.kind is kinds.NODE
        await reflector._pause("list nodes: away")
        assert samples(text_of(harness.controller))["hami_dra_watch_failures_total", "resource=nodes"] == 1

    play(story)


async def test_while_much_is_said_others_run_and_it_comes_compressed():
    turns = []

    async def others():
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    def more():
        for number in range(50):
            before = len(turns)
            yield f'more{{n="{number}"}} 1\n' if number % 2 else ""
            assert len(turns) > before

    metrics = Metrics()
    background = asyncio.create_task(others())
    async with (
        serving("127.0.0.1", 0, render=Exposition(metrics, more).render, unready=list) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"}) as response,
    ):
        text = await response.text()
        assert response.headers["Content-Encoding"] == "gzip"
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    background.cancel()
    assert text.endswith('more{n="49"} 1\n')
    assert "hami_dra_leader 0.0" in text
