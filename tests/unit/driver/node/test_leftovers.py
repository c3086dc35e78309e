"""When the driver looks for partitions that a container runtime left behind: only on cards that nobody else hands out."""

import asyncio
import math

import pytest

from hami_dra.api.containers import RuntimePartition
from hami_dra.driver.node.leftovers import GRACE
from hami_dra.driver.node.tenants import held_profiles
from hami_dra.driver.prepare import ContainerView, GrantedDevice, Record
from hami_dra.driver.prepare.records import Partition
from tests.support.virtual_time import run
from tests.unit.driver.node.test_service import NODE_NAME, DriverHarness


class Left:
    """Implements RuntimePartitions: one partition on each card, left behind."""

    def __init__(self):
        self.removed = []

    def existing(self, card):
        return [] if card.index in self.removed else [RuntimePartition(number=100, profile="half", idle=True)]

    def destroy(self, card, number):
        assert number == 100
        self.removed.append(card.index)


def removed(folder, change, *, records=dict):
    """Run a driver until long after the grace; return the cards that are cleared and what the node's events say."""
    left, events = Left(), []

    async def known():
        return records()

    async def scenario():
        async with DriverHarness(folder) as harness:

            def plugin(runtime):
                runtime.runtime_partitions, runtime.latest_records = left, known
                return DriverHarness.plugin(harness, runtime)

            harness.plugin = plugin
            await change(harness)
            async with harness.running():
                await asyncio.sleep(3 * GRACE)
                events.extend((kind, reason) for kind, reason, _ in await harness.events())

    run(scenario())
    return sorted(left.removed), events


async def nothing(_harness):
    pass


def test_every_card_is_cleared_and_the_node_has_an_event_for_each(tmp_path):
    cleared, events = removed(tmp_path, nothing)
    assert cleared == [0, 1, 2, 3]
    assert events.count(("Normal", "LeftoverPartitionRemoved")) == 4


@pytest.mark.parametrize("resource", ["nvidia0com_gpu", "nvidia0com_gpumem"])
def test_no_card_of_a_node_where_something_else_has_resources_of_the_vendor(tmp_path, resource):
    assert removed(tmp_path, lambda harness: harness.allocatable(**{resource: "4"}))[0] == []


def test_no_cordoned_card(tmp_path):
    assert removed(tmp_path, lambda harness: harness.annotate("1,2"))[0] == [0, 3]


def test_no_card_that_is_lost(tmp_path):
    async def lose_one(harness):
        harness.file.write_text("2 lost\n")

    assert removed(tmp_path, lose_one)[0] == [0, 1, 3]


def test_nothing_while_the_prepared_claims_are_not_known(tmp_path):
    assert removed(tmp_path, nothing, records=lambda: None)[0] == []


def test_nothing_by_a_driver_that_does_not_publish(tmp_path):
    """While two run, the older one does it until it ends."""

    async def another(harness):
        driver = harness.driver()
        (runtime,) = driver.runtimes.values()
        await runtime.turn.take()
        harness.other = driver

    assert removed(tmp_path, another)[0] == []


def record(uid, profile, *users, request="npu", admin=False, by_runtime=True, at_once=0, owner_pod="p"):
    held = GrantedDevice(
        request=request,
        pool=NODE_NAME,
        device="npu-0-half-0",
        card="die-0",
        admin=admin,
        partition=Partition(card="die-0", profile=profile, start=0, by_runtime=by_runtime),
    )
    views = (
        ContainerView(name=f"v-{uid}", asked=((uid, request.partition("/")[0]),), users=tuple(users), at_once=at_once),
    )
    return Record(
        namespace="ns",
        name=uid,
        uid=uid,
        allocation="",
        state="preparing",
        held=(held,),
        views=views,
        owner_pod=owner_pod,
    )


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record("a", "half", ("p", "main"))], {"half": 1}),
        ([record("a", "half", ("p", "init"), ("p", "main"))], {"half": 2}),
        ([record("a", "half", ("p", "init"), ("p", "main"), at_once=1)], {"half": 1}),
        ([record("a", "half", ("p", "main"), owner_pod="")], {"half": math.inf}),  # other pods may join it unseen
        ([record("a", "half", ("p", "main")), record("b", "half", ("q", "main"))], {"half": 2}),
        ([record("a", "half", ("p", "main")), record("b", "quarter", ("q", "main"))], {"half": 1, "quarter": 1}),
        ([record("a", "half", ("p", "main"), request="npu/first")], {"half": 1}),
        ([record("a", "half")], {"half": math.inf}),
        ([record("a", "half"), record("b", "half", ("q", "main"))], {"half": math.inf}),
        ([record("a", "half", ("p", "main"), admin=True)], {}),
        ([record("a", "half", ("p", "main"), by_runtime=False)], {}),
    ],
)
def test_the_containers_that_may_have_a_partition(records, expected):
    found = held_profiles({each.uid: each for each in records})
    assert found == {("die-0", profile): count for profile, count in expected.items()}
