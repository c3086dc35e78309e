"""What back ends remember: uuids and names stay with their cards, whatever the vendors' tools say from one look to the next."""

import json

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault, IdentitySource, Provenance
from hami_dra.discovery.errors import DiscoveryError, Unreadable
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.memory import FORGET_SECONDS, CardMemory, Listing
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from tests.support.tools import FIXTURES, FakeTools
from tests.unit.discovery.test_neuron import device_files

NEURON = (FIXTURES / "neuron/devices.synthetic.json").read_text()
METAX = {
    "-L": (FIXTURES / "metax/list.txt").read_text(),
    "": (FIXTURES / "metax/table.v2.3.txt").read_text(),
    "topo -m": (FIXTURES / "metax/topology.txt").read_text(),
}
XML = (FIXTURES / "kunlunxin/query.oam.xml").read_text()
COLUMNS = (FIXTURES / "kunlunxin/columns.txt").read_text()
ENFLAME = {"-q": (FIXTURES / "enflame/query.txt").read_text(), "": (FIXTURES / "enflame/table.txt").read_text()}


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def names(found):
    """Uuid → (number in its name, index, present)."""
    return {card.uuid: (card.name_number, card.index, card.present) for card in found.cards}


def codes(health):
    return {uuid: [fault.code for fault in faults] for uuid, faults in health.faults.items() if faults}


def card(index, uuid="", **values):
    return Card(vendor="v", index=index, uuid=uuid or f"U{index}", product="P", memory=1 << 30, **values)


class Machine:
    """A memory that is told of one listing after the other; `restart` is a new driver, `boot` after a reboot."""

    def __init__(self, file):
        self.file = file
        self.now = 0.0
        self.restart()

    def restart(self, boot="b1"):
        self.memory = CardMemory(Card, self.file, boot=boot, now=lambda: self.now)

    def found(self, *cards, **listing):
        judged = self.memory.judge(Listing(cards, **listing), confirmed=True)
        found, self.problems = self.memory.update(judged)
        return {
            each.uuid: (each.name_number, each.index, each.present, [fault.code for fault in each.faults])
            for each in found
        }


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "state" / "cards.json")


# --- identity, through the vendors' own tools ---


def test_neuron_devices_keep_their_uuids_when_the_tool_fails(tools, tmp_path):
    """Without serial numbers: the PCI address, which only neuron-ls tells, and then the number."""
    for index in range(4):
        device_files(tools, index, serial="", connected="")
    tools.answer("neuron-ls", {"--json-output": NEURON})
    backend = neuron.backend(tmp_path, sys=tools.sys)
    first = names(backend.discover())
    tools.script("neuron-ls", "echo busy >&2; exit 1")
    assert codes(backend.health()) == {}
    assert names(backend.discover()) == first
    assert names(neuron.backend(tmp_path, sys=tools.sys).discover()) == first
    tools.answer("neuron-ls", {"--json-output": NEURON})
    assert names(backend.discover()) == first


def test_neuron_devices_that_are_found_without_the_tool_keep_their_uuids_when_it_comes(tools, tmp_path):
    for index in range(4):
        device_files(tools, index, serial="", connected="")
    backend = neuron.backend(tmp_path, sys=tools.sys)
    first = names(backend.discover())
    assert list(first) == ["neuron-0", "neuron-1", "neuron-2", "neuron-3"]
    tools.answer("neuron-ls", {"--json-output": NEURON})
    assert codes(backend.health()) == {}
    assert names(backend.discover()) == first


def test_xpus_keep_their_uuids_when_only_the_columns_can_be_read(tools, tmp_path):
    everything = {"-q -x": XML, "-m": COLUMNS}
    tools.answer("xpu-smi", everything)
    backend = kunlunxin.backend(tmp_path, sys=tools.sys)
    first = backend.discover()
    assert all(each.uuid.startswith("GPU-") for each in first.cards)
    tools.answer("xpu-smi", {"-m": COLUMNS})
    # the columns tell of no errors, which is no reason to call it well
    assert codes(backend.health()) == {first.cards[6].uuid: ["ecc-uncorrectable"]}
    weaker = backend.discover()
    assert names(weaker) == names(first)
    assert [each.architecture for each in weaker.cards] == ["KL3"] * 8
    assert weaker.cards[6].provenance.rank == 0


def test_a_gcu_keeps_its_uuid_when_that_is_not_told_once(tools, tmp_path):
    tools.answer("efsmi", ENFLAME)
    backend = enflame.backend(tmp_path, sys=tools.sys)
    first = names(backend.discover())
    tools.answer("efsmi", ENFLAME | {"-q": ENFLAME["-q"].replace("TR6Y47000101", "N/A")})
    assert codes(backend.health()) == {"TR6Y47000102": ["unhealthy", "power-cable"]}
    assert names(backend.discover()) == first


def test_numbers_that_move_down_leave_the_names(tools, tmp_path):
    """A GCU is taken off the bus: efsmi numbers the others again."""
    tools.answer("efsmi", ENFLAME)
    backend = enflame.backend(tmp_path, sys=tools.sys)
    first = list(names(backend.discover()))
    _, *rest = ENFLAME["-q"].split("DEV ID ")[1:]
    blocks = [f"DEV ID {number}{block[1:]}" for number, block in enumerate(rest)]
    tools.answer("efsmi", {"-q": "".join(blocks)})
    for again in (backend, enflame.backend(tmp_path, sys=tools.sys)):
        health = again.health()
        assert health.outdated == (again is backend)
        assert names(again.discover()) == {
            first[1]: (1, 0, True),
            first[2]: (2, 1, True),
            first[3]: (3, 2, True),
            first[0]: (0, 3, False),
        }


# --- listed, and not readable ---


def without_memory(table, gpu):
    """The table with `N/A` in the cell of one GPU's memory."""
    lines = table.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if gpu in line)
    lines[at + 1] = lines[at + 1].replace("/65536 MiB", "/N/A       ")
    return "".join(lines)


@pytest.mark.parametrize(("bus_id", "code"), [("0000:0a:00.0", "unreadable"), ("0000:8b:00.0", "unavailable")])
def test_a_gpu_whose_memory_cannot_be_read_is_there(tools, tmp_path, bus_id, code):
    tools.answer("mx-smi", METAX)
    backend = metax.backend(tmp_path, sys=tools.sys)
    first = {each.pci_bus_id: each for each in backend.discover().cards}
    tools.answer("mx-smi", METAX | {"": without_memory(METAX[""], bus_id)})
    reported = codes(backend.health())
    assert reported[first[bus_id].uuid] == [code]
    again = {each.pci_bus_id: each for each in backend.discover().cards}
    assert again[bus_id].present
    assert again[bus_id].memory == first[bus_id].memory


def test_gpus_are_well_when_no_listing_of_memory_answers(tools, tmp_path):
    tools.answer("mx-smi", METAX)
    backend = metax.backend(tmp_path, sys=tools.sys)
    first = backend.discover()
    tools.answer("mx-smi", {"-L": METAX["-L"]})
    with pytest.raises(Unreadable, match="expected the memory of GPU 0"):
        backend.health()
    one = METAX[""].splitlines(keepends=True)
    tools.answer("mx-smi", METAX | {"": "".join(one)})
    assert names(backend.discover()) == names(first)


def test_a_gpu_whose_line_is_cut_off_is_there(tools, tmp_path):
    tools.answer("mx-smi", METAX)
    backend = metax.backend(tmp_path, sys=tools.sys)
    uuids = [each.uuid for each in backend.discover().cards]
    for text in (METAX["-L"].replace("0000:0b:00.0", "0000:0b:"), METAX["-L"].partition("GPU#7")[0]):
        tools.answer("mx-smi", METAX | {"-L": text})
        (uuid,) = [uuid for uuid, reported in codes(backend.health()).items() if reported == ["unreadable"]]
        assert uuid in uuids


def test_an_xpu_that_only_the_other_listings_show_is_there(tools, tmp_path):
    tools.answer("xpu-smi", {"-q -x": XML, "-m": COLUMNS})
    backend = kunlunxin.backend(tmp_path, sys=tools.sys)
    uuid = backend.discover().cards[7].uuid
    start = XML.rindex("<xpu id=")
    less = XML[:start] + XML[XML.index("</xpu>", start) + len("</xpu>") :]
    less = less.replace("<attached_xpus>8", "<attached_xpus>7")
    tools.answer("xpu-smi", {"-q -x": less, "-m": COLUMNS})
    assert codes(backend.health())[uuid] == ["unreadable"]
    tools.answer("xpu-smi", {"-q -x": less, "-m": "".join(COLUMNS.splitlines(keepends=True)[:-1])})
    assert codes(backend.health())[uuid] == ["lost"]


def test_a_neuron_device_that_only_the_kernel_shows_is_there(tools, tmp_path):
    for index in range(4):
        device_files(tools, index, serial=f"00{index}", connected="")
    tools.answer("neuron-ls", {"--json-output": NEURON})
    backend = neuron.backend(tmp_path, sys=tools.sys)
    backend.discover()
    tools.answer("neuron-ls", {"--json-output": json.dumps(json.loads(NEURON)[:3])})
    assert codes(backend.health()) == {"003": ["unreadable"]}


def test_a_card_in_one_of_two_readings_is_none(tools, tmp_path):
    """A slip while cards are discovered invents no card, and ends none."""
    tools.answer("mx-smi", METAX)
    backend = metax.backend(tmp_path, sys=tools.sys)
    first = names(backend.discover())
    wrong = METAX["-L"].replace("GPU-0b1c0d2e", "GPU-ffffffff")
    tools.answer("mx-smi", METAX | {"-L": wrong})
    assert [reported for reported in codes(backend.health()).values() if "lost" in reported] == []
    looks = iter([METAX | {"-L": wrong}, METAX])
    real = backend.read

    def read():
        tools.answer("mx-smi", next(looks))
        return real()

    backend.read = read
    assert names(backend.discover()) == first


# --- names, lost cards, restarts ---


def test_names_stay_with_uuids(machine):
    assert machine.found(card(0), card(1), card(2)) == {
        "U0": (0, 0, True, []),
        "U1": (1, 1, True, []),
        "U2": (2, 2, True, []),
    }
    machine.restart()
    moved = machine.found(card(0, "U1"), card(1, "U2"))
    assert moved == {"U1": (1, 0, True, []), "U2": (2, 1, True, []), "U0": (0, 2, False, ["lost"])}
    added = machine.found(card(0, "new"), card(1, "U1"), card(2, "U2"))
    assert added["new"] == (3, 0, True, [])
    assert (added["U1"], added["U2"]) == ((1, 1, True, []), (2, 2, True, []))


def test_a_card_that_takes_the_place_of_another_gets_a_free_name(machine):
    machine.found(card(0), card(1, pci_bus_id="0000:01:00.0"))
    found = machine.found(card(0), card(1, "other", pci_bus_id="0000:01:00.0"))
    assert found == {"U0": (0, 0, True, []), "other": (2, 1, True, []), "U1": (1, 2, False, ["lost"])}


def test_a_card_that_was_lost_before_the_start_is_lost(machine):
    machine.found(card(0), card(1))
    machine.restart()
    assert machine.found(card(0))["U1"] == (1, 1, False, ["lost"])
    assert machine.problems == ("card 1 (U1) was found before and is missing now",)


def test_a_card_that_stays_away_after_a_reboot_is_forgotten(machine):
    machine.found(card(0), card(1))
    machine.restart(boot="b2")
    assert "U1" in machine.found(card(0))
    machine.now = FORGET_SECONDS
    assert "U1" not in machine.found(card(0))
    assert machine.found(card(0), card(1))["U1"] == (1, 1, True, [])


def test_a_card_that_is_away_in_this_boot_is_never_forgotten(machine):
    machine.found(card(0), card(1))
    machine.found(card(0))
    machine.now = 100 * FORGET_SECONDS
    assert machine.found(card(0))["U1"] == (1, 1, False, ["lost"])


def test_a_tool_that_invents_cards_does_not_fill_the_slice(machine):
    for number in range(100):
        found = machine.found(card(0), card(1, f"invented-{number}"))
    assert len(found) == 2 + 16


def test_a_listing_that_fails_is_no_ground_to_call_a_card_lost(machine):
    shown = Provenance(listed_by=("table",))
    machine.found(card(0), card(1, provenance=shown))
    assert machine.found(card(0), failed=frozenset({"table"}))["U1"] == (1, 1, True, ["unseen"])
    assert machine.found(card(0), failed=frozenset({"another"}))["U1"] == (1, 1, False, ["lost"])


def test_something_that_nobody_can_name_may_be_any_card(machine):
    machine.found(card(0), card(1))
    assert machine.found(card(0), seen=(Trace(),))["U1"] == (1, 1, True, ["unreadable"])


def test_numbers_of_missing_cards_that_went_to_others_say_nothing_of_them(machine):
    machine.found(card(0), card(1), card(2))
    found = machine.found(card(0), card(1, "U2"), seen=(Trace(index=1),))
    assert found["U1"] == (1, 2, False, ["lost"])


def test_a_weaker_listing_changes_nothing_but_the_number(machine):
    good = card(0, "real", serial="S", minor=0)
    machine.found(good, card(1))
    weak = Card(
        vendor="v",
        index=3,
        minor=3,
        uuid="S",
        product="?",
        memory=1,
        serial="S",
        provenance=Provenance(identified_by=IdentitySource.SERIAL, rank=2),
    )
    machine.found(weak, card(1))
    kept = machine.memory.cards["real"]
    assert kept == replace(good, index=3, minor=3, number=0)


def test_a_fault_is_not_over_because_a_weaker_listing_does_not_tell_it(machine):
    fault = Fault(code="ecc-uncorrectable", message="3")
    machine.found(card(0, serial="S", faults=(fault,)))
    weak = replace(card(0, "S", serial="S"), provenance=Provenance(identified_by=IdentitySource.SERIAL, rank=2))
    assert machine.found(weak)["U0"][3] == ["ecc-uncorrectable"]
    assert machine.found(card(0, serial="S"))["U0"][3] == []


def test_peers_are_named_by_the_numbers_they_have_now(machine):
    weak = Provenance(rank=1)
    machine.found(card(0), card(1, links={0: 4, 2: 8}), card(2, links={1: 8}))
    machine.found(card(0, "U1", provenance=weak), card(1, "U2", provenance=weak))
    assert machine.memory.cards["U1"].links == {1: 8}
    assert machine.memory.cards["U2"].links == {0: 8}
    assert machine.memory.cards["U0"].links == {}


def test_two_cards_of_one_board_may_share_a_serial_number(machine):
    board = {"serial": "S"}
    machine.found(card(0, **board, pci_bus_id="0000:01:00.0"), card(1, **board, pci_bus_id="0000:02:00.0"))
    weak = Provenance(identified_by=IdentitySource.SERIAL, rank=1)
    swapped = [
        card(0, "S-a", **board, pci_bus_id="0000:02:00.0", provenance=weak),
        card(1, "S-b", **board, pci_bus_id="0000:01:00.0", provenance=weak),
    ]
    assert {uuid: found[1] for uuid, found in machine.found(*swapped).items()} == {"U1": 0, "U0": 1}


def test_a_file_that_is_damaged_is_set_aside_and_told(machine, caplog):
    machine.found(card(0))
    machine.file.write_text("{")
    machine.restart()
    assert machine.found(card(0)) == {"U0": (0, 0, True, [])}
    assert "cards.json, which has the names of this node's cards, cannot be used" in caplog.text
    assert machine.file.with_name("cards.json.damaged").read_text() == "{"
    assert json.loads(machine.file.read_text())["version"] == 1


def test_a_file_of_another_version_is_set_aside(machine):
    machine.found(card(0))
    machine.file.write_text('{"version": 2, "cards": []}')
    machine.restart()
    assert machine.found(card(1, "U0")) == {"U0": (1, 1, True, [])}


def test_a_disk_that_is_full_is_told_and_changes_nothing_else(machine, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hami_dra.discovery.durable.os.fsync", full)
    assert machine.found(card(0)) == {"U0": (0, 0, True, [])}
    assert machine.problems[0].startswith("the names of the cards would not outlive a restart: ")
    monkeypatch.undo()
    machine.found(card(0))
    assert machine.problems == ()
    assert machine.file.exists()


def test_two_drivers_on_one_node_agree(machine, tmp_path):
    other = Machine(machine.file)
    machine.found(card(0))
    other.found(card(0), card(1))
    assert (
        machine.found(card(0), card(2, "new"), card(1))["new"] == other.found(card(0), card(1), card(2, "new"))["new"]
    )


def test_no_cards_leave_no_file(machine):
    assert machine.found() == {}
    assert not machine.file.exists()


def test_a_machine_without_the_vendor_has_no_memory(tools, tmp_path):
    with pytest.raises(DiscoveryError):
        metax.backend(tmp_path / "state", sys=tools.sys).discover()
    assert not (tmp_path / "state").exists()
