"""What is checked in is what the code makes; and what the classes promise."""

from pathlib import Path

import pytest
import yaml

from hack import generate
from hami_dra.cel import DeviceInput, compile_selector
from hami_dra.driver.limits import check_pools
from tests.support.slice_limits import check_slice

ROOT = Path(__file__).resolve().parents[3]
COMPAT = "hami-core-gpu.project-hami.io"


def load(path):
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def test_generated_files_are_up_to_date():
    assert generate.stale() == [], "run make generate"


CLASSES = [
    ("nvidia-gpu.hami.io", "nvidia.com/gpu", "nvidia-vgpu.hami.io"),
    ("metax-gpu.hami.io", "metax-tech.com/gpu", "metax-sgpu.hami.io"),
    ("kunlunxin-xpu.hami.io", "kunlunxin.com/xpu", "kunlunxin-vxpu.hami.io"),
    ("neuron-device.hami.io", "aws.amazon.com/neuron", "neuron-core.hami.io"),
    ("enflame-gcu.hami.io", "enflame.com/gcu", "enflame-vgcu.hami.io"),
]


def selected(class_name, device, driver):
    """Whether the class selects a published device."""
    (device_class,) = load(f"deviceclasses/{class_name}.yaml")
    (selector,) = device_class["spec"]["selectors"]
    capacity = {name: entry["value"] for name, entry in device.get("capacity", {}).items()}
    shared = device.get("allowMultipleAllocations", False)
    seen = DeviceInput.of(driver, device.get("attributes", {}), capacity, allow_multiple_allocations=shared)
    return compile_selector(selector["cel"]["expression"]).evaluate(seen)


@pytest.mark.parametrize(("whole_name", "resource", "part_name"), CLASSES, ids=lambda text: text.split(".")[0])
def test_whole_cards_have_the_extended_resource_and_parts_have_not(whole_name, resource, part_name):
    (whole,) = load(f"deviceclasses/{whole_name}.yaml")
    (part,) = load(f"deviceclasses/{part_name}.yaml")
    assert whole["spec"]["extendedResourceName"] == resource
    assert "extendedResourceName" not in part["spec"]
    driver = whole_name.split("-")[0] + ".hami.io"
    assert part["spec"]["selectors"] == [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    bare = {"attributes": {"hami.io/index": {"int": 0}}}  # nothing but the common attributes need be published
    for class_name in (whole_name, part_name):
        assert selected(class_name, bare, driver)
        assert not selected(class_name, bare, "other.example.com")


def test_whole_cards_are_no_partitions_and_a_part_of_a_card_may_be_one():
    devices = [
        device for item in load("resourceslices/a2-ultragpu-2g-mig.yaml") for device in item["spec"].get("devices", ())
    ]
    by_class = {
        name: [device["name"] for device in devices if selected(name, device, "nvidia.hami.io")]
        for name in ("nvidia-gpu.hami.io", "nvidia-vgpu.hami.io", "nvidia-mig.hami.io")
    }
    assert by_class["nvidia-gpu.hami.io"] == ["gpu-0", "gpu-1"]
    assert len(by_class["nvidia-mig.hami.io"]) == 36
    assert set(by_class["nvidia-vgpu.hami.io"]) == {device["name"] for device in devices}
    assert not set(by_class["nvidia-gpu.hami.io"]) & set(by_class["nvidia-mig.hami.io"])


def test_file_names_are_class_names():
    for path in (ROOT / "deviceclasses").rglob("*.yaml"):
        (device_class,) = load(path)
        assert device_class["metadata"]["name"] == path.stem
        assert device_class["kind"] == "DeviceClass"


def test_one_class_per_extended_resource():
    names = [
        document["spec"]["extendedResourceName"]
        for path in (ROOT / "deviceclasses").rglob("*.yaml")
        for document in load(path)
        if "extendedResourceName" in document["spec"]
    ]
    assert len(names) == len(set(names))


def test_the_compatibility_class_selects_what_hami_dra_publishes():
    (device_class,) = load(f"deviceclasses/compat/{COMPAT}.yaml")
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        f'device.driver == "{COMPAT}" && device.attributes["{COMPAT}"].type == "hami-gpu"'
    )


def test_every_claim_of_the_hami_dra_examples_is_for_that_class():
    for document in load("tests/golden/hami-dra/claims.yaml"):
        spec = document["spec"].get("spec", document["spec"])
        assert {request["exactly"]["deviceClassName"] for request in spec["devices"]["requests"]} == {COMPAT}


@pytest.mark.parametrize("path", sorted((ROOT / "resourceslices").glob("*.yaml")), ids=lambda path: path.stem)
def test_golden_slices_are_inside_the_limits(path):
    bodies = load(path)
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)


def test_every_machine_is_there():
    assert {path.stem for path in (ROOT / "resourceslices").glob("*.yaml")} == {
        "a2-ultragpu-2g-mig", "atlas-300i-pro-6", "atlas-800-9000", "atlas-800i-a2", "atlas-800t-a2", "atlas-800t-a3", "c500-8", "dgx-1",
        "dgx-a100", "dgx-h100", "g4dn.12xlarge", "g5.12xlarge", "gb200-nvl72", "hgx-h200", "inf2.48xlarge",
        "l40s-pcie-8", "p800-oam-8", "s60-8", "trn1.32xlarge", "trn2.48xlarge", "v100-pairs-8",
    }  # fmt: skip


def test_text_that_looks_like_a_number_is_quoted():
    from hami_dra.driver.yaml_text import yaml_text

    assert yaml_text([{"a": "-00e1", "b": "0e10", "c": "15Gi", "d": "0x1f", "e": "-000"}]) == (
        "a: '-00e1'\nb: '0e10'\nc: 15Gi\nd: '0x1f'\ne: '-000'\n"
    )
