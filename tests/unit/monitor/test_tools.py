"""What the vendors' tools say of cards at work: their outputs as readings, and the samplers around them."""

import json

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unexpected, Unreadable
from hami_dra.discovery.tool import Tool
from hami_dra.monitor import readings
from hami_dra.monitor.readings import Reading, ToolReport, joined
from hami_dra.vendors.enflame import monitor as enflame
from hami_dra.vendors.kunlunxin import monitor as kunlunxin
from hami_dra.vendors.metax import monitor as metax
from hami_dra.vendors.neuron import monitor as neuron
from hami_dra.vendors.neuron.records import NeuronRecord
from tests.support.tools import MONITOR_FIXTURES, FakeTools

GIB, MIB = 1 << 30, 1 << 20
METAX, KUNLUNXIN, ENFLAME, NEURON = (MONITOR_FIXTURES / name for name in ("metax", "kunlunxin", "enflame", "neuron"))
DMON = (
    "dmon --show-temperature --show-board-power --show-usage --show-memory --total-memory --show-bdf --format csv -c 1"
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def text(path):
    return path.read_text(encoding="utf-8")


def card(index, memory, *, bus="", uuid="", serial=""):
    return Card(
        vendor="v", index=index, uuid=uuid or f"card-{index}", product="P", memory=memory, pci_bus_id=bus, serial=serial
    )


METAX_CARDS = [card(0, 64 * GIB, bus="0000:0a:00.0"), card(1, 64 * GIB, bus="0000:0b:00.0")]
ENFLAME_CARDS = [card(index, 42976 * MIB) for index in range(3)]
KUNLUNXIN_CARDS = [
    card(0, 96 * GIB, bus="0000:03:00.0", uuid="GPU-00c1d2e3-f405-5617-8829-a3b4c5d6e7f0"),
    card(1, 96 * GIB, bus="0000:05:00.0", uuid="GPU-10c1d2e3-f405-5617-8829-a3b4c5d6e7f1"),
    card(2, 96 * GIB, bus="0000:63:00.0"),
]


# --- MetaX -----------------------------------------------------------------------------------------------------------


def test_metax():
    found = metax.parse_dmon(text(METAX / "dmon.csv"))
    assert found.problems == ()
    assert found.readings[0] == Reading(
        index=0,
        bus_id="0000:0a:00.0",
        memory_total=64 * GIB,
        memory_used=round(64 * GIB * 61 / 100),
        utilization=88.0,
        temperature=51.0,
        power=203.0,
    )
    # no hot spot: the next column with a temperature of the chip
    assert [each.temperature for each in found.readings] == [51.0, 34.0, 33.0]


def test_metax_errors_are_added_up_where_all_are_known():
    found = metax.parse_ecc(text(METAX / "ecc.txt"))
    assert found.problems == ()
    assert [(each.index, each.ecc_corrected, each.ecc_uncorrected) for each in found.readings] == [
        (0, 7, 1),
        (1, 0, None),
        (2, None, None),
    ]


def test_metax_columns_may_come_go_and_move():
    found = metax.parse_dmon("bdfid, new, power, dev\n, X, mW, idx\n0000:0a:00.0, 5, 98500, 4\n")
    assert found.readings == (Reading(index=4, bus_id="0000:0a:00.0", power=98.5),)


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("idx, idx, C, C, C, W,", "idx, idx, F, C, C, W,", "temperature"),
        ("idx, idx, C, C, C, W,", "idx, idx, C, C, C, A,", "power"),
        ("GB,\n", "TB,\n", "memory_total"),
        ("88, 0, 0", "880, 0, 0", "utilization"),
        ("51, 37", "nan, 37", "temperature"),
        ("51, 37", "1e3, 37", "temperature"),
        ("203,", "-203,", "power"),
    ],
)
def test_a_value_in_another_unit_or_out_of_range_is_left_out_and_named(old, new, missing):
    found = metax.parse_dmon(text(METAX / "dmon.csv").replace(old, new, 1))
    assert getattr(found.readings[0], missing) is None
    assert "expected" in found.problems[0]
    assert found.readings[0].bus_id == "0000:0a:00.0"


def test_metax_without_its_line_of_units_says_nothing():
    lines = text(METAX / "dmon.csv").splitlines(keepends=True)
    with pytest.raises(Unreadable, match="unit"):
        metax.parse_dmon("".join(lines[:1] + lines[2:]))


def test_metax_sampler(tools):
    sampler = metax.sampler(Tool("mx-smi"))
    tools.answer("mx-smi", {DMON: METAX / "dmon.csv", "--count-ecc": METAX / "ecc.txt"})
    found = sampler.sample(METAX_CARDS)
    assert found.readings["card-0"].power == 203.0
    assert found.readings["card-0"].ecc_corrected == 7
    # the third card appeared after the discovery, in both outputs
    assert found.problems == ('a reading of a card that was not discovered: "0000:1c:00.0"',)
    tools.answer("mx-smi", {DMON: METAX / "dmon.csv"})
    found = sampler.sample(METAX_CARDS)
    assert (found.readings["card-0"].power, found.readings["card-0"].ecc_corrected) == (203.0, None)
    assert any("unknown option: --count-ecc" in problem for problem in found.problems)
    tools.answer("mx-smi", {"--count-ecc": METAX / "ecc.txt"})
    found = sampler.sample(METAX_CARDS)
    assert (found.readings["card-0"].power, found.readings["card-0"].ecc_corrected) == (None, 7)


def test_a_tool_that_is_missing_or_hangs(tools):
    with pytest.raises(ToolMissing):
        metax.sampler(Tool("mx-smi")).sample(METAX_CARDS)
    tools.script("mx-smi", "sleep 60")
    with pytest.raises(ToolFailed, match=r"no answer within 0\.2 s"):
        metax.sampler(Tool("mx-smi", timeout=0.2)).sample(METAX_CARDS)


# --- Kunlunxin -------------------------------------------------------------------------------------------------------


def test_kunlunxin_columns():
    found = kunlunxin.parse_columns(text(KUNLUNXIN / "columns.txt"))
    assert found.problems == ()
    assert found.readings[0] == Reading(
        index=0,
        bus_id="0000:03:00.0",
        memory_total=96 * GIB,
        memory_used=51 * GIB,
        utilization=73.0,
        temperature=41.0,
        power=191.0,
    )
    assert (found.readings[2].temperature, found.readings[2].power) == (None, None)


@pytest.mark.parametrize("place", range(22))
def test_kunlunxin_columns_that_moved_are_refused(place):
    """One word less or more: the numbers behind it would be taken for others."""
    words = text(KUNLUNXIN / "columns.txt").splitlines()[0].split(" ")
    for moved in (words[:place] + words[place + 1 :], [*words[:place], "7", *words[place:]]):
        try:
            (reading,) = kunlunxin.parse_columns(" ".join(moved)).readings
        except Unreadable:
            continue
        # behind the last column that is read, or between two that nobody could tell apart
        assert (reading.memory_total, reading.memory_used, reading.utilization) == (96 * GIB, 51 * GIB, 73.0)


def test_kunlunxin_xml():
    found = kunlunxin.parse_xml(text(KUNLUNXIN / "query.xml"))
    assert found.problems == ()
    assert found.readings[0] == Reading(
        uuid="GPU-00c1d2e3-f405-5617-8829-a3b4c5d6e7f0",
        memory_total=96 * GIB,
        memory_used=52230 * MIB,
        utilization=71.0,
        temperature=42.0,
        power=192.5,
        ecc_corrected=3,
        ecc_uncorrected=1,
    )
    assert found.readings[1].utilization is None


def test_kunlunxin_sampler_needs_one_of_its_listings(tools):
    sampler = kunlunxin.sampler(Tool("xpu-smi"))
    columns, xml = {"-m": KUNLUNXIN / "columns.txt"}, {"-q -x": KUNLUNXIN / "query.xml"}

    def seen(answers):
        tools.answer("xpu-smi", answers)
        found = sampler.sample(KUNLUNXIN_CARDS)
        first = found.readings[KUNLUNXIN_CARDS[0].uuid]
        return len(found.readings), first.power, first.ecc_corrected, len(found.problems)

    assert seen(columns | xml) == (3, 191.0, 3, 0)
    assert seen(columns) == (3, 191.0, None, 1)
    assert seen(xml) == (2, 192.5, 3, 1)
    tools.answer("xpu-smi", {})
    with pytest.raises(ToolFailed, match="xpu-smi -m ended with exit code 2"):
        sampler.sample(KUNLUNXIN_CARDS)


# --- Enflame ---------------------------------------------------------------------------------------------------------


def test_enflame_dmon():
    found = enflame.parse_dmon(text(ENFLAME / "dmon.txt"))
    assert found.problems == ()
    assert found.readings[0] == Reading(
        index=0,
        memory_total=42976 * MIB,
        memory_used=26860 * MIB,
        utilization=77.2,
        temperature=49.0,
        power=187.0,
    )
    assert found.readings[2].power is None


def test_enflame_dmon_goes_by_names_and_units():
    found = enflame.parse_dmon("*Dev Mem New DTemp MUsed\n*Idx GiB L F %\n3 48 x 90 50.0\n")
    assert found.readings == (Reading(index=3, memory_total=48 * GIB, memory_used=24 * GIB),)
    assert len(found.problems) == 1
    # a row that lost a word says nothing; without units none does
    with pytest.raises(Unreadable, match="5 words"):
        enflame.parse_dmon("*Dev Mem New DTemp MUsed\n*Idx GiB L F %\n3 48 90 50.0\n")
    (reading,) = enflame.parse_dmon("*Dev Pwr\n3 100\n").readings
    assert reading == Reading(index=3)


def test_enflame_query_of_two_ages():
    new = enflame.parse_query(text(ENFLAME / "query.txt"))
    assert new.readings[0] == Reading(
        index=0,
        memory_total=42976 * MIB,
        memory_used=25731 * MIB,
        utilization=76.9,
        temperature=50.0,
        power=186.0,
        ecc_uncorrected=2,
    )
    old = enflame.parse_query(text(ENFLAME / "query.old.txt"))
    assert old.readings == (
        Reading(index=0, memory_total=42976 * MIB, memory_used=9216 * MIB, utilization=12.5, temperature=34.0),
    )


def test_enflame_sampler(tools):
    sampler = enflame.sampler(Tool("efsmi"))
    tools.answer("efsmi", {"--dmon -c 1": ENFLAME / "dmon.txt", "-q": ENFLAME / "query.txt"})
    found = sampler.sample(ENFLAME_CARDS)
    assert found.problems == ()
    assert [found.readings[each.uuid].ecc_uncorrected for each in ENFLAME_CARDS] == [2, 0, None]
    assert found.readings["card-0"].temperature == 49.0


# --- Neuron ----------------------------------------------------------------------------------------------------------


def report(name="trn1.synthetic.json"):
    return json.loads(text(NEURON / name))


def parsed(answer, cores=None):
    return neuron.parse(json.dumps(answer), cores)


def test_neuron_adds_up_programs_and_cores_by_device():
    found = neuron.parse(text(NEURON / "trn1.synthetic.json"))
    assert found.problems == ()
    assert found.readings == (
        Reading(
            index=0,
            memory_total=32 * GIB,
            memory_used=3 * GIB,
            utilization=60.0,
            ecc_corrected=0,
            ecc_uncorrected=0,
        ),
        Reading(
            index=1,
            memory_total=32 * GIB,
            memory_used=5 * GIB,
            utilization=45.25,
            ecc_corrected=4,
            ecc_uncorrected=2,
        ),
    )


def test_neuron_without_a_breakdown_knows_a_program_on_one_device():
    assert neuron.parse(text(NEURON / "inf2.json")).readings[0].memory_used == 150_000_000
    answer = report()
    for runtime in answer["neuron_runtime_data"]:
        del runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    assert [each.memory_used for each in parsed(answer).readings] == [3 * GIB, 5 * GIB]
    cores = answer["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["neuroncores_in_use"]
    cores["2"] = {"neuroncore_utilization": 1.0}
    found = parsed(answer)
    assert [each.memory_used for each in found.readings] == [None, None]
    assert "the cores of one device" in found.problems[0]
    assert found.readings[1].utilization == 45.75


def test_neuron_idle_is_zero_and_not_unknown():
    answer = report()
    answer["neuron_runtime_data"] = []
    found = parsed(answer)
    assert [(each.memory_used, each.utilization) for each in found.readings] == [(0, 0.0), (0, 0.0)]
    del answer["neuron_runtime_data"]
    assert [(each.memory_used, each.utilization) for each in parsed(answer).readings] == [(None, None)] * 2


@pytest.mark.parametrize(
    "busy",
    [float("nan"), float("inf"), -1, 1000, "50", True, None, 10**400],
)
def test_neuron_percentages_that_are_none(busy):
    answer = report()
    answer["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["neuroncores_in_use"]["0"] = {
        "neuroncore_utilization": busy
    }
    found = parsed(answer)
    assert [each.utilization for each in found.readings] == [None, None]
    assert [each.memory_used for each in found.readings] == [3 * GIB, 5 * GIB]


def test_neuron_groups_that_failed_are_unknown():
    answer = report()
    answer["neuron_runtime_data"][0]["report"]["memory_used"]["error"] = "no such process"
    found = parsed(answer)
    assert [(each.memory_used, each.utilization) for each in found.readings] == [(None, 60.0), (None, 45.25)]
    assert "no such process" in found.problems[0]
    answer["system_data"]["neuron_hw_counters"]["error"] = "no counters"
    found = parsed(answer)
    assert [each.ecc_corrected for each in found.readings] == [None, None]
    assert "no counters" in found.problems[-1]


def test_neuron_cores_that_are_joined_need_the_discovery():
    answer = report()
    answer["neuron_hardware_info"] |= {"logical_neuroncore_config": 2, "neuroncore_per_device_count": 8}
    assert [each.utilization for each in parsed(answer).readings] == [None, None]
    assert [each.utilization for each in parsed(answer, 2).readings] == [60.0, 45.25]


@pytest.mark.parametrize("answer", ["", "{}", "[]", "null", '{"neuron_hardware_info": {"neuron_device_count": 0}}'])
def test_neuron_without_its_hardware_is_unreadable(answer):
    with pytest.raises(Unreadable, match="expected"):
        neuron.parse(answer)


def test_neuron_sampler_keeps_one_process(tools):
    """Its cores come from the discovery; each look is a later line of one stream."""
    answer = report()
    answer["neuron_hardware_info"] |= {"logical_neuroncore_config": 2, "neuroncore_per_device_count": 8}
    line = tools.folder.parent / "line"
    line.write_text(json.dumps(answer) + "\n", encoding="utf-8")
    starts = tools.folder.parent / "starts"
    tools.script("neuron-monitor", f"echo x >> '{starts}'; while cat '{line}'; do sleep 0.05; done")
    cards = [
        NeuronRecord(
            vendor="neuron", index=index, uuid=f"n{index}", product="P", memory=32 * GIB, cores=8, logical_cores=2
        )
        for index in range(2)
    ]
    sampler = neuron.NeuronSampler(Tool("neuron-monitor", timeout=20.0))
    try:
        for _ in range(2):
            assert [each.utilization for each in sampler.sample(cards).readings.values()] == [60.0, 45.25]
    finally:
        sampler.close()
    assert starts.read_text() == "x\n"


# --- words and cards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "word", "unit", "expected"),
    [
        (readings.percent, "76.9 %", "", 76.9),
        (readings.percent, "50", "%", 50.0),
        (readings.celsius, "35 ℃", "", 35.0),
        (readings.celsius, "28.75", "C", 28.75),
        (readings.celsius, "-5 C", "", -5.0),
        (readings.watts, "192.50 W", "", 192.5),
        (readings.watts, "37W", "", 37.0),
        (readings.watts, "37000 mW", "", 37.0),
        (readings.amount, "0 MiB", "", 0),
        (readings.amount, "826MiB", "", 826 * MIB),
        (readings.amount, "64", "GB", 64 * GIB),
    ],
)
def test_words_with_their_units(parse, word, unit, expected):
    assert parse(word, unit) == expected


@pytest.mark.parametrize(
    ("parse", "word", "unit"),
    [
        (readings.percent, "50", ""),
        (readings.percent, "101 %", ""),
        (readings.percent, "-1 %", ""),
        (readings.percent, "50 W", "%"),
        (readings.celsius, "95 F", "C"),
        (readings.celsius, "300 K", ""),
        (readings.celsius, "1e2", "C"),
        (readings.celsius, "٣٥ C", ""),
        (readings.watts, "nan", "W"),
        (readings.watts, "inf W", ""),
        (readings.watts, "1" * 400, "W"),
        (readings.amount, "826", ""),
        (readings.amount, "8.5 GiB", ""),
        (readings.amount, "9" * 18, "GiB"),
        (readings.amount, "-1", "MiB"),
    ],
)
def test_words_that_say_something_else(parse, word, unit):
    with pytest.raises(Unexpected):
        parse(word, unit)


def test_readings_find_their_cards():
    cards = [card(0, GIB, bus="0000:01:00.0"), card(1, GIB, bus="0000:02:00.0", serial="S1")]

    def whose(reading):
        return list(joined(cards, [ToolReport((reading,))]).readings)

    assert whose(Reading(uuid="card-1")) == ["card-1"]
    assert whose(Reading(uuid="S1", index=0)) == ["card-1"]
    assert whose(Reading(uuid="other", index=0)) == []
    # the number went to another card since the discovery: the address counts
    assert whose(Reading(index=0, bus_id="0000:02:00.0")) == ["card-1"]
    assert whose(Reading(index=1)) == ["card-1"]
    assert whose(Reading(index=7)) == []


def test_the_first_of_two_readings_counts_and_gaps_are_filled():
    cards = [card(0, 4 * GIB)]
    first = ToolReport((Reading(index=0, power=5.0), Reading(index=0, power=6.0)), ("a",))
    second = ToolReport((Reading(index=0, power=7.0, temperature=30.0),), ("a", "b"))
    found = joined(cards, [first, second])
    assert found.readings["card-0"] == Reading(index=0, power=5.0, temperature=30.0)
    assert [problem for problem in found.problems if problem in {"a", "b"}] == ["a", "b"]
    assert any("two readings of card 0" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("total", "used", "kept"),
    [
        (4 * GIB, 1 * GIB, (4 * GIB, 1 * GIB)),
        (2 * GIB, 1 * GIB, (2 * GIB, 1 * GIB)),
        (4 * MIB, 1 * MIB, (None, None)),
        (4096 * GIB, 1 * GIB, (None, None)),
        (None, 5 * GIB, (None, None)),
        (None, 4 * GIB, (None, 4 * GIB)),
    ],
)
def test_memory_that_cannot_be_the_cards_is_not_believed(total, used, kept):
    sample = joined([card(0, 4 * GIB)], [ToolReport((Reading(index=0, memory_total=total, memory_used=used),))])
    reading = sample.readings["card-0"]
    assert (reading.memory_total, reading.memory_used) == kept
    assert bool(sample.problems) == (kept != (total, used))


def test_a_gap_is_not_filled_with_more_than_there_is():
    reports = [
        ToolReport((Reading(index=0, memory_total=3 * GIB),)),
        ToolReport((Reading(index=0, memory_used=4 * GIB),)),
    ]
    found = joined([card(0, 4 * GIB)], reports).readings["card-0"]
    assert found == replace(Reading(index=0), memory_total=3 * GIB)
