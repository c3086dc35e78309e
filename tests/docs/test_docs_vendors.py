"""The pages of vendors: what they show in both forms comes to the same."""

from functools import cache

import pytest
import yaml

from controller.insight.simulation import SimulationSettings, simulate
from hami_dra.kube.documents import Document, read_documents
from hami_dra.vendors.registry import LEGACY_VENDORS
from tests.docs.commands_in_docs import ROOT, blocks

NAMES = sorted(vendor.name for vendor in LEGACY_VENDORS)


def shown(page):
    """The YAML blocks of its section "In both forms"."""
    text = page.read_text()
    section = text.partition("\n## In both forms\n")[2].partition("\n## ")[0]
    return [text for language, text in blocks(page) if language == "yaml" and text in section]


@cache
def cluster():
    return read_documents([ROOT / "resourceslices", ROOT / "deviceclasses"])


def taken(text, driver):
    """Devices, and what is consumed of each; all that is left is how claims and requests are called."""
    given = [Document(ROOT / "page.yaml", number, raw) for number, raw in enumerate(yaml.safe_load_all(text), 1)]
    cards = [each for each in cluster() if each.raw["spec"].get("driver", driver) == driver]
    report = simulate([*cards, *given], SimulationSettings())
    assert report.unplaced == []
    (placement,) = report.placements
    (claim,) = placement["claims"]
    results = claim["allocation"]["devices"]["results"]
    return placement["node"], [(each["device"], each.get("consumedCapacity")) for each in results]


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_come_to_the_same(name):
    legacy, claims = shown(ROOT / f"docs/vendors/{name}.md")
    assert "limits:" in legacy
    assert "ResourceClaimTemplate" in claims
    assert taken(legacy, f"{name}.hami.io") == taken(claims, f"{name}.hami.io")
