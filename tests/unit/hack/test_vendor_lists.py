"""Lists of vendors in hand-written files follow the registry."""

import json

import pytest
import yaml

from hack import vendor_lists
from hami_dra.vendors.registry import PLUGINS
from tests.support.sixth_installation import sixth_plugin


def test_the_lists_are_those_of_the_registry():
    for path, text in vendor_lists.vendor_lists().items():
        assert (vendor_lists.ROOT / path).read_text() == text, f"{path}: run make generate"


def test_a_new_vendor_is_in_every_list():
    found = vendor_lists.vendor_lists((*PLUGINS, sixth_plugin()))
    assert list(json.loads(found[vendor_lists.SCHEMA])["properties"]["vendors"]["properties"])[-1] == "acme"
    values = yaml.safe_load(found[vendor_lists.VALUES])["vendors"]["acme"]
    assert values["tolerations"] == [{"key": "acme.example.com/card", "operator": "Exists", "effect": "NoSchedule"}]
    assert values["hostPaths"] == [{"path": "/opt/acme", "readOnly": True, "type": "Directory"}]
    assert "\n      'acme.example.com/card', 'acme.example.com/memory'])" in found["manifests/webhook.yaml"]
    assert "| [Acme](acme.md) | `acme.example.com` | `acme.example.com/card` | memory |" in found[vendor_lists.TABLE]
    assert (
        "| `sharing.acmeReserved` | Acme | Memory of each card that is not published |" in found["docs/publishing.md"]
    )
    assert "`sharing.slots` | NVIDIA, MetaX, Acme |" in found["docs/publishing.md"]
    assert "acme" not in found["pyproject.toml"], "a vendor of another project"
    for path in ("manifests/slice-policy.yaml", "manifests/claim-policy.yaml", "manifests/rbac-driver.yaml"):
        assert "acme.example.com" in found[path], path


def test_a_file_without_its_list_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "charts/hami-dra").mkdir(parents=True)
    (tmp_path / vendor_lists.SCHEMA).write_text("{}")
    monkeypatch.setattr(vendor_lists, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="has no list of vendors"):
        vendor_lists.vendor_lists()
