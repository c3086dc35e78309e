"""What is checked in is what the code makes; and what the classes promise."""

from pathlib import Path

import pytest
import yaml

from hack import generate
from hami_dra.driver.limits import check_pools, check_slice

ROOT = Path(__file__).resolve().parents[2]
COMPAT = "hami-core-gpu.project-hami.io"


def load(path):
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def test_generated_files_are_up_to_date():
    assert generate.stale() == [], "run make generate"


def test_whole_cards_have_the_extended_resource_and_parts_have_not():
    (whole,) = load("deviceclasses/nvidia-gpu.hami.io.yaml")
    (part,) = load("deviceclasses/nvidia-vgpu.hami.io.yaml")
    assert whole["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "extendedResourceName" not in part["spec"]
    # a slice that publishes nothing but the common attributes is selected too
    assert (
        whole["spec"]["selectors"]
        == part["spec"]["selectors"]
        == [{"cel": {"expression": 'device.driver == "nvidia.hami.io"'}}]
    )


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


def test_the_four_machines_are_there():
    assert {path.stem for path in (ROOT / "resourceslices").glob("*.yaml")} == {
        "dgx-h100", "g4dn.12xlarge", "g5.12xlarge", "l40s-pcie-8",
    }  # fmt: skip


def test_text_that_looks_like_a_number_is_quoted():
    from hami_dra.driver.yaml_text import yaml_text

    assert yaml_text([{"a": "-00e1", "b": "0e10", "c": "15Gi", "d": "0x1f", "e": "-000"}]) == (
        "a: '-00e1'\nb: '0e10'\nc: 15Gi\nd: '0x1f'\ne: '-000'\n"
    )
