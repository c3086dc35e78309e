"""A vendor of another project, added by its folder and one line: `tests/support/sixth_vendor`."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from hami_dra.api.options import VendorOption, whole
from hami_dra.vendors import registry
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.plugin import InvalidPlugin
from tests.support.sixth_installation import FOLDER as SIXTH
from tests.support.tools import FakeTools

ROOT = Path(__file__).parents[3]


def test_from_discovery_to_a_placed_and_prepared_pod(tmp_path, monkeypatch):
    tools = FakeTools(tmp_path, monkeypatch)
    tools.answer("acme-smi", {"": "0 ACME-0 16384\n1 ACME-1 16384\n"})
    done = subprocess.run(
        [sys.executable, str(SIXTH / "story.py"), str(tmp_path / "root")],
        env={**os.environ, "PYTHONPATH": f"{SIXTH}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["vendors"] == [*registry.plugin_names(), "acme"]
    assert reported["cards"] == ["ACME-0", "ACME-1"]
    assert reported["placed"] == ["n1", ["acme.example.com", "card-0"]]
    assert sorted(reported["edits"]["env"])[:2] == ["ACME_MEMORY_LIMIT=4294967296", "ACME_VISIBLE_DEVICES=0"]
    assert [node["path"] for node in reported["edits"]["deviceNodes"]] == ["/dev/acme0"]


def test_a_controller_loads_nothing_that_reads_hardware():
    program = (
        "import sys, controller.reconcile.controller, controller.webhook.admission, hami_dra.vendors.registry as registry\n"
        "parts = ('nvml', 'discovery', 'monitor')\n"
        "read = [f'hami_dra.vendors.{name}.{part}' for name in registry.plugin_names() for part in parts]\n"
        "print([name for name in [*read, 'pynvml'] if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_such_module:PLUGIN", "cannot be loaded"),
        ("json:dumps", "is a function: make it name a VendorPlugin"),
        ("hami_dra.vendors.enflame:PLUGIN", "uses enflame, enflame.com/drs-gcu,"),
    ],
)
def test_an_entry_point_that_is_no_vendor_of_its_own_is_named(value, problem, monkeypatch):
    entry = EntryPoint("bad", value, registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [entry] if group == "hami_dra.vendors" else [])
    with pytest.raises(InvalidPlugin, match="entry point bad ") as raised:
        registry.with_installed(registry.PLUGINS)
    assert problem in str(raised.value)


def test_two_vendors_share_an_option_only_as_one_object():
    mine = VendorOption(name="slots", default=2, read=whole(1), help="Mine.")
    acme = SimpleNamespace(name="acme", options=(SLOTS,))
    other = SimpleNamespace(name="other", options=(mine,))
    assert registry.options_of([acme, acme]) == {SLOTS: (acme, acme)}
    with pytest.raises(InvalidPlugin, match="vendor other: its option slots is not that of vendor acme"):
        registry.options_of([acme, other])
