"""The cards of one vendor, kept while tools fail, cards vanish and come back. Simulated machine, virtual time."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from hami_dra.discovery.backend import Findings
from hami_dra.discovery.errors import ToolFailed, ToolMissing
from hami_dra.driver.node.damping import FlapDamper
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.simulated import SimulatedBackend
from hami_dra.driver.simulated import machine
from tests.support.node import at_once
from tests.support.virtual_time import run

CARDS = machine("g4dn.12xlarge", "n1").cards


class Scripted:
    """A back end whose answers are set by the test."""

    vendor = "nvidia"
    tells_events = False

    def __init__(self, cards=CARDS):
        self.cards = cards
        self.error = None
        self.closed = False
        self.discoveries = self.looks = 0

    def discover(self):
        self.discoveries += 1
        if self.error:
            raise self.error
        return Findings(tuple(self.cards))

    def health(self, patience=0.0):
        self.looks += 1
        if self.error:
            raise self.error
        return SimulatedBackend("nvidia", self.cards).health(patience)

    def close(self):
        self.closed = True


class Kept:
    def __init__(self, backend, *, recovery=60.0, **options):
        self.changes = 0
        self.hardware = Hardware(
            backend,
            FlapDamper(recovery, 30.0),
            discover_every=300.0,
            health_every=10.0,
            on_change=self.changed,
            call=at_once,
            **options,
        )

    def changed(self):
        self.changes += 1

    @property
    def codes(self):
        """By index."""
        return {
            card.index: [each.fault.code for each in self.hardware.faults[card.uuid]]
            for card in self.hardware.cards
            if self.hardware.faults[card.uuid]
        }

    async def __aenter__(self):
        self.task = asyncio.create_task(self.hardware.run())
        await asyncio.sleep(1)
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def test_cards_are_found_once_and_then_only_looked_at():
    backend = Scripted()

    async def scenario():
        async with Kept(backend) as it:
            assert [card.index for card in it.hardware.cards] == [0, 1, 2, 3]
            await asyncio.sleep(200)
            assert (it.changes, backend.discoveries) == (1, 1)
            assert backend.looks >= 20
            await asyncio.sleep(200)
            assert backend.discoveries == 2
        assert backend.closed

    run(scenario())


def test_a_fault_in_the_file_is_seen_and_its_end_too(tmp_path):
    file = tmp_path / "faults"

    async def scenario():
        async with Kept(SimulatedBackend("nvidia", CARDS, file)) as it:
            file.write_text(f"# two of them\n1 xid-79 fell off the bus\n{CARDS[2].uuid} ecc-double-bit\n")
            await asyncio.sleep(10)
            assert it.codes == {1: ["xid-79"], 2: ["ecc-double-bit"]}
            file.write_text("2 ecc-double-bit # still\n")
            await asyncio.sleep(50)
            assert it.codes == {1: ["xid-79"], 2: ["ecc-double-bit"]}
            await asyncio.sleep(30)
            assert it.codes == {2: ["ecc-double-bit"]}

    run(scenario())


def test_a_card_that_is_lost_stays_and_comes_back(tmp_path):
    file = tmp_path / "faults"

    async def scenario():
        async with Kept(SimulatedBackend("nvidia", CARDS, file)) as it:
            file.write_text("3 lost\n")
            it.hardware.rediscover()
            await asyncio.sleep(1)
            assert len(it.hardware.cards) == 4
            assert it.codes == {3: ["lost"]}
            file.unlink()
            await asyncio.sleep(100)
            assert it.codes == {}

    run(scenario())


def test_a_card_that_the_back_end_forgets_is_withdrawn(caplog):
    backend = Scripted()

    async def scenario():
        async with Kept(backend) as it:
            backend.cards = (*CARDS[:3], replace(CARDS[3], uuid="GPU-new"))
            it.hardware.rediscover()
            await asyncio.sleep(1)
            assert [card.uuid for card in it.hardware.cards][3] == "GPU-new"
            assert it.codes == {}

    with caplog.at_level(logging.INFO, "hami_dra"):
        run(scenario())
    assert f"nvidia: card {CARDS[3].uuid} is no longer listed" in caplog.text


def test_a_reading_that_fails_changes_nothing_but_is_told_once(caplog):
    backend = Scripted()

    async def scenario():
        async with Kept(backend) as it:
            backend.error = ToolFailed("NVML gave no answer")
            await asyncio.sleep(100)
            assert (len(it.hardware.cards), it.hardware.problem) == (4, "NVML gave no answer")
            assert it.hardware.failures >= 10
            assert it.changes == 2
            backend.error = None
            await asyncio.sleep(20)
            assert it.hardware.problem == ""
            assert it.changes == 3

    with caplog.at_level(logging.INFO, "hami_dra"):
        run(scenario())
    assert caplog.text.count("NVML gave no answer") == 1
    assert "the hardware can be read again" in caplog.text


def test_a_driver_that_loads_late_is_waited_for():
    backend = Scripted()
    backend.error = ToolMissing("libnvidia-ml.so.1 was not found")

    async def scenario():
        async with Kept(backend, demanded=True) as it:
            assert it.hardware.tried.is_set()
            assert (it.hardware.found, it.hardware.cards) == (False, ())
            await asyncio.sleep(60)
            backend.error = None
            await asyncio.sleep(60)
            assert len(it.hardware.cards) == 4

    run(scenario())


@pytest.mark.parametrize("demanded", [True, False])
def test_a_missing_tool_is_a_warning_only_where_cards_are_expected(caplog, demanded):
    backend = Scripted()
    backend.error = ToolMissing("libnvidia-ml.so.1 was not found")

    async def scenario():
        async with Kept(backend, demanded=demanded):
            await asyncio.sleep(1000)

    with caplog.at_level(logging.INFO, "hami_dra"):
        run(scenario())
    assert ("was not found" in caplog.text) == demanded


def test_hardware_that_hangs_does_not_keep_the_driver_from_ending(caplog):
    async def hangs(_work):
        await asyncio.Event().wait()

    async def scenario():
        it = Kept(Scripted())
        it.hardware.call = hangs
        task = asyncio.create_task(it.hardware.run())
        await asyncio.sleep(100)
        begun = asyncio.get_running_loop().time()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - begun <= 2.0

    run(scenario())
    assert "nvidia: not closed: it is still being read" in caplog.text


def test_no_cards_at_all_is_news_too():
    async def scenario():
        async with Kept(Scripted(cards=())) as it:
            assert it.hardware.found
            assert it.changes == 1

    run(scenario())


def test_lines_of_simulated_faults_that_mean_nothing_are_named(tmp_path):
    file = tmp_path / "faults"
    file.write_text("7 lost\n1\n0 lost\n")
    backend = SimulatedBackend("nvidia", CARDS, file)
    findings = backend.discover()
    assert [card.index for card in findings.cards if card.present] == [1, 2, 3]
    assert [fault.code for fault in findings.cards[0].faults] == ["lost"]
    assert findings.problems == (
        f'{file}, line 1 "7 lost": expected a card of nvidia and a code',
        f'{file}, line 2 "1": expected a card of nvidia and a code',
    )
    file.unlink()
    file.mkdir()
    with pytest.raises(ToolFailed, match="the file of simulated faults cannot be read"):
        backend.health()
