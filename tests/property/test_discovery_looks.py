"""Looks at cards, one after the other, through the real parsers: whatever the tools do, healthy cards keep their pods and their names.

Tools fail, hang, come back, give less, give other orders, give garbage; drivers start anew; minutes pass. What drives pods out (NoExecute)
begins only for a card that no listing named for the whole confirm time, in which all listings that used to show it answered. A uuid and the name of its device never part.
"""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.driver.node.pool_content import uuid_of
from tests.support.examples import examples
from tests.support.looks_at_cards import CONFIRM, DISCOVER, HEALTH, RECOVERY, story
from tests.support.pretended_cards import COUNT, VENDORS, Machine, NvmlMachine, nvml_uuid

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

    story(Machine(VENDORS[vendor], seed), scenario)


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

    story(Machine(VENDORS[vendor], 0), scenario)


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

    story(NvmlMachine(seed), scenario)
