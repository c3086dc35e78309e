"""Real outputs of vendors' tools of cards at work, in the folder `shared/vendor-samples` next to the checkout, where there is one.

As test_discovery_samples.py: what is expected of each file stands here; without the folder the tests have nothing to do.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.discovery.errors import Unreadable
from hami_dra.monitor.readings import Reading
from hami_dra.vendors.enflame import monitor as enflame
from hami_dra.vendors.kunlunxin import monitor as kunlunxin
from hami_dra.vendors.metax import monitor as metax
from hami_dra.vendors.neuron import monitor as neuron
from tests.support.mutations import mutated
from tests.support.tools import FIXTURES

SAMPLES = FIXTURES.parents[3] / "shared" / "vendor-samples"
GIB, MIB = 1 << 30, 1 << 20
P800 = 96 * GIB
S60 = 42976 * MIB

EXPECTED = {
    "metax/mx-smi_dmon_csv.txt": (
        metax.parse_dmon,
        [
            Reading(
                index=index,
                bus_id=bus,
                memory_total=64 * GIB,
                memory_used=round(64 * GIB * used / 100),
                utilization=busy,
                temperature=hot,
                power=power,
            )
            for index, bus, used, busy, hot, power in (
                (0, "0000:08:00.0", 83, 71.0, 45.0, 159.0),
                (1, "0000:09:00.0", 84, 12.0, 46.0, 165.0),
            )
        ],
    ),
    "metax/mx-smi_--count-ecc.v2.2.9.txt": (
        metax.parse_ecc,
        [Reading(index=0, bus_id="0000:08:00.0", ecc_corrected=0)],
    ),
    "kunlunxin/xpu-smi_-m.p800.txt": (
        kunlunxin.parse_columns,
        [
            Reading(
                index=index,
                bus_id=bus,
                memory_total=P800,
                memory_used=90440 * MIB,
                utilization=0.0,
                temperature=hot,
                power=86.0,
            )
            for index, bus, hot in ((0, "0000:03:00.0", 36.0), (1, "0000:05:00.0", 39.0))
        ],
    ),
    "kunlunxin/xpu-smi_-q_-x.p800-oam.first3of8.xml": (
        kunlunxin.parse_xml,
        [
            Reading(
                uuid=uuid,
                memory_total=P800,
                memory_used=0,
                utilization=0.0,
                temperature=hot,
                power=power,
                ecc_corrected=0,
                ecc_uncorrected=0,
            )
            for uuid, hot, power in (
                ("GPU-a0ac042a-5a14-5481-bf7e-dd8e523792cd", 36.0, 87.0),
                ("GPU-1490b1c8-8410-557a-874a-45d4bf2e1456", 37.0, 84.0),
                ("GPU-631b38d9-d28f-5423-b3b9-2f45e9e85841", 36.0, 86.0),
            )
        ],
    ),
    "neuron/neuron-monitor.inf2.xlarge.trimmed.json": (
        neuron.parse,
        [
            Reading(
                index=0,
                memory_total=32 * GIB,
                memory_used=141649980,
                utilization=89.40087251059674 / 2,
                ecc_corrected=0,
                ecc_uncorrected=0,
            )
        ],
    ),
    "enflame/efsmi_dmon.s60.txt": (
        enflame.parse_dmon,
        [
            Reading(
                index=index,
                memory_total=S60,
                memory_used=round(S60 * used / 100),
                utilization=0.0,
                temperature=hot,
                power=power,
            )
            for index, (power, hot, used) in enumerate(
                [
                    (101.0, 36.0, 84.1),
                    (98.0, 37.0, 83.7),
                    (101.0, 37.0, 84.5),
                    (101.0, 37.0, 84.2),
                    (101.0, 37.0, 2.6),
                    (100.0, 34.0, 2.6),
                    (100.0, 34.0, 2.6),
                ]
            )
        ],
    ),
    "enflame/efsmi_-q.s60.v1.4.3.4.txt": (
        enflame.parse_query,
        [
            Reading(
                index=0,
                memory_total=S60,
                memory_used=0,
                utilization=0.0,
                temperature=35.0,
                power=96.0,
                ecc_uncorrected=0,
            )
        ],
    ),
    "enflame/efsmi_-q_-d_TEMP,MEMORY,USAGE.s60.old.txt": (
        enflame.parse_query,
        [
            Reading(index=index, memory_total=S60, memory_used=1129 * MIB, utilization=0.0, temperature=34.0)
            for index in range(2)
        ],
    ),
}
PARSERS = tuple(dict.fromkeys(parse for parse, _ in EXPECTED.values()))


def there():
    """Name → text of the samples that this machine has."""
    return {name: (SAMPLES / name).read_text(encoding="utf-8") for name in EXPECTED if (SAMPLES / name).is_file()}


def test_each_sample_reads_as_expected():
    for name, text in there().items():
        parse, expected = EXPECTED[name]
        found = parse(text)
        assert list(found.readings) == expected, name
        assert found.problems == (), name


def test_all_parsers_meet_all_samples():
    """Also those of other tools and listings: an error that is meant, or readings."""
    for path in sorted(SAMPLES.glob("*/*")):
        for parse in PARSERS:
            try:
                parse(path.read_text(encoding="utf-8"))
            except Unreadable as error:
                assert "expected" in str(error), path  # noqa: PT017 (most pairs are refused, some are read)


def test_mishaps_of_the_samples():
    texts = there()

    @settings(max_examples=100)
    @given(data=st.data())
    def mishap(data):
        name = data.draw(st.sampled_from(sorted(texts)))
        try:
            EXPECTED[name][0](data.draw(mutated([texts[name]])))
        except Unreadable as error:
            assert str(error).isprintable()  # noqa: PT017 (either is right)

    if texts:
        mishap()
