"""`hami-dra install-library`: HAMi-core from a folder to a node."""

import os
import struct

import pytest
from typer.testing import CliRunner

from controller.cli.main import app, run
from hami_dra.api.containers import HostSettings
from hami_dra.api.options import VendorSettings
from hami_dra.discovery.host import MachineHost
from hami_dra.vendors.nvidia.hami_core import not_limiting
from hami_dra.vendors.nvidia.options import LIBRARY_FOLDER, LIBRARY_VERSION

MACHINES = {"x86_64": 62, "aarch64": 183}
OWN = MACHINES.get(os.uname().machine, 62)


def library(machine=OWN, kind=3, size=2, order=1, more=b"one"):
    return struct.pack("<4sBB10xHH", b"\x7fELF", size, order, kind, machine) + bytes(40) + more


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    return folder


@pytest.fixture
def node(tmp_path):
    return tmp_path / "local"


def install(source, node, *options):
    """What it printed."""
    arguments = ["install-library", "--from", str(source), "--library-folder", str(node), *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def refused(source, node, capsys, *options):
    with pytest.raises(SystemExit) as ended:
        run(["install-library", "--from", str(source), "--library-folder", str(node), *options])
    assert ended.value.code == 2
    return capsys.readouterr().err


def limits(node, **written):
    options = VendorSettings.of({LIBRARY_FOLDER: str(node), **written})
    return not_limiting(MachineHost(HostSettings(options=options), kernel_root=node, cdi_folders=(), not_from=()))


@pytest.mark.parametrize("name", ["libvgpu.so", "libvgpu.so.v2.9.0"])
def test_a_node_without_hami_core_gets_it(source, node, name):
    (source / name).write_bytes(library())
    assert "not installed" in limits(node)
    said = install(source, node)
    folder = node / "vgpu"
    assert said == [
        f"{folder}/libvgpu.so written, {len(library())} bytes",
        f"{folder}/ld.so.preload written, {len(str(folder)) + 12} bytes",
    ]
    assert limits(node) == ""
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "libvgpu.so": library(),
        "ld.so.preload": f"{folder}/libvgpu.so\n".encode(),
    }
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_what_is_there_already_stays_the_same_file(source, node):
    (source / "libvgpu.so").write_bytes(library())
    install(source, node)
    before = (node / "vgpu/libvgpu.so").stat().st_ino
    assert [line.rpartition(" is ")[2] for line in install(source, node)] == ["there already"] * 2
    assert (node / "vgpu/libvgpu.so").stat().st_ino == before


def test_running_containers_keep_the_library_that_they_have(source, node):
    (source / "libvgpu.so").write_bytes(library())
    install(source, node)
    (source / "libvgpu.so").write_bytes(library(more=b"two"))
    with (node / "vgpu/libvgpu.so").open("rb") as mounted:
        install(source, node)
        assert mounted.read() == library()
    assert (node / "vgpu/libvgpu.so").read_bytes() == library(more=b"two")


def test_one_of_several_versions_is_named(source, node, capsys):
    for version in ("v1", "v2"):
        (source / f"libvgpu.so.{version}").write_bytes(library(more=version.encode()))
    error = refused(source, node, capsys)
    assert "has libvgpu.so.v1, libvgpu.so.v2, and libvgpu.so is wanted" in error
    assert "--library-version" in error
    install(source, node, "--library-version", "v2")
    assert (node / "vgpu/libvgpu.so.v2").read_bytes() == library(more=b"v2")
    assert limits(node) != ""
    options = {LIBRARY_FOLDER: str(node), LIBRARY_VERSION: "v2"}
    host = HostSettings(options=VendorSettings.of(options))
    assert not_limiting(MachineHost(host, kernel_root=node, cdi_folders=(), not_from=())) == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has 0 bytes"),
        (b"#!/bin/sh\n" * 10, "no shared library"),
        (library(kind=2), "no shared library"),
        (library(size=1), "no shared library"),
        (library(machine=243), "is for machine 243"),
        (library(machine=next(each for each in MACHINES.values() if each != OWN)), "and this node is"),
    ],
)
@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="knows no library for this machine")
def test_what_programs_could_not_load_is_not_installed(source, node, capsys, content, why):
    (source / "libvgpu.so").write_bytes(content)
    assert why in refused(source, node, capsys)
    assert not node.exists()


def test_links_that_lead_out_of_the_folder_and_files_that_are_none(source, node, capsys, tmp_path):
    (tmp_path / "elsewhere").write_bytes(library())
    (source / "libvgpu.so").symlink_to(tmp_path / "elsewhere")
    assert "is no file of" in refused(source, node, capsys)
    (source / "libvgpu.so").unlink()
    (source / "libvgpu.so").mkdir()
    assert "is no file of" in refused(source, node, capsys)
    (source / "libvgpu.so").rmdir()
    (source / "libvgpu.so.v1").write_bytes(library())
    (source / "libvgpu.so").symlink_to("libvgpu.so.v1")
    install(source, node)
    assert not (node / "vgpu/libvgpu.so").is_symlink()


def test_a_folder_without_a_library_a_folder_that_is_not_there_and_a_vendor_without_one(source, node, capsys):
    assert "has neither it nor a version of it" in refused(source, node, capsys)
    assert "No such file" in refused(source / "none", node, capsys)
    assert "it has no library" in refused(source, node, capsys, "--vendor", "metax")
    assert "it has no library" in refused(source, node, capsys, "--vendor", "none")


def test_a_node_that_cannot_be_written_is_said(source, tmp_path, capsys):
    (source / "libvgpu.so").write_bytes(library())
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(source, tmp_path / "file", capsys)
