"""AWS Neuron devices, from neuron-ls and the kernel driver's files."""

import json

import pytest

from hami_dra.api.hardware import Fault, IdentitySource, Provenance
from hami_dra.discovery.backend import Listing
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.neuron.device_files import read_files
from hami_dra.vendors.neuron.records import NeuronRecord
from tests.support.tools import FIXTURES, FakeTools

FOLDER = FIXTURES / "neuron"
DEVICES = (FOLDER / "devices.synthetic.json").read_text()
SINGLE = (FOLDER / "device.single.json").read_text()
TABLE = (FOLDER / "table.txt").read_text()
JSON = "--json-output"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def read(tools, answers):
    tools.answer("neuron-ls", answers)
    return neuron.read(sys=tools.sys)


def device_files(tools, index, *, name="Trainium1", serial="00ff00ff00ff00ff", cores=2, connected="", **files):
    folder = tools.sys / f"devices/virtual/neuron_device/neuron{index}"
    known = {
        "core_count": str(cores),
        "connected_devices": connected,
        "info/serial_number": serial,
        "info/architecture/arch_type": "NDv2",
        "info/architecture/device_name": name,
        "info/architecture/instance_type": "Trn1",
    }
    for path, text in (known | files).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n")
    return folder


def test_a_ring_of_four(tools):
    found = read(tools, {JSON: DEVICES})
    assert found.problems == ()
    assert found.cards[1] == NeuronRecord(
        vendor="neuron",
        index=1,
        uuid="neuron-0000:10:1f.0",
        product="Neuron",
        memory=32 << 30,
        pci_bus_id="0000:10:1f.0",
        numa_node=0,
        links={0: 1, 2: 1},
        minor=1,
        cores=2,
        logical_cores=2,
        provenance=Provenance(identified_by=IdentitySource.PLACE, rank=1, listed_by=("neuron-ls --json-output",)),
    )
    assert [card.numa_node for card in found.cards] == [0, 0, 1, 1]


def test_a_single_device_has_no_neighbours_and_no_numa_node(tools):
    [card] = read(tools, {JSON: SINGLE}).cards
    assert (card.links, card.numa_node) == ({}, None)


def test_the_drivers_files_name_the_device(tools):
    device_files(tools, 0)
    [card] = read(tools, {JSON: SINGLE}).cards
    assert (card.uuid, card.serial, card.product, card.architecture, card.instance_type) == (
        "00ff00ff00ff00ff",
        "00ff00ff00ff00ff",
        "Trainium1",
        "NDv2",
        "Trn1",
    )


def test_what_the_kernel_says_of_the_machine(tools):
    for path, text in (("devices/virtual/dmi/id/product_name", "trn1.2xlarge"), ("module/neuron/version", "2.25.4.0")):
        (tools.sys / path).parent.mkdir(parents=True)
        (tools.sys / path).write_text(f"{text}\n")
    [card] = read(tools, {JSON: SINGLE}).cards
    assert (card.product, card.instance_type, card.driver_version) == ("Trainium", "trn1.2xlarge", "2.25.4.0")
    device_files(tools, 0)
    [card] = read(tools, {JSON: SINGLE}).cards
    assert (card.product, card.instance_type) == ("Trainium1", "trn1.2xlarge")


def test_a_machine_that_is_not_amazons(tools):
    (tools.sys / "devices/virtual/dmi/id").mkdir(parents=True)
    (tools.sys / "devices/virtual/dmi/id/product_name").write_text("PowerEdge R750\n")
    [card] = read(tools, {JSON: SINGLE}).cards
    assert (card.product, card.instance_type) == ("Neuron", "")


def test_logical_cores(tools):
    found = read(tools, {"": TABLE})
    assert {(card.cores, card.logical_cores, card.memory) for card in found.cards} == {(8, 4, 96 << 30)}
    assert [card.links for card in found.cards] == [{1: 1, 3: 1}, {0: 1, 2: 1}, {1: 1, 3: 1}, {0: 1, 2: 1}]
    assert found.cards[0].pci_bus_id == "0000:cc:00.0"
    assert "neuron-ls --json-output ended with exit code 2" in found.problems[0]


def test_logical_cores_in_json(tools):
    device = json.loads(SINGLE)[0] | {"nc_count": 8, "neuroncore_ids": [0, 1, 2, 3]}
    [card] = neuron.parse_json(json.dumps({"instance_type": "trn2", "mlas": [device]})).cards
    assert (card.cores, card.logical_cores) == (8, 4)


def test_without_the_tool_the_files_are_enough(tools):
    device_files(tools, 0, connected="1")
    device_files(tools, 1, connected="0", serial="11ff")
    found = neuron.read(sys=tools.sys)
    assert [(card.index, card.uuid, card.memory, card.cores, card.links) for card in found.cards] == [
        (0, "00ff00ff00ff00ff", 32 << 30, 2, {1: 1}),
        (1, "11ff", 32 << 30, 2, {0: 1}),
    ]
    assert "neuron-ls was not found" in found.problems[0]


def test_cores_that_are_joined_by_default(tools):
    device_files(tools, 0, name="Trainium2", cores=8)
    [card] = neuron.read(sys=tools.sys).cards
    assert (card.cores, card.logical_cores, card.memory) == (8, 4, 96 << 30)


def test_an_unknown_device_without_the_tool(tools):
    device_files(tools, 0, name="Trainium99")
    device_files(tools, 1, serial="N/A")
    found = neuron.read(sys=tools.sys)
    assert [(card.index, card.uuid) for card in found.cards] == [(1, "neuron-1")]
    assert 'got "2" and "Trainium99"' in found.problems[1]


@pytest.mark.parametrize("path", ["stats/hardware/mem_ecc_uncorrected", "stats/hardware/sram_ecc_uncorrected/total"])
def test_errors_in_memory_are_a_fault(tools, path):
    folder = device_files(tools, 0, **{path: "3"})
    [card] = read(tools, {JSON: SINGLE}).cards
    counter = folder / path.removesuffix("/total")
    assert card.faults == (Fault(code="ecc-uncorrected", message=f"{counter} is 3"),)


def test_no_errors_in_memory(tools):
    device_files(tools, 0, **{"stats/hardware/mem_ecc_uncorrected": "0"})
    assert read(tools, {JSON: SINGLE}).cards[0].faults == ()


def test_neither_tool_nor_driver(tools):
    with pytest.raises(ToolMissing, match=r"neuron-ls was not found in PATH, /opt/aws/neuron/bin"):
        neuron.backend(sys=tools.sys).discover()


def test_the_driver_is_not_loaded(tools):
    line = (
        'time="2026-03-01T00:00:00Z" level=fatal msg="Failed to load system" error="failed to discover Neuron devices"'
    )
    tools.script("neuron-ls", f"echo '{line}' >&2; exit 1")
    with pytest.raises(ToolFailed, match=r"exit code 1.*failed to discover Neuron devices"):
        neuron.backend(sys=tools.sys).discover()


def test_no_devices_is_no_error(tools):
    assert read(tools, {JSON: "[]"}) == Listing((), failed=frozenset({"devices/virtual/neuron_device"}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"neuron_device": None}, 'neuron_device: a whole number from 0 to 4095, got "None"'),
        ({"neuron_device": True}, "neuron_device: a whole number"),
        ({"nc_count": 0}, "nc_count: a whole number from 1"),
        ({"nc_count": "2"}, "nc_count: a whole number"),
        ({"memory_size": "N/A"}, 'memory_size: a whole number from 1 to 1125899906842624, got "N/A"'),
        ({"connected_to": ["1"]}, "connected_to: null or a list of device numbers"),
        ({"connected_to": 1}, "connected_to: null or a list of device numbers"),
        ({"bdf": "N/A"}, "a PCI bus id"),
    ],
)
def test_a_broken_device_is_named_and_the_others_stay(change, expected):
    devices = json.loads(DEVICES)
    devices[2] |= change
    found = neuron.parse_json(json.dumps([*devices, "text"]))
    assert [card.index for card in found.cards] == [0, 1, 3]
    assert found.problems[0].startswith("neuron-ls --json-output, device 2 of the list: expected ")
    assert expected in found.problems[0]
    assert "device 4 of the list: expected an object" in found.problems[1]


@pytest.mark.parametrize("text", ["", "null", "3", '{"a": 1}', DEVICES[:200], "[" * 100_000])
def test_no_list_of_devices(text):
    with pytest.raises(Unreadable, match="neuron-ls --json-output: expected"):
        neuron.parse_json(text)


def test_a_broken_row():
    found = neuron.parse_table(TABLE.replace("| 1      | 8      |", "| 1      | N/A    |"))
    assert [card.index for card in found.cards] == [0, 2, 3]
    assert 'expected NEURON CORES from 0 to 256, got "N/A"' in found.problems[0]
    assert found.problems[0].startswith("neuron-ls, line 9 ")


@pytest.mark.parametrize("text", ["", "+---+\n", "| 0 | 8 |\n"])
def test_no_table(text):
    with pytest.raises(Unreadable, match="neuron-ls: expected a table that begins with NEURON DEVICE"):
        neuron.parse_table(text)


def test_files_that_are_garbage(tools):
    device_files(tools, 0, cores="many", connected="one, 0, 99999999, 1", serial="a b")
    (tools.sys / "devices/virtual/neuron_device/neuron1").mkdir()
    (tools.sys / "devices/virtual/neuron_device/power").mkdir()
    found = read_files(tools.sys)
    assert set(found) == {0, 1}
    assert (found[0].cores, found[0].connected, found[0].serial) == (None, (1,), "")


# --- driver 2.31: files are where nobody knows ---


def moved(tools, **files):
    """Device 0, with files below other folders."""
    for path, text in files.items():
        place = tools.sys / "devices/virtual/neuron_device/neuron0" / path.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")


def test_files_that_were_moved_are_found_by_their_names(tools):
    moved(
        tools,
        device__serial_number="00ff",
        hardware__identity__serial_number="00aa",
        hardware__identity__device_name="Trainium1",
        hardware__identity__core_count="2",
        health__ecc__mem_ecc_uncorrected="2",
        neuron_core0__info__arch_type="NCv2",
    )
    found = read(tools, {JSON: SINGLE})
    [card] = found.cards
    assert (card.serial, card.product, card.architecture) == ("00aa", "Trainium1", "")
    counter = tools.sys / "devices/virtual/neuron_device/neuron0/health/ecc/mem_ecc_uncorrected"
    assert card.faults == (Fault(code="ecc-uncorrected", message=f"{counter} is 2"),)
    assert found.problems == ()


def test_a_device_without_any_known_file_is_named(tools):
    moved(tools, uevent="")
    folder = tools.sys / "devices/virtual/neuron_device/neuron0"
    assert read(tools, {JSON: SINGLE}).problems == (
        f"{folder}: no file serial_number in it: the device is recognised by its place alone",
        f"{folder}: no file mem_ecc_uncorrected or sram_ecc_uncorrected in it: errors of its memory will not be noticed",
    )


def test_devices_are_found_where_the_kernel_lists_their_class(tools):
    target = tools.sys / "devices/pci0000:00/neuron/neuron0"
    (target / "info").mkdir(parents=True)
    (target / "info/serial_number").write_text("00ff\n")
    (tools.sys / "class/neuron_device").mkdir(parents=True)
    (tools.sys / "class/neuron_device/neuron0").symlink_to(target)
    assert read(tools, {JSON: SINGLE}).cards[0].serial == "00ff"


def test_an_upgrade_that_moves_the_serial_number_away_changes_no_uuid(tools, tmp_path):
    folder = device_files(tools, 0)
    tools.answer("neuron-ls", {JSON: SINGLE})
    backend = neuron.backend(tmp_path, sys=tools.sys)
    (before,) = backend.discover().cards
    (folder / "info/serial_number").unlink()
    (folder / "info/architecture/device_name").unlink()
    (after,) = backend.discover().cards
    assert (after.uuid, after.product, after.faults) == (before.uuid, "Trainium1", ())
