"""Looks at cards, one after the other, through the real parsers: whatever the tools do, healthy cards keep their pods and their names.

Tools fail, hang, come back, give less, give other orders, give garbage; drivers start anew; minutes pass. What drives pods out (NoExecute)
begins only for a card that no listing named for the whole confirm time, in which all listings that used to show it answered. A uuid and the name of its device never part.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.discovery.memory import LOST
from hami_dra.driver.node.damping import FlapDamper
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.pool_content import NodeReference, PoolOptions, devices_of, pool_content, uuid_of
from hami_dra.driver.node.settings import EFFECTS
from hami_dra.vendors.registry import PUBLISHING_VENDORS
from tests.support.examples import examples
from tests.support.node import at_once
from tests.support.pretended_cards import COUNT, VENDORS, Machine, NvmlMachine, nvml_uuid
from tests.support.virtual_time import run

CONFIRM, RECOVERY, HEALTH, DISCOVER = 30.0, 60.0, 10.0, 45.0
PUBLISHING = {vendor.name: vendor for vendor in PUBLISHING_VENDORS}

WEATHER = st.lists(
    st.tuples(
        st.sampled_from([10, 20, 40, 90, 300]),
        st.sampled_from([0.0, 0.0, 0.2, 0.6, 1.0]),
        st.none()
        | st.tuples(
            st.sampled_from(["fails", "less", "order", "unreadable"]), st.integers(0, 2), st.integers(0, COUNT - 1)
        ),
        st.none() | st.integers(0, COUNT - 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
"""(seconds, how likely a run of the tool goes wrong, what goes wrong all the time, the card that is not there meanwhile,
whether the driver starts again afterwards)."""


class Watcher:
    """A driver's hardware on a pretended machine, and what it would publish."""

    def __init__(self, machine, folder):
        self.machine = machine
        self.folder = folder
        self.names = {}
        """Name of a device → uuid."""
        self.evicting = set()
        self.begun = []
        """(time, uuid) at which NoExecute began, in order."""
        self.runs_before = []
        """Runs of the tool until then, of each of them."""
        self.hardware = None

    @contextlib.asynccontextmanager
    async def driver(self):
        backend = self.machine.vendor.backend(self.folder, self.machine, self.folder / "sys")
        self.hardware = Hardware(
            backend,
            FlapDamper(RECOVERY, CONFIRM),
            discover_every=DISCOVER,
            health_every=HEALTH,
            on_change=self.look,
            call=at_once,
        )
        self.evicting = set()
        task = asyncio.create_task(self.hardware.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    @property
    def devices(self):
        """The cards, without the parts that could be cut from them."""
        vendor = PUBLISHING[self.machine.vendor.published]
        hardware = self.hardware
        offer = pool_content(
            vendor, NodeReference("n", ""), hardware.cards, hardware.faults, PoolOptions(effects=EFFECTS)
        )
        return [device for device in devices_of(offer.pool) if "parentUUID" not in device["attributes"]]

    def look(self):
        now = asyncio.get_running_loop().time()
        evicting = set()
        for device in self.devices:
            uuid = uuid_of(device)
            assert self.names.setdefault(device["name"], uuid) == uuid
            if any(taint["effect"] == "NoExecute" for taint in device.get("taints", ())):
                evicting.add(uuid)
        assert len(set(self.names.values())) == len(self.names)
        began = [(now, uuid) for uuid in evicting - self.evicting]
        self.begun += began
        self.runs_before += [len(getattr(self.machine, "runs", ()))] * len(began)
        self.evicting = evicting


def lost(watcher):
    """Uuids of the cards that count as lost now."""
    return {uuid for uuid, faults in watcher.hardware.faults.items() if any(each.fault.code == LOST for each in faults)}


def story(vendor, seed, scenario):
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(VENDORS[vendor], seed)
        machine.now = lambda: asyncio.get_running_loop().time()
        watcher = Watcher(machine, Path(folder))
        run(scenario(machine, watcher))
        return watcher


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=examples(12), deadline=None)
@given(weather=WEATHER, seed=st.integers(0, 1 << 32))
def test_cards_that_are_there_keep_their_pods_and_their_names(vendor, weather, seed):
    """And one that is not there loses its pods only once nothing has shown it for the confirm time."""

    async def scenario(machine, watcher):
        driver = watcher.driver()
        await driver.__aenter__()
        await asyncio.sleep(1)
        first = {uuid_of(device): device["name"] for device in watcher.devices}
        assert len(first) == COUNT
        rough_times = []
        for seconds, rough, stuck, away, restarts in weather:
            machine.rough, machine.stuck = rough, stuck
            machine.present = [card for card in range(COUNT) if card != away]
            if rough or away is not None:
                rough_times.append((machine.now(), machine.now() + seconds))
            await asyncio.sleep(seconds)
            if restarts:
                await driver.__aexit__(None, None, None)
                driver = watcher.driver()
                await driver.__aenter__()
        machine.rough, machine.stuck, machine.present = 0.0, None, list(range(COUNT))
        await asyncio.sleep(2 * DISCOVER)
        now = {uuid_of(device): device["name"] for device in watcher.devices}
        assert now == first
        assert set(watcher.names.values()) == set(first)
        present = {card.uuid for card in watcher.hardware.cards if card.present}
        assert present == set(first)
        for (at, uuid), count in zip(watcher.begun, watcher.runs_before, strict=True):
            cards = [card for card in range(COUNT) if list(first)[card] == uuid]
            for card in cards:
                # where one listing alone goes wrong, another one would show it
                assert any(start <= at and end >= at - CONFIRM for start, end in rough_times), f"card {card} at {at}"
                runs = [each for each in machine.runs[:count] if each.at >= at - CONFIRM]
                assert runs, f"card {card} at {at}"
                assert not machine.mentioned(card, runs), f"card {card} at {at}"
                assert not machine.unanswered(runs), f"card {card} at {at}"
        await driver.__aexit__(None, None, None)

    story(vendor, seed, scenario)


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=examples(8), deadline=None)
@given(
    stuck=st.tuples(st.sampled_from(["less", "gap", "cut"]), st.integers(0, 2), st.integers(0, COUNT - 1)),
    restarts=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_a_card_that_one_listing_leaves_out_for_good_is_not_lost(vendor, stuck, restarts, seed):
    """While the tool still answers for it elsewhere. A listing may also break off, with exit code 0."""

    async def scenario(machine, watcher):
        async with watcher.driver():
            await asyncio.sleep(1)
            machine.stuck = stuck
            if not restarts:
                await asyncio.sleep(4 * CONFIRM)
        async with watcher.driver():
            await asyncio.sleep(4 * CONFIRM)
            assert watcher.begun == []
            assert not lost(watcher)
            # where numbers are positions, all cards after one that is left out have another's number
            assert stuck[0] == "less" or all(card.present for card in watcher.hardware.cards)

    story(vendor, seed, scenario)


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("gone", range(COUNT))
def test_a_card_that_is_gone_drives_its_pods_out_and_no_others(vendor, gone):
    async def scenario(machine, watcher):
        async with watcher.driver():
            await asyncio.sleep(1)
            uuids = [uuid_of(device) for device in watcher.devices]
            machine.present.remove(gone)
            await asyncio.sleep(CONFIRM + 2 * HEALTH)
            assert watcher.evicting == {uuids[gone]}
        async with watcher.driver():
            await asyncio.sleep(CONFIRM + 2 * HEALTH)
            assert watcher.evicting == {uuids[gone]}
            machine.present.insert(gone, gone)
            await asyncio.sleep(RECOVERY + 2 * DISCOVER)
            assert watcher.evicting == set()
            assert all(card.present for card in watcher.hardware.cards)

    story(vendor, 0, scenario)


@settings(max_examples=examples(12), deadline=None)
@given(
    weather=st.lists(
        st.tuples(st.sampled_from([10, 40, 90]), st.sampled_from([0.0, 0.02, 0.3, 1.0]), st.booleans()), max_size=6
    ),
    seed=st.integers(0, 1 << 32),
)
def test_gpus_that_are_there_keep_their_pods_and_their_names(weather, seed):
    """NVML: any call about any GPU may fail, or all may, and the numbers of the GPUs change whenever NVML is opened."""

    async def scenario(machine, watcher):
        driver = watcher.driver()
        await driver.__aenter__()
        await asyncio.sleep(1)
        first = {uuid_of(device): device["name"] for device in watcher.devices}
        assert len(first) == COUNT
        for seconds, rough, restarts in weather:
            machine.rough = rough
            await asyncio.sleep(seconds)
            if restarts:
                await driver.__aexit__(None, None, None)
                driver = watcher.driver()
                await driver.__aenter__()
        machine.rough = 0.0
        await asyncio.sleep(2 * DISCOVER)
        assert {uuid_of(device): device["name"] for device in watcher.devices} == first
        assert all(card.present for card in watcher.hardware.cards)
        machine.present.remove(2)
        await asyncio.sleep(2 * DISCOVER + CONFIRM)
        assert [uuid for _, uuid in watcher.begun] == [nvml_uuid(2)]
        await driver.__aexit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        machine = NvmlMachine(seed)
        run(scenario(machine, Watcher(machine, Path(folder))))
