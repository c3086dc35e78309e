"""What discovery finds is what the vendors publish: from the tools' output to devices."""

import pytest

from hami_dra.api.hardware import Machine
from hami_dra.driver.slices import machine_pools
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from tests.support.nvml.fake import FakeNvml, lanes, machine
from tests.support.tools import FIXTURES, FakeTools

MACHINES = {
    "metax": ("mx-smi", {"-L": "list.txt", "": "table.v2.3.txt", "topo -m": "topology.txt"}, metax),
    "kunlunxin": ("xpu-smi", {"-q -x": "query.oam.xml"}, kunlunxin),
    "neuron": ("neuron-ls", {"--json-output": "devices.synthetic.json"}, neuron),
    "enflame": ("efsmi", {"-q": "query.txt", "": "table.txt"}, enflame),
}


@pytest.mark.parametrize("vendor", MACHINES)
def test_cards_become_devices(vendor, tmp_path, monkeypatch):
    tool, files, module = MACHINES[vendor]
    tools = FakeTools(tmp_path, monkeypatch)
    tools.answer(tool, {arguments: FIXTURES / vendor / name for arguments, name in files.items()})
    found = module.read(sys=tools.sys)
    [pool] = machine_pools(Machine(name="n1", instance_type="x", cpu=1, memory=1, cards=found.cards))
    devices = [device for content in pool.slices for device in content.devices]
    assert [device["attributes"]["hami.io/index"]["int"] for device in devices] == [card.index for card in found.cards]
    assert [device["attributes"]["hami.io/uuid"]["string"] for device in devices] == [card.uuid for card in found.cards]
    tainted = {device["attributes"]["hami.io/index"]["int"] for device in devices if device.get("taints")}
    assert tainted == {card.index for card in found.cards if card.faults}


def test_gpus_become_devices(tmp_path):
    nvml = FakeNvml(tmp_path, machine(2) + lanes(0, 1, 4) + "remapped 1 1\n")
    first, second = nvml.ask("published")
    assert first["attributes"]["hami.io/links"] == {"string": "-4"}
    assert first["attributes"]["cudaComputeCapability"] == {"version": "9.0.0"}
    assert "taints" not in first
    assert second["taints"][0]["value"] == "row-remapping"
