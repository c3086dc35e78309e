"""A vendor of another project on a real control plane: its tool is read, its cards are published, pods are converted and placed.

Nothing of hami-dra is changed for it: its distribution is installed (an entry point), and what `make generate` writes with it there.
"""

import shutil
import tempfile

import pytest

from tests.e2e.objects import claim, pod, request
from tests.support.sixth_installation import DRIVER, installation_with_sixth, write_tool

NODE = "acme-node"


@pytest.fixture(scope="module")
def hami(control_plane, tmp_path_factory):
    installation = installation_with_sixth(control_plane, tmp_path_factory.mktemp("sixth"))
    yield installation
    installation.remove()


@pytest.fixture
def node(lab, tmp_path):
    """A node whose driver finds two cards by `acme-smi`, and keeps 1 GiB of each to itself by Acme's own option."""
    lab.plane.nodes.create(NODE)
    root = tempfile.mkdtemp(prefix="hami-")  # the path of a socket has 107 bytes at most
    program = lab.hami.start_driver(
        NODE,
        f"--root={root}",
        f"--cdi-dir={tmp_path / 'cdi'}",
        "--acme-reserved=1Gi",
        environment={"PATH": write_tool(tmp_path)},
    )
    yield NODE
    program.process.stop()
    shutil.rmtree(root)


def published(lab):
    return {
        device["name"]: device["capacity"]["memory"]["value"]
        for item in lab.slices()
        if (item["spec"]["driver"], item["spec"].get("nodeName")) == (DRIVER, NODE)
        for device in item["spec"].get("devices", ())
    }


def test_discovered_published_converted_and_placed(lab, node):
    lab.hami.wait_for("both cards", lambda: published(lab) == {"card-0": "15Gi", "card-1": "15Gi"})
    limits = {"acme.example.com/card": "1", "acme.example.com/memory": "4096"}
    lab.create(
        pod("legacy", resources={"limits": limits}),
        claim("whole", request(device_class="acme-card.example.com")),
        pod("by-claim", claims=["whole"]),
    )
    lab.wait_running(names=["legacy", "by-claim"])
    part, whole = lab.placement("legacy"), lab.placement("by-claim")
    assert {each.node for each in (part, whole)} == {NODE}
    assert {*part.devices, *whole.devices} == {f"{NODE}/card-0", f"{NODE}/card-1"}
    (consumed,) = [
        result["consumedCapacity"]["memory"]
        for item in lab.claims()
        for result in item["status"]["allocation"]["devices"]["results"]
        if item["metadata"]["name"] != "whole"
    ]
    assert (consumed, part.memory) == ("4Gi", [4 << 30])
    assert {lab.bound_by(name) for name in ("legacy", "by-claim")} == {"default-scheduler"}
    assert lab.overcommitted() == []
