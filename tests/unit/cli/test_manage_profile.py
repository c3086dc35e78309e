"""`--manage-profile` with the shipped files, on slices such as those drivers publish (tests/fixtures/driverprofiles)."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.commands import Typed

ROOT = Path(__file__).resolve().parents[3]
AMD, INTEL, TPU = "gpu.amd.com", "gpu.intel.com", "tpu.google.com"


@pytest.fixture
def run(capsys):
    """`run(*words)`: what the command prints; with another exit code, what it says on stderr."""
    typed = Typed(capsys)

    def made(*words, code=0):
        result = typed(*words)
        assert result.code == code, result.stderr
        return result.stderr if code else result.stdout

    return made


def with_profile(driver):
    return "--manage-profile", ROOT / f"driverprofiles/{driver}.yaml"


def slices(driver):
    return ROOT / f"tests/fixtures/driverprofiles/{driver}.yaml"


def workload(folder, driver, pods, *, selector="", count=1, annotations=None):
    """Pods `web-0`, `web-1` ... that ask for devices of the driver by its own class."""
    request = {"deviceClassName": driver, "count": count}
    if selector:
        request["selectors"] = [{"cel": {"expression": selector}}]
    claim = {"devices": {"requests": [{"name": "device", "exactly": request}]}}
    objects = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": driver},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one"},
            "spec": {"spec": claim},
        },
        *(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"web-{number}", "annotations": annotations or {}},
                "spec": {
                    "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "d"}]}}],
                    "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "one"}],
                },
            }
            for number in range(pods)
        ),
    ]
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return file


def placed(run, file, driver, *options):
    """Pod → (node, names of its devices)."""
    report = json.loads(
        run("simulate", "-f", slices(driver), "-f", file, *with_profile(driver), "-o", "json", *options)
    )
    return {
        each["pod"].removeprefix("default/"): (
            each["node"],
            [result["device"] for claim in each["claims"] for result in claim["allocation"]["devices"]["results"]],
        )
        for each in report["placements"]
    }


def cards(run, driver, *options):
    return json.loads(run("status", "-f", slices(driver), "-o", "json", *options))["cards"]


@pytest.mark.parametrize("driver", [AMD, INTEL, TPU])
def test_published_names_are_read_as_the_profile_says(run, driver):
    """Without it products have no name."""
    assert not any(card["product"] for card in cards(run, driver))
    assert all(card["product"] for card in cards(run, driver, *with_profile(driver)))


def test_gpus_of_amd_are_in_the_order_of_their_numbers(run, tmp_path):
    """gpu-8-136 comes before gpu-16-144; two that belong to one NUMA node are taken for one pod."""
    numa = {"hami.io/device-scheduler-policy": "numa"}
    whole = (
        'device.attributes["gpu.amd.com"].type == "amdgpu" && !("computePartition" in device.attributes["gpu.amd.com"])'
    )
    file = workload(tmp_path, AMD, 2, selector=whole, count=2, annotations=numa)
    assert placed(run, file, AMD) == {
        "web-0": ("gpu-worker-1", ["gpu-0-128", "gpu-8-136"]),
        "web-1": ("gpu-worker-1", ["gpu-16-144", "gpu-24-152"]),
    }


def test_a_partitioned_mode_of_a_gpu_of_amd_is_a_part_of_a_card(run, tmp_path):
    """It is no card in the overview, and is not given together with the whole GPU."""
    assert "gpu-0-cpx-nps1" not in {card["device"] for card in cards(run, AMD, *with_profile(AMD))}
    assert "gpu-0-cpx-nps1" in {card["device"] for card in cards(run, AMD)}
    mode = '"computePartition" in device.attributes["gpu.amd.com"]'
    assert len(placed(run, workload(tmp_path, AMD, 2, selector=mode), AMD)) == 1


def test_gpus_of_intel_by_memory(run, tmp_path):
    """binpack fills the node whose devices are in use first; every GPU goes to one pod."""
    file = workload(
        tmp_path, INTEL, 4, selector='device.capacity["gpu.intel.com"].memory.isGreaterThan(quantity("1Gi"))'
    )
    assert placed(run, file, INTEL) == {
        "web-0": ("arc", ["0000-03-00-0-0x56a0"]),
        "web-1": ("rpl-s", ["0000-04-00-0-0xe211"]),
    }


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [("binpack", ["kind-worker"] * 2 + ["tpu-v6e"] * 2), ("spread", ["kind-worker", "tpu-v6e"] * 2)],
)
def test_chips_of_google_are_packed_and_spread(run, tmp_path, policy, nodes):
    found = placed(run, workload(tmp_path, TPU, 4), TPU, "--node-policy", policy)
    assert sorted(node for node, _ in found.values()) == sorted(nodes)
    assert len({(node, *devices) for node, devices in found.values()}) == 4


def test_other_commands_take_the_profile(run, tmp_path):
    """explain, whatif, topology and doctor read the devices the same way."""
    file = workload(tmp_path, TPU, 1)
    files = "-f", slices(TPU), "-f", file, *with_profile(TPU)
    explained = json.loads(run("explain", "web-0", "-o", "json", *files))
    assert "v6e" in json.dumps(explained)
    run("whatif", "--replace", *files)
    assert "v6e" in run("topology", "-f", slices(TPU), *with_profile(TPU))
    assert "checks made" in run("doctor", *files)


def test_a_wrong_file_is_named(run, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "apiVersion: hami.io/v1alpha1\nkind: DriverProfile\ndriver: gpu.amd.com\nattributes: {numanode: x}\n"
    )
    said = run("simulate", "-f", slices(AMD), "--manage-profile", wrong, code=2)
    assert f"--manage-profile: {wrong}: attributes.numanode: no such field; did you mean numaNode?" in " ".join(
        said.split()
    )
