"""The examples of each vendor are placed, in both forms, on its reference machines."""

from pathlib import Path

import pytest

from controller.insight.simulation import SimulationSettings, simulate
from hami_dra.kube.documents import read_documents
from hami_dra.vendors.registry import VENDORS

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
FILES = sorted(path.relative_to(EXAMPLES) for vendor in VENDORS for path in (EXAMPLES / vendor.name).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_pod_is_placed_on_cards_of_the_vendor(path):
    documents = read_documents([ROOT / "resourceslices", ROOT / "deviceclasses", EXAMPLES / path])
    report = simulate(documents, SimulationSettings())
    assert report.unplaced == []
    assert report.placements
    drivers = {
        result["driver"]
        for entry in report.placements
        for claim in entry["claims"]
        for result in claim["allocation"]["devices"]["results"]
    }
    assert f"{path.parent.name}.hami.io" in drivers


@pytest.mark.parametrize("vendor", [vendor.name for vendor in VENDORS])
def test_both_forms_are_there(vendor):
    assert {path.name for path in FILES if path.parent.name == vendor} >= {"legacy.yaml", "claims.yaml"}
