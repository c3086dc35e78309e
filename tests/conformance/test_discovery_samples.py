"""Real outputs of vendors' tools, in the folder `shared/vendor-samples` next to the checkout, where there is one.

The samples are not ours to publish; tests/fixtures/discovery holds outputs of the same layout. What is expected of each file
stands here, so that a checkout without the folder loses no knowledge; its tests then have nothing to do.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.discovery.errors import Unreadable
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.neuron.device_files import read_files
from tests.support.mutations import mutated
from tests.support.tools import FIXTURES, FakeTools

SAMPLES = FIXTURES.parents[3] / "shared" / "vendor-samples"
GIB = 1 << 30
MIB = 1 << 20


def table(text):
    found = metax.parse_table(text)
    assert found.problems == ()
    rows = [(row.index, row.product, row.bus_id, row.memory) for row in found.rows.values()]
    return [found.driver_version, *rows]


def listed(text):
    reader = ListingReader("mx-smi -L")
    found = metax.parse_list(text, reader)
    assert reader.problems == []
    return [(row.index, row.model, row.bus_id, row.state, row.uuid) for row in found]


def parse_list(text):
    return metax.parse_list(text, ListingReader("mx-smi -L"))


def dmon(text):
    sizes, problems = metax.parse_memory(text)
    assert problems == []
    return sizes


def zones(text):
    found = metax.parse_topology(text)
    assert found.problems == ()
    assert {distance for row in found.distances.values() for distance in row.values()} == {"X"}
    return [sorted(found.links[index]) for index in sorted(found.links)]


def xpus(parse):
    def read(text):
        cards = parse(text).cards
        return [(card.index, card.uuid, card.product, card.memory, card.pci_bus_id, card.oam_id) for card in cards]

    return read


def devices(parse):
    def read(text):
        found = parse(text)
        assert found.problems == ()
        return [
            (card.index, card.pci_bus_id, card.memory, card.cores, card.logical_cores, sorted(card.links))
            for card in found.cards
        ]

    return read


def gcus(parse):
    def read(text):
        found = parse(text)
        assert found.problems == ()
        return [
            (gcu.index, gcu.product, gcu.uuid, gcu.serial, gcu.bus_id, gcu.memory) for gcu in found.devices.values()
        ]

    return read


def refusal(parse):
    def read(text):
        with pytest.raises(Unreadable) as caught:
            parse(text)
        return str(caught.value)

    return read


TRN2_NEIGHBOURS = [
    [1, 3, 4, 12],
    [0, 2, 5, 13],
    [1, 3, 6, 14],
    [0, 2, 7, 15],
    [0, 5, 7, 8],
    [1, 4, 6, 9],
    [2, 5, 7, 10],
    [3, 4, 6, 11],
    [4, 9, 11, 12],
    [5, 8, 10, 13],
    [6, 9, 11, 14],
    [7, 8, 10, 15],
    [0, 8, 13, 15],
    [1, 9, 12, 14],
    [2, 10, 13, 15],
    [3, 11, 12, 14],
]
TRN2_BUSES = ["cc", "b5", "b6", "cb", "6f", "58", "59", "6e", "9b", "84", "85", "9a", "f8", "e1", "e2", "f7"]

EXPECTED = {
    "metax/mx-smi.c500.v2.1.12.head.txt": (
        table,
        ["2.12.13", (0, "MetaX C500", "0000:0e:00.0", 64 * GIB)],
    ),
    "metax/mx-smi.c500-1gpu.v2.2.4.txt": (
        table,
        ["2.14.8", (0, "MetaX C500", "0000:01:00.0", 64 * GIB)],
    ),
    "metax/mx-smi.c500-1gpu.v2.2.9.txt": (
        table,
        ["3.0.11", (0, "MetaX C500", "0000:10:00.0", 64 * GIB)],
    ),
    "metax/mx-smi.c500-1gpu.v2.3.1.txt": (
        table,
        ["3.8.30", (0, "MetaX C500", "0000:12:00.0", 64 * GIB)],
    ),
    "metax/mx-smi_-L.v2.2.9.txt": (
        listed,
        [
            (0, "MXC500", "0000:08:00.0", "Available", "GPU-e702f06b-bbd6-bc06-5196-90a5554a24ba"),
            (7, "MXC500", "0000:3c:00.0", "Available", "GPU-0e715b45-bcef-1500-e2db-752724095700"),
        ],
    ),
    "metax/mx-smi_dmon_csv.txt": (dmon, {"0000:08:00.0": 64 * GIB, "0000:09:00.0": 64 * GIB}),
    "metax/mx-smi_topo_-m.8xC500.txt": (
        zones,
        [[peer for peer in range(index // 4 * 4, index // 4 * 4 + 4) if peer != index] for index in range(8)],
    ),
    "kunlunxin/xpu-smi_-q_-x.p800-oam.first3of8.xml": (
        xpus(kunlunxin.parse_xml),
        [
            (0, "GPU-a0ac042a-5a14-5481-bf7e-dd8e523792cd", "P800 OAM", 96 * GIB, "0000:03:00.0", 3),
            (1, "GPU-1490b1c8-8410-557a-874a-45d4bf2e1456", "P800 OAM", 96 * GIB, "0000:05:00.0", 2),
            (2, "GPU-631b38d9-d28f-5423-b3b9-2f45e9e85841", "P800 OAM", 96 * GIB, "0000:63:00.0", 0),
        ],
    ),
    "kunlunxin/xpu-smi_-m.p800.txt": (
        xpus(kunlunxin.parse_columns),
        [
            (0, "02K15K624CV00304", "P800 OAM", 96 * GIB, "0000:03:00.0", None),
            (1, "02K15K624CV0030V", "P800 OAM", 96 * GIB, "0000:05:00.0", None),
        ],
    ),
    "kunlunxin/xpu-smi_-q.p800-pcie.txt": (
        xpus(kunlunxin.parse_query),
        [(0, "02K0MA0258D0007R", "P800 PCIe", 96 * GIB, "0000:01:00.0", None)],
    ),
    # shown in part: nothing tells which card it is
    "kunlunxin/xpu-smi_-q_-d.p800.txt": (
        refusal(kunlunxin.parse_query),
        'xpu-smi -q, line 7, XPU 00000000:4E:00.0: expected a uuid or serial number of up to 64 printable characters, got ""',
    ),
    "kunlunxin/xpu-smi_-q.p800-pcie.tail.txt": (
        refusal(kunlunxin.parse_query),
        "xpu-smi -q: expected blocks that begin with XPU and a PCI bus id, got none",
    ),
    "neuron/neuron-ls_--json-output.trn1.2xlarge.json": (
        devices(neuron.parse_json),
        [(0, "0000:00:1e.0", 32 * GIB, 2, 2, [])],
    ),
    "neuron/neuron-ls_--topology.trn2n.48xlarge.txt": (
        devices(neuron.parse_table),
        [
            (index, f"0000:{bus}:00.0", 96 * GIB, 8, 4, peers)
            for index, (bus, peers) in enumerate(zip(TRN2_BUSES, TRN2_NEIGHBOURS, strict=True))
        ],
    ),
    "enflame/efsmi.s60.v1.2.0.301.txt": (
        gcus(enflame.parse_table),
        [(0, "S60", "", "A073640510015", "0000:01:00.0", 49120 * MIB)],
    ),
    "enflame/efsmi.s60g-sriov.v1.6.3.12.head.txt": (
        gcus(enflame.parse_table),
        [(0, "Enflame S60G", "", "A018K30520031", "0000:2e:00.0", 23552 * MIB)],
    ),
    "enflame/efsmi.l300.v1.7.2.14.txt": (
        gcus(enflame.parse_table),
        [(0, "Enflame L300", "", "A098Q50610048", "0000:2d:00.0", 147456 * MIB)],
    ),
    "enflame/efsmi_-q.s60.v1.4.3.4.txt": (
        gcus(enflame.parse_query),
        [(0, "S60", "TR6Y46010302", "A0A1650510676", "0000:17:00.0", 42976 * MIB)],
    ),
    "enflame/efsmi_-q_-d_TEMP,MEMORY,USAGE.s60.old.txt": (
        gcus(enflame.parse_query),
        [(0, "", "", "", "", 42976 * MIB), (1, "", "", "", "", 42976 * MIB)],
    ),
}


def there():
    """Name → text of the samples that this machine has."""
    return {name: (SAMPLES / name).read_text(encoding="utf-8") for name in EXPECTED if (SAMPLES / name).is_file()}


def test_each_sample_reads_as_expected():
    for name, text in there().items():
        read, expected = EXPECTED[name]
        assert read(text) == expected, name


def test_all_parsers_meet_all_samples():
    """Also those of other tools and listings: an error that is meant, or cards."""
    parsers = [
        parse_list,
        metax.parse_table,
        metax.parse_memory,
        metax.parse_topology,
        kunlunxin.parse_xml,
        kunlunxin.parse_query,
        kunlunxin.parse_columns,
        neuron.parse_json,
        neuron.parse_table,
        enflame.parse_query,
        enflame.parse_table,
        enflame.parse_topology,
    ]
    for path in sorted(SAMPLES.glob("*/*")):
        for parse in parsers:
            try:
                parse(path.read_text(encoding="utf-8"))
            except Unreadable as error:
                assert "expected" in str(error), path  # noqa: PT017 (most pairs are refused, some are read)


def test_mishaps_of_the_samples():
    texts = there()
    parsers = {
        "mx-smi": (parse_list, metax.parse_table, metax.parse_memory, metax.parse_topology),
        "xpu-smi": (kunlunxin.parse_xml, kunlunxin.parse_query, kunlunxin.parse_columns),
        "neuron": (neuron.parse_json, neuron.parse_table),
        "efsmi": (enflame.parse_query, enflame.parse_table),
    }

    @settings(max_examples=400)
    @given(data=st.data())
    def mishap(data):
        name = data.draw(st.sampled_from(sorted(texts)))
        text = data.draw(mutated([texts[name]]))
        tool = name.partition("/")[2]
        for prefix, several in parsers.items():
            for parse in several if tool.startswith(prefix) else ():
                try:
                    parse(text)
                except Unreadable as error:
                    assert str(error).isprintable()  # noqa: PT017 (either is right)

    if texts:
        mishap()


def test_what_neuron_ls_says_without_its_driver(tmp_path, monkeypatch):
    sample = SAMPLES / "neuron" / "neuron-ls.no-driver.stderr.txt"
    if sample.is_file():
        tools = FakeTools(tmp_path, monkeypatch)
        tools.script("neuron-ls", f"cat '{sample}' >&2; exit 1")
        with pytest.raises(neuron.DiscoveryError, match="failed to discover Neuron devices"):
            neuron.read(Tool("neuron-ls"), tools.sys)


def test_the_paths_of_the_kernel_drivers_files(tmp_path):
    sample = SAMPLES / "neuron" / "sysfs-tree.trn1.txt"
    for line in sample.read_text(encoding="utf-8").splitlines() if sample.is_file() else ():
        path, _, value = line.partition("\t")
        file = tmp_path / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n", encoding="utf-8")
    for device in read_files(tmp_path / "sys").values():
        assert (device.device_name, device.serial, device.architecture) == ("Trainium1", "9ff5434815c8bd80", "NDv2")
