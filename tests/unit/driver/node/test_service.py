"""The node driver on the memory cluster: published, restored, tainted, refused, handed over. Virtual time."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from controller.scoring.native_order import native_ranking
from controller.scoring.policies import DevicePolicy
from hami_dra.api.kinds import DEVICE_TAINT_RULE, EVENT, NODE, RESOURCE_CLAIM, RESOURCE_SLICE
from hami_dra.discovery.errors import ToolMissing
from hami_dra.driver.kubelet.protocol import Verdict
from hami_dra.driver.node.service import NodeDriver
from hami_dra.driver.node.settings import NodeSettings, OnExit
from hami_dra.driver.node.simulated import SimulatedBackend
from hami_dra.driver.simulated import machine
from hami_dra.kube.protocol import Invalid, ServerVersion
from hami_dra.kube.requirements import UnsupportedKubernetes
from tests.support.node import FakePlugin, at_once, claim_on
from tests.support.settings import vendor_settings
from tests.support.steered_cluster import SteeredCluster
from tests.support.virtual_time import VirtualClock, run

NODE_NAME = "n1"
DRIVER = "nvidia.hami.io"
FENCE = "hami.io/controller-allocates"
OLD = ServerVersion(1, 36, "v1.36.4")


class Absent:
    """A vendor without hardware on this machine."""

    tells_events = False

    def __init__(self, vendor):
        self.vendor = vendor

    def discover(self):
        raise ToolMissing(f"no tool of {self.vendor}")

    health = discover

    def close(self):
        pass


class DriverHarness:
    """A node, a simulated machine, and the drivers that a test starts on it."""

    def __init__(self, folder, *, machine_name="g4dn.12xlarge", version=None):
        self.folder = folder
        self.file = folder / "faults"
        self.cards = machine(machine_name, NODE_NAME).cards
        clock = VirtualClock()
        self.wall = clock.wall
        self.cluster = SteeredCluster(*([version] if version else []), now=clock.wall)
        self.plugins = []

    async def __aenter__(self):
        await self.add_node()
        return self

    async def __aexit__(self, *_):
        pass

    async def add_node(self, **metadata):
        return await self.cluster.create(NODE, {"metadata": {"name": NODE_NAME, **metadata}})

    async def annotate(self, text):
        await self.cluster.patch(NODE, NODE_NAME, {"metadata": {"annotations": {"hami.io/device-cordon": text}}})

    async def allocatable(self, **resources):
        named = {name.replace("_", "/").replace("0", "."): amount for name, amount in resources.items()}
        await self.cluster.patch(NODE, NODE_NAME, {"status": {"allocatable": named}}, subresource="status")

    def driver(self, *backends, demanded=("nvidia",), **settings):
        vendor = self.cards[0].vendor
        return NodeDriver(
            self.cluster,
            NodeSettings(node=NODE_NAME, root=self.folder, **settings),
            backends or [SimulatedBackend(vendor, self.cards, self.file)],
            self.plugin,
            demanded=demanded,
            wall=self.wall,
            call=at_once,
        )

    def plugin(self, runtime):
        self.plugins.append(FakePlugin(runtime))
        return self.plugins[-1]

    @contextlib.asynccontextmanager
    async def running(self, *backends, **settings):
        driver = self.driver(*backends, **settings)
        task = asyncio.create_task(driver.run())
        await asyncio.sleep(2)
        try:
            yield driver
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def slices(self):
        return (await self.cluster.list(RESOURCE_SLICE)).items

    async def devices(self):
        return [device for item in await self.slices() for device in item.spec.devices]

    async def names(self):
        return [device.name for device in await self.devices()]

    async def taints(self):
        """Device → its taints, without times."""
        return {
            device.name: [(taint.key, taint.value, taint.effect) for taint in device.taints]
            for device in await self.devices()
            if device.taints
        }

    async def times(self):
        return {taint.time_added for device in await self.devices() for taint in device.taints}

    async def events(self):
        items = (await self.cluster.list(EVENT)).items
        raw = [await self.cluster.get_raw(EVENT, item.metadata.name, item.metadata.namespace) for item in items]
        return [(event["type"], event["reason"], event["note"]) for event in raw]

    async def hold(self, name, device, **consumed):
        """An allocated claim on a device of the node."""
        body = claim_on(name, DRIVER, NODE_NAME, device, consumed or None)
        status = body.pop("status")
        await self.cluster.create(RESOURCE_CLAIM, body)
        patch = {"status": status}
        await self.cluster.patch(RESOURCE_CLAIM, name, patch, namespace="default", subresource="status")


def story(folder, **options):
    """Runs an async function with a World."""

    def decorate(scenario):
        async def whole():
            async with DriverHarness(folder, **options) as harness:
                await scenario(harness)

        run(whole())

    return decorate


# --- publishing ------------------------------------------------------------------------------------------------------


def test_the_cards_of_the_node_are_published_as_its_own(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running() as driver:
            (item,) = await harness.slices()
            node = await harness.cluster.get(NODE, NODE_NAME)
            (owner,) = item.metadata.owner_references
            assert (owner.kind, owner.uid) == ("Node", node.metadata.uid)
            assert (item.spec.driver, item.spec.node_name, item.spec.pool.name) == (DRIVER, NODE_NAME, NODE_NAME)
            assert await harness.names() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
            assert await harness.taints() == {}
            assert driver.unready() == []
            writes = dict(harness.cluster.requests)
            await asyncio.sleep(3600)
            assert harness.cluster.requests["patch resourceslices"] == writes.get("patch resourceslices", 0)
            assert (await harness.slices())[0].metadata.resource_version == item.metadata.resource_version
        assert not harness.plugins[0].running
        assert await harness.names() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]  # kept on exit


def test_slices_that_kubelet_wiped_are_back_at_once(tmp_path):
    @story(tmp_path)
    async def _(harness):
        harness.file.write_text("1 xid-79\n")
        async with harness.running():
            before = await harness.times()
            await asyncio.sleep(600)
            (item,) = await harness.slices()
            await harness.cluster.delete(RESOURCE_SLICE, item.metadata.name)
            await asyncio.sleep(3)
            assert len(await harness.names()) == 4
            assert await harness.times() == before != set()  # a taint does not begin anew


def test_a_node_that_was_made_anew_gets_slices_of_its_own(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running() as driver:
            await harness.cluster.delete(NODE, NODE_NAME)
            await asyncio.sleep(2)
            assert await harness.slices() == ()
            assert "there is no Node n1" in driver.unready()[0]
            node = await harness.add_node()
            await asyncio.sleep(2)
            (item,) = await harness.slices()
            assert [owner.uid for owner in item.metadata.owner_references] == [node.metadata.uid]
            assert driver.unready() == []


def test_slices_of_other_nodes_and_drivers_are_left_alone(tmp_path):
    @story(tmp_path)
    async def _(harness):
        for name, node, driver in (
            ("a", "other", DRIVER),
            ("b", NODE_NAME, "gpu.nvidia.com"),
            ("c", NODE_NAME, DRIVER),
        ):
            spec = {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            }
            await harness.cluster.create(RESOURCE_SLICE, {"metadata": {"name": name}, "spec": {**spec, "devices": []}})
        async with harness.running():
            await asyncio.sleep(2)
            found = {item.metadata.name for item in await harness.slices()}
            assert {"a", "b"} < found
            assert "c" not in found  # ours, of a pool that is no more


def test_a_refused_slice_is_named_and_makes_the_driver_unready(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        harness.cluster.fail_next(Invalid("spec.devices[0].name: not a name"), verb="create", kind=RESOURCE_SLICE)
        async with harness.running() as driver:
            assert driver.unready() == ["pool nvidia.hami.io/n1: spec.devices[0].name: not a name"]

    assert "pool nvidia.hami.io/n1: the API server refuses the slice" in caplog.text


def test_on_exit_slices_may_be_withdrawn(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running(on_exit=OnExit.WITHDRAW):
            assert len(await harness.names()) == 4
        assert await harness.slices() == ()


def test_below_1_36_it_says_what_it_needs(tmp_path):
    async def scenario():
        harness = DriverHarness(tmp_path, version=ServerVersion(1, 35, "v1.35.0"))
        with pytest.raises(UnsupportedKubernetes, match=r"hami-dra needs Kubernetes 1\.36 or newer"):
            await harness.driver().run()

    run(scenario())


# --- hardware --------------------------------------------------------------------------------------------------------


def test_vendors_are_served_where_they_are_found(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        backends = [Absent("metax"), SimulatedBackend("nvidia", harness.cards)]
        async with harness.running(*backends, demanded=()) as driver:
            assert {item.spec.driver for item in await harness.slices()} == {DRIVER}
            assert [plugin.runtime.driver for plugin in harness.plugins] == [DRIVER]
            assert driver.unready() == []

    assert "metax" not in "".join(record.message for record in caplog.records if record.levelno >= logging.WARNING)


def test_a_node_without_any_card_says_so_once_and_stays_ready(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        async with harness.running(Absent("metax"), Absent("nvidia"), demanded=()) as driver:
            await asyncio.sleep(1000)
            assert driver.unready() == []
            assert await harness.slices() == ()

    assert caplog.text.count("there is nothing to publish on this node") == 1
    assert "metax: no tool of metax; nvidia: no tool of nvidia" in caplog.text


def test_a_vendor_that_was_asked_for_has_an_empty_slice_until_cards_are_found(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running(Absent("nvidia")) as driver:
            (item,) = await harness.slices()
            assert item.spec.devices == ()
            assert driver.unready() == ["nvidia.hami.io: no tool of nvidia"]


def test_what_a_driver_before_published_stays_while_the_hardware_cannot_be_read(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running():
            pass
        async with harness.running(Absent("nvidia")):
            assert len(await harness.names()) == 4


def test_slices_of_cards_that_were_taken_out_are_emptied(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running(demanded=()):
            assert len(await harness.names()) == 4
        async with harness.running(SimulatedBackend("nvidia", ()), demanded=()):
            assert [item.spec.devices for item in await harness.slices()] == [()]


def test_a_card_that_cannot_be_published_does_not_hide_the_others(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        harness.cards = (harness.cards[0], replace(harness.cards[1], uuid="x" * 65), *harness.cards[2:])
        async with harness.running():
            assert await harness.names() == ["gpu-0", "gpu-2", "gpu-3"]

    assert "is not published: card 1: the uuid" in caplog.text


# --- faults and cordons ----------------------------------------------------------------------------------------------


def test_a_card_that_fails_is_tainted_and_recovers(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running() as driver:
            harness.file.write_text("2 xid-79 fell off the bus\n")
            await asyncio.sleep(11)
            assert await harness.taints() == {"gpu-2": [("hami.io/xid", "xid-79", "NoSchedule")]}
            sick = [each for each in driver.runtimes["nvidia"].health.current() if each.verdict is not Verdict.HEALTHY]
            assert [(each.device, each.message) for each in sick] == [("gpu-2", "xid-79: fell off the bus")]
            harness.file.unlink()
            await asyncio.sleep(80)
            assert await harness.taints() == {}


def test_a_lost_card_drives_pods_out_only_once_that_is_certain(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running():
            harness.file.write_text("0 lost\n")
            await asyncio.sleep(11)
            assert await harness.taints() == {"gpu-0": [("hami.io/lost", "lost", "NoSchedule")]}
            await asyncio.sleep(31)
            assert await harness.taints() == {"gpu-0": [("hami.io/lost", "lost", "NoExecute")]}
            assert len(await harness.names()) == 4


def test_the_operator_chooses_effects(tmp_path):
    @story(tmp_path)
    async def _(harness):
        effects = {"lost": "NoSchedule", "xid": "None"}
        async with harness.running(effects=effects):
            harness.file.write_text("0 lost\n1 xid-79\n")
            await asyncio.sleep(60)
            assert await harness.taints() == {
                "gpu-0": [("hami.io/lost", "lost", "NoSchedule")],
                "gpu-1": [("hami.io/xid", "xid-79", "None")],
            }


def test_a_taint_keeps_its_time_over_a_restart(tmp_path):
    @story(tmp_path)
    async def _(harness):
        harness.file.write_text("1 xid-79\n")
        async with harness.running():
            before = await harness.times()
        await asyncio.sleep(3600)
        async with harness.running():
            await asyncio.sleep(60)
            assert await harness.times() == before != set()


def test_what_drove_pods_out_goes_on_doing_so_after_a_restart(tmp_path):
    @story(tmp_path)
    async def _(harness):
        harness.file.write_text("1 unhealthy\n")
        evicted = {"gpu-1": [("hami.io/unhealthy", "unhealthy", "NoExecute")]}
        async with harness.running(effects={"unhealthy": "NoExecute"}):
            await asyncio.sleep(60)
            assert await harness.taints() == evicted
            before = await harness.times()
        async with harness.running(effects={"unhealthy": "NoExecute"}):
            assert await harness.taints() == evicted
            assert await harness.times() == before


def test_a_card_is_cordoned_by_index_and_uuid_and_let_go(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        cordoned = [("hami.io/cordoned", "", "NoSchedule")]
        async with harness.running() as driver:
            await harness.annotate(f"1, {harness.cards[3].uuid.upper()},, 9")
            await asyncio.sleep(2)
            assert await harness.taints() == {"gpu-1": cordoned, "gpu-3": cordoned}
            assert {each.verdict for each in driver.runtimes["nvidia"].health.current()} == {Verdict.HEALTHY}
            ((kind, reason, note),) = await harness.events()
            assert (kind, reason) == ("Warning", "UnknownDeviceCordoned")
            assert note.startswith("annotation hami.io/device-cordon: 9: there is no such card")
            await harness.annotate(None)
            await asyncio.sleep(2)
            assert await harness.taints() == {}

    assert "there is no such card" in caplog.text


# --- device plugins --------------------------------------------------------------------------------------------------


def test_cards_that_a_device_plugin_offers_are_not_published(tmp_path, caplog):
    @story(tmp_path)
    async def _(harness):
        await harness.allocatable(nvidia0com_gpu="4")
        async with harness.running():
            assert [item.spec.devices for item in await harness.slices()] == [()]
            ((kind, reason, note),) = await harness.events()
            assert (kind, reason) == ("Warning", "DevicePluginPresent")
            assert "nvidia.com/gpu: 4 in status.allocatable" in note
            await harness.allocatable(nvidia0com_gpu="0")
            await asyncio.sleep(2)
            assert len(await harness.names()) == 4
            assert [reason for _, reason, _ in await harness.events()] == ["DevicePluginPresent", "DevicePluginGone"]
            await harness.allocatable(nvidia0com_gpu="1")
            await asyncio.sleep(2)
            assert await harness.names() == []

    assert "Remove the device plugin from this node" in caplog.text


def test_other_resources_of_the_node_do_not_matter(tmp_path):
    @story(tmp_path)
    async def _(harness):
        await harness.allocatable(cpu="8", metax_tech_com="1")
        async with harness.running():
            assert len(await harness.names()) == 4


def test_publishing_beside_a_device_plugin_may_be_asked_for(tmp_path):
    @story(tmp_path)
    async def _(harness):
        await harness.allocatable(nvidia0com_gpu="4")
        async with harness.running(beside_plugin=True):
            assert len(await harness.names()) == 4
            assert await harness.events() == []


# --- the fence -------------------------------------------------------------------------------------------------------


def test_where_there_are_no_taint_rules_the_fence_is_in_the_slices(tmp_path):
    @story(tmp_path, version=OLD)
    async def _(harness):
        async with harness.running():
            assert {taint for taints in (await harness.taints()).values() for taint in taints} == {
                (FENCE, "", "NoSchedule")
            }


def test_native_mode_has_no_fence(tmp_path):
    @story(tmp_path, version=OLD)
    async def _(harness):
        async with harness.running(native=True):
            assert await harness.taints() == {}


def test_after_an_upgrade_the_fence_leaves_the_slices_when_the_rule_is_in_force(tmp_path):
    @story(tmp_path, version=OLD)
    async def _(harness):
        async with harness.running():
            assert len(await harness.taints()) == 4
        upgraded = SteeredCluster(now=harness.wall)
        for item in await harness.slices():
            upgraded.put_raw(RESOURCE_SLICE, await harness.cluster.get_raw(RESOURCE_SLICE, item.metadata.name))
        upgraded.put_raw(NODE, await harness.cluster.get_raw(NODE, NODE_NAME))
        harness.cluster = upgraded
        async with harness.running():
            await asyncio.sleep(60)
            assert len(await harness.taints()) == 4
            taint = {"key": FENCE, "effect": "NoSchedule"}
            spec = {"deviceSelector": {"driver": DRIVER}, "taint": taint}
            await upgraded.create(DEVICE_TAINT_RULE, {"metadata": {"name": "fence"}, "spec": spec})
            await asyncio.sleep(30)
            assert await harness.taints() == {}


# --- native mode -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", ["gpu-2", "gpu-0", "gpu-1", "gpu-3"]), ("spread", ["gpu-0", "gpu-1", "gpu-3", "gpu-2"])],
)
def test_devices_are_ordered_by_policy_as_claims_come_and_go(tmp_path, policy, expected):
    @story(tmp_path)
    async def _(harness):
        await harness.hold("elsewhere", "gpu-9", memory="1Gi")
        async with harness.running(native=True, ranking=native_ranking(DevicePolicy((policy,)))):
            assert await harness.names() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
            await harness.hold("part", "gpu-2", memory="5Gi", cores="0", shares="1")
            await asyncio.sleep(2)
            assert await harness.names() == expected
            await harness.cluster.delete(RESOURCE_CLAIM, "part", namespace="default")
            await asyncio.sleep(2)
            assert await harness.names() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_in_exclusive_mode_claims_are_not_even_read(tmp_path):
    @story(tmp_path)
    async def _(harness):
        async with harness.running():
            await asyncio.sleep(10)
        assert not harness.cluster.requests["list resourceclaims"]
        assert not harness.cluster.requests["watch resourceclaims"]


# --- two at once -----------------------------------------------------------------------------------------------------


def test_of_two_drivers_the_first_publishes_until_it_ends(tmp_path):
    """A rolling update: the new version would write other slices, and must not fight with the old one."""

    def slots(items):
        return {device.capacity["shares"].value for item in items for device in item.spec.devices}

    @story(tmp_path)
    async def _(harness):
        old = asyncio.create_task(harness.driver(instance="old").run())
        await asyncio.sleep(2)
        async with harness.running(instance="new", options=vendor_settings(slots=3)) as new:
            await asyncio.sleep(30)
            assert new.unready() == []  # or the update would never go on
            assert slots(await harness.slices()) == {"10"}
            writes = harness.cluster.requests["patch resourceslices"]
            old.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await old
            await asyncio.sleep(3)
            assert slots(await harness.slices()) == {"3"}
            assert harness.cluster.requests["patch resourceslices"] == writes + 1
