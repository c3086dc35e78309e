"""Lists of vendors in hand-written files follow the registry."""

import json
import re
from types import SimpleNamespace

import pytest

from hack import vendor_lists
from hami_dra.vendors.registry import PLUGINS


def test_the_lists_are_those_of_the_registry():
    for path, text in vendor_lists.vendor_lists().items():
        assert (vendor_lists.ROOT / path).read_text() == text, f"{path}: run make generate"


def test_the_help_of_the_driver_names_every_vendor():
    source = (vendor_lists.ROOT / "controller/cli/driver.py").read_text()
    (named,) = re.findall(r"while none of its cards is found: ([a-z, ]+)\.", source)
    assert set(named.split(", ")) == {plugin.name for plugin in PLUGINS}


def test_a_new_vendor_is_appended_everywhere(monkeypatch):
    acme = SimpleNamespace(name="acme", driver="acme.example.com")
    monkeypatch.setattr(vendor_lists, "PLUGINS", (*PLUGINS, acme))
    found = vendor_lists.vendor_lists()
    vendors = json.loads(found.pop(vendor_lists.SCHEMA))["properties"]["vendors"]["properties"]
    assert list(vendors)[-1] == "acme"
    assert len(vendors) == len(PLUGINS) + 1
    for path, text in found.items():
        assert "acme.example.com" in text, path


def test_a_file_without_its_list_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "charts/hami-dra").mkdir(parents=True)
    (tmp_path / vendor_lists.SCHEMA).write_text("{}")
    monkeypatch.setattr(vendor_lists, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="has no list of vendors"):
        vendor_lists.vendor_lists()
