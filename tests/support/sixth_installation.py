"""A vendor of another project, "Acme", and hami-dra installed together with it. Its files: `sixth_vendor`."""

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hack.generate import device_classes
from hack.installation import QUICK, Host, Installation
from hack.vendor_lists import vendor_lists
from hami_dra.kube import manifests
from hami_dra.vendors.plugin import VendorPlugin
from hami_dra.vendors.registry import PLUGINS

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "sixth_vendor"
"""The distribution, as a folder of site-packages would have it."""
DRIVER = "acme.example.com"
CARDS = "0 ACME-0 16384\n1 ACME-1 16384\n"
"""What `acme-smi` prints of two cards."""


def sixth_plugin() -> VendorPlugin:
    """Return its plugin, which is not in the registry of this process."""
    sys.path.insert(0, str(FOLDER))
    try:
        plugin: VendorPlugin = import_module("acme").PLUGIN
    finally:
        sys.path.remove(str(FOLDER))
    return plugin


def write_tool(folder: Path) -> str:
    """Write an `acme-smi` that prints `CARDS`; return the PATH with it."""
    tool = folder / "acme-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{CARDS}END\n")
    tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def installation_with_sixth(host: Host, folder: Path) -> Installation:
    """Install what ships, with what `make generate` writes where Acme's distribution is installed too.

    Its folder is on the PYTHONPATH of all programs: they find the plugin by its entry point.
    """
    plugin = sixth_plugin()
    for name in ("manifests", "deviceclasses"):
        shutil.copytree(ROOT / name, folder / name)
    for path, text in {**vendor_lists((*PLUGINS, plugin)), **device_classes([plugin.publishing])}.items():
        if path.partition("/")[0] in ("manifests", "deviceclasses"):
            (folder / path).write_text(text)
    installation = Installation(host, environment={"PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "shipped_folder", lambda name: folder / name)
        installation.install()
    installation.start_controller(*QUICK)
    installation.start_webhook()
    installation.wait_ready()
    return installation
