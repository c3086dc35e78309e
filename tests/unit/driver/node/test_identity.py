"""What is published of cards that are renumbered, removed, added, or gone before the driver starts. The real Enflame back end, virtual time."""

import asyncio

import pytest

from hami_dra.api.kinds import RESOURCE_SLICE
from tests.support.pretended_cards import VENDORS, Machine
from tests.support.virtual_time import run
from tests.unit.driver.node.test_service import DriverHarness


class GcuHarness(DriverHarness):
    """Cards whose numbers are positions."""

    def __init__(self, folder):
        super().__init__(folder)
        self.machine = Machine(VENDORS["enflame"], 0)
        self.machine.now = lambda: asyncio.get_running_loop().time()

    def started(self, **settings):
        backend = VENDORS["enflame"].backend(self.folder / "state", self.machine, self.folder / "sys")
        return self.running(backend, demanded=("enflame",), **settings)

    async def published(self):
        """Name → (uuid, index)."""
        return {
            device.name: (device.attributes["hami.io/uuid"].string, device.attributes["hami.io/index"].int_)
            for device in await self.devices()
        }


@pytest.fixture
def harness(tmp_path):
    return GcuHarness(tmp_path)


def uuid(card):
    return f"TR6Y4700010{card}"


def test_names_stay_and_the_index_is_what_the_tool_says_now(harness):
    async def scenario():
        async with harness:
            async with harness.started():
                assert await harness.published() == {f"gcu-{card}": (uuid(card), card) for card in range(4)}
            harness.machine.present = [1, 2, 3]
            async with harness.started():
                assert await harness.published() == {
                    "gcu-1": (uuid(1), 0),
                    "gcu-2": (uuid(2), 1),
                    "gcu-3": (uuid(3), 2),
                    "gcu-0": (uuid(0), 3),
                }
                harness.machine.present = [7, 1, 2, 3]  # another card, while the driver runs
                await asyncio.sleep(30)
                found = await harness.published()
                assert found["gcu-4"] == (uuid(7), 0)
                assert found["gcu-3"] == (uuid(3), 3)

    run(scenario())


def test_a_card_that_was_gone_before_the_driver_started_drives_its_pods_out(harness):
    async def scenario():
        async with harness:
            async with harness.started():
                pass
            harness.machine.present.remove(2)
            async with harness.started():
                assert await harness.taints() == {"gcu-2": [("hami.io/lost", "lost", "NoSchedule")]}
                await asyncio.sleep(40)
                assert await harness.taints() == {"gcu-2": [("hami.io/lost", "lost", "NoExecute")]}

    run(scenario())


def test_what_an_earlier_driver_published_of_another_card_drives_nobody_out(harness):
    """The name was that of another card, in the slice of a driver that lost its list of names."""

    async def scenario():
        async with harness:
            async with harness.started():
                (item,) = await harness.slices()
                raw = await harness.cluster.get_raw(RESOURCE_SLICE, item.metadata.name)
            devices = raw["spec"]["devices"]
            devices[2]["attributes"]["hami.io/uuid"] = {"string": "another"}
            devices[2]["taints"] = [{"key": "hami.io/lost", "value": "lost", "effect": "NoExecute"}]
            await harness.cluster.patch(RESOURCE_SLICE, item.metadata.name, {"spec": {"devices": devices}})
            harness.machine.present.remove(2)
            async with harness.started():
                assert await harness.taints() == {"gcu-2": [("hami.io/lost", "lost", "NoSchedule")]}

    run(scenario())


def test_a_slip_after_a_card_was_gone_drives_nobody_out(harness):
    async def scenario():
        async with harness, harness.started():
            harness.machine.present.remove(2)
            await asyncio.sleep(50)
            assert await harness.taints() == {"gcu-2": [("hami.io/lost", "lost", "NoExecute")]}
            harness.machine.present.insert(2, 2)
            await asyncio.sleep(20)
            harness.machine.present.remove(2)
            await asyncio.sleep(12)
            assert await harness.taints() == {"gcu-2": [("hami.io/lost", "lost", "NoSchedule")]}

    run(scenario())


def test_a_cordon_stays_with_its_card_when_numbers_move(harness):
    async def scenario():
        async with harness:
            await harness.annotate("2")
            async with harness.started():
                assert await harness.taints() == {"gcu-2": [("hami.io/cordoned", "", "NoSchedule")]}
                harness.machine.present.remove(0)
                await asyncio.sleep(20)
                taints = await harness.taints()
                assert taints["gcu-2"] == [("hami.io/cordoned", "", "NoSchedule")]
                assert taints.keys() == {"gcu-0", "gcu-2"}

    run(scenario())


def test_tools_that_fail_change_nothing_that_is_published(harness):
    async def scenario():
        async with harness, harness.started():
            before = await harness.devices()
            for listing in (0, 1):
                harness.machine.stuck = ("fails", listing, 0)
                await asyncio.sleep(400)
                assert await harness.devices() == before

    run(scenario())
