"""Whatever a vendor's tool prints of cards at work, its parser gives readings that can be true, or an error that says what was expected."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import Unreadable
from hami_dra.monitor.readings import ToolReport, joined
from hami_dra.vendors.ascend import monitor as ascend
from hami_dra.vendors.enflame import monitor as enflame
from hami_dra.vendors.kunlunxin import monitor as kunlunxin
from hami_dra.vendors.metax import monitor as metax
from hami_dra.vendors.neuron import monitor as neuron
from tests.support.mutations import mutated
from tests.support.tools import MONITOR_FIXTURES


def neuron_report(text):
    return neuron.parse(text, 2)


PARSERS = {
    "ascend": (ascend.parse_info, ["../discovery/ascend/info.910b3.txt", "../discovery/ascend/info.310p3.txt"]),
    "metax dmon": (metax.parse_dmon, ["metax/dmon.csv"]),
    "metax errors": (metax.parse_ecc, ["metax/ecc.txt"]),
    "kunlunxin columns": (kunlunxin.parse_columns, ["kunlunxin/columns.txt"]),
    "kunlunxin xml": (kunlunxin.parse_xml, ["kunlunxin/query.xml"]),
    "enflame dmon": (enflame.parse_dmon, ["enflame/dmon.txt"]),
    "enflame query": (enflame.parse_query, ["enflame/query.txt", "enflame/query.old.txt"]),
    "neuron": (neuron_report, ["neuron/inf2.json", "neuron/trn1.synthetic.json"]),
}
TEXTS = {
    name: [(MONITOR_FIXTURES / path).read_text(encoding="utf-8") for path in paths]
    for name, (_, paths) in PARSERS.items()
}
# mishaps go by lines, and a report of neuron-monitor is one
SPREAD = {
    name: [json.dumps(json.loads(text), indent=1) for text in texts] if name == "neuron" else texts
    for name, texts in TEXTS.items()
}
RANGES = {
    "memory_total": (0, 1 << 50),
    "memory_used": (0, 1 << 50),
    "utilization": (0, 100),
    "memory_utilization": (0, 100),
    "temperature": (-50, 200),
    "memory_temperature": (-50, 200),
    "power": (0, 20_000),
    "fan": (0, 100),
    "ecc_corrected": (0, 1 << 64),
    "ecc_uncorrected": (0, 1 << 64),
}
WHOLE = {name for name in RANGES if name.startswith(("memory_total", "memory_used", "ecc"))}


def check_report(report):
    for reading in report.readings:
        for name, (least, most) in RANGES.items():
            value = getattr(reading, name)
            if value is not None:
                assert type(value) is (int if name in WHOLE else float), name
                assert math.isfinite(value)
                assert least <= value <= most, name
        if reading.memory_total is not None and reading.memory_used is not None:
            assert reading.memory_used <= reading.memory_total
        assert reading.index is None or 0 <= reading.index <= 4095
        assert not reading.bus_id or re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", reading.bus_id)
    assert all(problem.isprintable() for problem in report.problems)


def check(name, text):
    try:
        report = PARSERS[name][0](text)
    except Unreadable as error:
        message, report = str(error), None
    if report is None:
        assert "expected" in message
        assert message.isprintable()
    else:
        check_report(report)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=75)
@given(data=st.data())
def test_mishaps(name, data):
    check(name, data.draw(mutated(SPREAD[name])))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=25)
@given(text=st.one_of(st.text(), st.binary().map(lambda raw: raw.decode(errors="replace"))))
def test_anything(name, text):
    check(name, text)


@pytest.mark.parametrize("name", PARSERS)
def test_every_cut(name):
    """Output that breaks off, at every line end and in the middle of each line."""
    for text in SPREAD[name]:
        ends = [match.end() for match in re.finditer("\n", text)]
        for end in ends:
            check(name, text[:end])
            check(name, text[: max(0, end - 20)])


@pytest.mark.parametrize("name", PARSERS)
def test_line_ends_of_another_system(name):
    for text in TEXTS[name]:
        assert PARSERS[name][0](text.replace("\n", "\r\n")) == PARSERS[name][0](text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=75)
@given(data=st.data())
def test_any_value_in_place_of_one_of_neuron_monitors(data):
    answer = json.loads(data.draw(st.sampled_from(TEXTS["neuron"])))
    at = answer
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(JSON)
    check("neuron", json.dumps(answer))


GIVEN_IN = {
    "C": ("temperature",),
    "W": ("power",),
    "%": ("utilization", "memory_used"),
    "GB": ("memory_total", "memory_used"),
    "MiB": ("memory_total", "memory_used"),
}
UNITS = {"metax dmon": ("C", "W", "%", "GB"), "enflame dmon": ("C", "W", "%", "MiB")}


@pytest.mark.parametrize("name", UNITS)
@settings(max_examples=50)
@given(data=st.data())
def test_a_value_is_read_in_its_unit_or_not_at_all(name, data):
    """With other units above the columns, no card has a value that is told in them; the others are as they were."""
    parse, text = PARSERS[name][0], TEXTS[name][0]
    true = {reading.index: reading for reading in parse(text).readings}
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if "idx" in line.lower() and "%" in line)
    lost = set()
    for unit in UNITS[name]:
        word = data.draw(st.sampled_from(["F", "K", "A", "V", "kW", "ppm", "TB", "N/A", "-", unit, unit]))
        lines[at] = re.sub(rf"(?<![A-Za-z%]){re.escape(unit)}(?![A-Za-z%])", word, lines[at])
        lost |= set(GIVEN_IN[unit]) if word != unit else set()
    for reading in parse("".join(lines)).readings:
        for field in RANGES:
            assert getattr(reading, field) == (None if field in lost else getattr(true[reading.index], field)), field


@settings(max_examples=50)
@given(data=st.data())
def test_cards_are_given_only_memory_that_they_have(data):
    name = data.draw(st.sampled_from(sorted(PARSERS)))
    cards = [
        Card(vendor="v", index=index, uuid=f"u{index}", product="P", memory=64 << 30, pci_bus_id=bus)
        for index, bus in enumerate(("0000:0a:00.0", "0000:0b:00.0", "0000:03:00.0", "0000:05:00.0"))
    ]
    try:
        report = PARSERS[name][0](data.draw(mutated(SPREAD[name])))
    except Unreadable:
        return
    sample = joined(cards, [report, report])
    check_report(ToolReport(tuple(sample.readings.values()), sample.problems))
    assert set(sample.readings) <= {card.uuid for card in cards}
    for reading in sample.readings.values():
        assert reading.memory_total is None or 32 << 30 <= reading.memory_total <= 128 << 30
        assert reading.memory_used is None or reading.memory_used <= 128 << 30
