"""What the fleet publishes, on a real API server, and what the unmodified kube-scheduler makes of it."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from controller.cli.main import register
from hami_dra.api.config import FleetFile
from hami_dra.api.kinds import NODE, RESOURCE_SLICE
from hami_dra.driver.fleet.run import Fleet
from hami_dra.driver.publisher import Publisher
from hami_dra.driver.simulated import machine, machine_names
from hami_dra.driver.slices import machine_pools, pool_of, slice_name
from hami_dra.kube.http import connect

pytestmark = pytest.mark.on_1_36

ROOT = Path(__file__).resolve().parents[2]
CLASSES = sorted((ROOT / "deviceclasses").rglob("*.yaml"))


@pytest.fixture
async def cluster(control_plane):
    cluster = connect(str(control_plane.admin_kubeconfig))
    yield cluster
    await cluster.close()


@pytest.fixture
def classes(create):
    for path in CLASSES:
        create(yaml.safe_load(path.read_text()))


@pytest.fixture
async def fleet(cluster):
    """`await fleet(nodes=[...])`: published once, on nodes that the test made; removed after it."""
    fleets = []

    async def make(fence="off", **fields):
        it = Fleet(cluster, FleetFile.model_validate({"createNodes": False, **fields}), fence=fence)
        fleets.append(it)
        await it.sync_once()
        return it

    yield make
    for it in fleets:
        it.update(FleetFile(create_nodes=False))
        await it.sync_once()


@pytest.fixture
def published(nodes, fleet, classes):
    """`await published(node, machine)`: a node with its slices, and all our classes."""

    async def make(node, machine_name):
        nodes.create(node)
        await fleet(nodes=[{"machine": machine_name, "name": node}])

    return make


async def raw_slices(cluster, node):
    listing = await cluster.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={node}")
    return [await cluster.get_raw(RESOURCE_SLICE, item.metadata.name) for item in listing.items]


async def becomes(look, expected):
    for _ in range(600):
        if await look() == expected:
            return
        await asyncio.sleep(0.05)
    assert await look() == expected


@contextlib.asynccontextmanager
async def running(thing):
    task = asyncio.create_task(thing.run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- stored as sent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", machine_names())
async def test_the_server_stores_exactly_the_golden_slices(cluster, name, caplog):
    node = name.replace(".", "-")
    golden = list(yaml.safe_load_all((ROOT / f"resourceslices/{name}.yaml").read_text()))
    publisher = Publisher(cluster, owns=lambda item: item.spec.node_name == node)
    for pool in machine_pools(machine(name, node)):
        publisher.want(pool)
    with caplog.at_level(logging.WARNING, "hami_dra"):
        await publisher.sync_once()
    assert [item["spec"] for item in await raw_slices(cluster, node)] == [item["spec"] for item in golden]
    assert not caplog.records
    for key in list(publisher.wanted):
        publisher.drop(key)
    await publisher.sync_once()
    assert not await raw_slices(cluster, node)


def test_files_are_checked_by_the_server_that_stores_nothing(control_plane, api, tmp_path):
    golden = ROOT / "resourceslices/g4dn.12xlarge.yaml"
    asked = ["--kubeconfig", str(control_plane.admin_kubeconfig), "--check"]
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app, "slices")
    assert CliRunner().invoke(app, [*asked, str(golden)]).stdout == "1 ResourceSlice, no problems\n"
    (body,) = yaml.safe_load_all(golden.read_text())
    body["spec"]["devices"][1]["name"] = "GPU-1"
    path = tmp_path / "slice.yaml"
    path.write_text(yaml.safe_dump(body))
    found = CliRunner().invoke(app, [*asked, str(path)])
    assert found.exit_code == 1
    assert f"{path}, document 1: " in found.stdout
    assert 'spec.devices[1].name: Invalid value: "GPU-1"' in found.stdout
    assert body["metadata"]["name"] not in str(api.get("/apis/resource.k8s.io/v1/resourceslices"))


@pytest.mark.parametrize(
    "imitation",
    [
        {"machine": "g5.12xlarge", "publishAs": "gpu.nvidia.com"},
        {"machine": "g5.12xlarge", "publishAs": "hami-core-gpu.project-hami.io"},
        {"machine": "trn1.32xlarge", "publishAs": "neuron.aws.com"},
    ],
    ids=lambda imitation: imitation["publishAs"],
)
async def test_imitated_slices_are_accepted_whole(cluster, nodes, fleet, caplog, imitation):
    nodes.create("other", wait=False)
    with caplog.at_level(logging.WARNING, "hami_dra"):
        await fleet(nodes=[imitation | {"name": "other"}])
    (item,) = await raw_slices(cluster, "other")
    assert item["spec"]["driver"] == imitation["publishAs"]
    assert not caplog.records


async def test_a_large_pool_grows_shrinks_and_is_restored(cluster):
    def pool(count, version=1):
        return pool_of(
            "big.hami.io", "big", [{"name": f"d{n}", "attributes": {"v": {"int": version}}} for n in range(count)]
        )

    publisher = Publisher(cluster, owns=lambda item: item.spec.driver == "big.hami.io")

    async def offered():
        items = (await cluster.list(RESOURCE_SLICE, field_selector="spec.driver=big.hami.io")).items
        return sorted((item.spec.pool.generation, len(item.spec.devices)) for item in items)

    async with running(publisher):
        publisher.want(pool(300))
        await becomes(offered, [(1, 44), (1, 128), (1, 128)])
        publisher.want(pool(300, version=2))
        await becomes(offered, [(2, 44), (2, 128), (2, 128)])
        await cluster.delete(RESOURCE_SLICE, slice_name(pool(300), 1))
        await becomes(offered, [(3, 44), (3, 128), (3, 128)])
        publisher.want(pool(0))
        await becomes(offered, [(3, 0)])
        for key in list(publisher.wanted):
            publisher.drop(key)
        await becomes(offered, [])


async def test_a_machine_goes_into_mig_mode_and_back(cluster, nodes, fleet, caplog):
    """A slice of devices becomes one of counters: on a server that knows both, and refuses them together."""
    nodes.create("cut", wait=False)
    group = {"machine": "dgx-a100", "name": "cut"}
    it = await fleet(nodes=[group])

    async def shape():
        specs = [item["spec"] for item in await raw_slices(cluster, "cut")]
        assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
        (generation,) = {spec["pool"]["generation"] for spec in specs}
        return generation, [(len(spec.get("sharedCounters", ())), len(spec.get("devices", ()))) for spec in specs]

    assert await shape() == (1, [(0, 8)])
    with caplog.at_level(logging.WARNING, "hami_dra"):
        for mig, expected in ((True, [(8, 0), (0, 64), (0, 64), (0, 24)]), (False, [(0, 8)])):
            it.update(FleetFile.model_validate({"createNodes": False, "nodes": [group | {"mig": mig}]}))
            await it.sync_once()
            assert await shape() == (2, expected)  # back: slices go, and a single one is changed
    assert not caplog.records


# --- fence -----------------------------------------------------------------------------------------------------------


async def test_the_fence_is_in_the_slices_only_where_there_are_no_taint_rules(
    cluster, nodes, fleet, control_plane, caplog
):
    nodes.create("t4", wait=False)
    with caplog.at_level(logging.WARNING, "hami_dra"):
        it = await fleet(fence="auto", nodes=[{"machine": "g4dn.12xlarge", "name": "t4"}])
        await it.sync_once()
    (item,) = await raw_slices(cluster, "t4")
    taints = {taint["key"] for device in item["spec"]["devices"] for taint in device.get("taints", ())}
    assert taints == ({"hami.io/controller-allocates"} if control_plane.version.startswith("1.36.") else set())
    assert not caplog.records
    assert (
        item["spec"]["pool"]["generation"] == 1
    )  # the times that the server gave the taints are no reason to write again


# --- nodes -----------------------------------------------------------------------------------------------------------


async def test_a_fleet_makes_and_removes_its_nodes(cluster):
    file = {
        "name": "e2e",
        "nodes": [{"machine": "g5.12xlarge", "count": 3, "name": "a10g-{index}"}],
        "zones": ["a", "b"],
    }
    it = Fleet(cluster, FleetFile.model_validate(file))
    await it.sync_once()
    made = (await cluster.list(NODE, label_selector="hami.io/fleet=e2e")).items
    assert [node.metadata.name for node in made] == ["a10g-0", "a10g-1", "a10g-2"]
    assert all(node.status.allocatable["cpu"] == "48" for node in made)
    (item,) = await raw_slices(cluster, "a10g-1")
    assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [made[1].metadata.uid]
    it.update(FleetFile(name="e2e"))
    await it.sync_once()
    assert not (await cluster.list(NODE, label_selector="hami.io/fleet=e2e")).items
    assert not await raw_slices(cluster, "a10g-1")


# --- kube-scheduler --------------------------------------------------------------------------------------------------


def pod(name, resources=None, claim=None):
    container = {"name": "main", "image": "none", "resources": resources or {}}
    spec = {"containers": [container]}
    if claim:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claim(name, device_class, **requests):
    exactly = {"deviceClassName": device_class} | ({"capacity": {"requests": requests}} if requests else {})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def runs(api, item):
    return api.wait_for(f"{item['metadata']['name']} runs", lambda: _phase(api, item) == "Running", seconds=60)


def _phase(api, item):
    return api.read(item)["status"].get("phase")


def settles(api, item):
    """True once the pod runs, False once kube-scheduler has no place for it."""

    def settled():
        status = api.read(item)["status"]
        reasons = {condition.get("reason") for condition in status.get("conditions", [])}
        return status.get("phase") == "Running" or "Unschedulable" in reasons

    api.wait_for(f"{item['metadata']['name']} settles", settled, seconds=60)
    return _phase(api, item) == "Running"


def claims_beside(api, item):
    """All claims of the namespace of `item`."""
    return api.list(f"/apis/resource.k8s.io/v1/namespaces/{item['metadata']['namespace']}/resourceclaims")


def results_of(claim):
    return claim.get("status", {}).get("allocation", {"devices": {"results": []}})["devices"]["results"]


def result(api, item):
    (only,) = api.read(item)["status"]["allocation"]["devices"]["results"]
    return only["device"], only.get("consumedCapacity", {})


async def test_parts_share_a_card_and_a_whole_card_wants_it_for_itself(api, create, nodes, fleet, classes):
    nodes.create("t4")
    await fleet(nodes=[{"machine": "g4dn.12xlarge", "name": "t4"}])
    parts = [claim(f"part-{n}", "nvidia-vgpu.hami.io", memory="7500Mi", cores="0") for n in range(3)]
    for item in parts:
        stored = create(item)
        runs(api, create(pod(item["metadata"]["name"], claim=item["metadata"]["name"])))
        item.update(stored)
    assert [result(api, item) for item in parts] == [
        ("gpu-0", {"memory": "7500Mi", "cores": "0", "shares": "1"}),
        ("gpu-0", {"memory": "7500Mi", "cores": "0", "shares": "1"}),
        ("gpu-1", {"memory": "7500Mi", "cores": "0", "shares": "1"}),
    ]
    whole = [create(claim(f"whole-{n}", "nvidia-gpu.hami.io")) for n in range(3)]
    running_pods = [settles(api, create(pod(f"whole-{n}", claim=f"whole-{n}"))) for n in range(3)]
    assert sorted(running_pods) == [False, True, True]
    full = {"memory": "15Gi", "cores": "100", "shares": "1"}
    allocated = [item for item, is_running in zip(whole, running_pods, strict=True) if is_running]
    assert sorted(result(api, item) for item in allocated) == [("gpu-2", full), ("gpu-3", full)]


WHOLE = {
    # machine: extended resource, memory that a card without a request for capacity takes
    "g5.12xlarge": ("nvidia.com/gpu", "23028Mi"),
    "c500-8": ("metax-tech.com/gpu", "64Gi"),
    "p800-oam-8": ("kunlunxin.com/xpu", "96Gi"),
    "inf2.48xlarge": ("aws.amazon.com/neuron", "16Gi"),  # of one core; the cores are what is taken
    "s60-8": ("enflame.com/gcu", "42976Mi"),
}


@pytest.mark.parametrize("machine_name", WHOLE)
async def test_a_plain_extended_resource_is_a_whole_card(api, create, published, machine_name):
    """KEP-5004: what native mode relies on."""
    resource, memory = WHOLE[machine_name]
    await published("plain", machine_name)
    half = len(machine(machine_name, "plain").cards) // 2
    pods = [create(pod(f"plain-{n}", resources={"limits": {resource: str(half)}})) for n in range(3)]
    assert sorted(settles(api, item) for item in pods) == [False, True, True]
    results = [one for item in claims_beside(api, pods[0]) for one in results_of(item)]
    assert len({one["device"] for one in results}) == len(results) == 2 * half
    assert {one["consumedCapacity"]["memory"] for one in results} == {memory}


PARTS = {
    # machine: class, what is asked for, what is consumed, how many fit on one card
    "c500-8": ("metax-sgpu.hami.io", {"memory": "30Gi", "cores": "40"}, {"memory": "30Gi", "cores": "40"}, 2),
    "p800-oam-8": ("kunlunxin-vxpu.hami.io", {"memory": "20Gi", "cores": "25"}, {"memory": "24Gi", "cores": "25"}, 4),
    "inf2.48xlarge": ("neuron-core.hami.io", {"neuroncores": "1"}, {"neuroncores": "1", "memory": "16Gi"}, 2),
    "s60-8": (
        "enflame-vgcu.hami.io",
        {"memory": "9Gi", "cores": "22"},
        {"memory": "10744Mi", "cores": "25", "slices": "1"},
        4,
    ),
}


@pytest.mark.parametrize("machine_name", PARTS)
async def test_parts_of_cards_are_rounded_and_share_one(api, create, published, machine_name):
    device_class, asked, consumed, on_one_card = PARTS[machine_name]
    await published("parts", machine_name)
    parts = [claim(f"part-{n}", device_class, **asked) for n in range(on_one_card + 1)]
    for item in parts:
        stored = create(item)
        runs(api, create(pod(item["metadata"]["name"], claim=item["metadata"]["name"])))
        item.update(stored)
    devices = [result(api, item)[0] for item in parts]
    assert devices.count(devices[0]) == on_one_card
    assert consumed.items() <= result(api, parts[0])[1].items()


def topology(*arguments):
    """What `hami-dra topology` prints."""
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app, "topology")
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


async def test_a_card_is_shared_or_cut_but_never_both(api, create, published, control_plane):
    """Shared counters, as the unmodified kube-scheduler counts them."""
    await published("mig", "a2-ultragpu-2g-mig")

    def instance(name, profile):
        made = claim(name, "nvidia-mig.hami.io")
        expression = f'device.attributes["nvidia.hami.io"].profile == "{profile}"'
        made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
        return made

    wanted = [
        (claim("share-0", "nvidia-gpu.hami.io", memory="8Gi", cores="0"), "gpu-0"),
        (claim("share-1", "nvidia-gpu.hami.io", memory="8Gi", cores="0"), "gpu-0"),
        (instance("half-0", "3g.40gb"), "gpu-1-mig-3g-40gb-0"),
        (instance("half-1", "3g.40gb"), "gpu-1-mig-3g-40gb-4"),
    ]
    for item, device in wanted:
        name = item["metadata"]["name"]
        stored = create(item)
        runs(api, create(pod(name, claim=name)))
        assert result(api, stored)[0] == device
    for item in (instance("seventh", "1g.10gb"), claim("whole", "nvidia-gpu.hami.io")):
        name = item["metadata"]["name"]
        create(item)
        assert not settles(api, create(pod(name, claim=name)))
    shown = await asyncio.to_thread(topology, "mig", "--kubeconfig", control_plane.admin_kubeconfig)
    assert "64Gi of 80Gi memory, 100 of 100 cores, 8 of 10 shares" in shown
    assert "cut: mig-3g-40gb-0, mig-3g-40gb-4" in shown


async def test_hami_dra_claims_are_allocated_on_imitated_slices(api, create, nodes, fleet, classes):
    nodes.create("a10g")
    await fleet(nodes=[{"machine": "g5.12xlarge", "name": "a10g", "publishAs": "hami-core-gpu.project-hami.io"}])
    for file in ("claims", "pods"):
        for item in yaml.safe_load_all((ROOT / f"tests/golden/hami-dra/{file}.yaml").read_text()):
            del item["metadata"]["namespace"]  # the test has one of its own
            stored = create(item)
            if item["kind"] == "Pod":
                runs(api, stored)
    claims = claims_beside(api, stored)
    assert len(claims) == 4
    assert {one["driver"] for item in claims for one in results_of(item)} == {"hami-core-gpu.project-hami.io"}
