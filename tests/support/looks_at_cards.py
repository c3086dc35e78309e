"""A driver's hardware, on a pretended machine, in virtual time: what it would publish, and whose pods it would evict."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from hami_dra.discovery.memory import LOST
from hami_dra.driver.node.damping import FlapDamper
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.pool_content import NodeReference, PoolOptions, pool_content, uuid_of
from hami_dra.driver.node.settings import EFFECTS
from hami_dra.vendors.registry import PUBLISHING_VENDORS
from tests.support.node import at_once
from tests.support.virtual_time import run

CONFIRM, RECOVERY, HEALTH, DISCOVER = 30.0, 60.0, 10.0, 45.0
PUBLISHING = {vendor.name: vendor for vendor in PUBLISHING_VENDORS}


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
        return [device for device in offer.pool.devices if "parentUUID" not in device["attributes"]]

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


def story(machine, scenario):
    with tempfile.TemporaryDirectory() as folder:
        machine.now = lambda: asyncio.get_running_loop().time()
        watcher = Watcher(machine, Path(folder))
        run(scenario(machine, watcher))
        return watcher


def trouble_with_a_present_card(machine, stuck, *, restarts):
    """Let one listing go wrong for good; return what is wrong then: cards that count as lost, or whose pods are evicted.

    `stuck`: see `Machine.stuck`. The driver starts again in the middle, or only after the trouble began.
    """
    found = []

    async def scenario(machine, watcher):
        async with watcher.driver():
            await asyncio.sleep(1)
            machine.stuck = stuck
            if not restarts:
                await asyncio.sleep(4 * CONFIRM)
        async with watcher.driver():
            await asyncio.sleep(4 * CONFIRM)
            found.extend(watcher.begun)
            found.extend(sorted(lost(watcher)))
            # where numbers are positions, all cards after one that is left out have another's number
            if not (machine.renumbers or stuck[0] == "less"):
                found.extend(card for card in watcher.hardware.cards if not card.present)

    story(machine, scenario)
    return found
