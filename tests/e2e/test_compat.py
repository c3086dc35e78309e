"""HAMi-DRA's own manifests, byte for byte, on slices such as its driver publishes: placed by our controller, scored as ours are.

The class is deviceclasses/compat/, which the installation applies; claims and pods are tests/golden/hami-dra/, in the
namespace that they name.
"""

from pathlib import Path

import pytest

from hack.installation import QUICK
from tests.e2e.lab import A10G, T4, allocated_by
from tests.e2e.objects import part, pod, policies, template
from tests.e2e.observe import allocations, amount, pattern

GOLDEN = Path(__file__).parents[1] / "golden/hami-dra"
DRIVER = "hami-core-gpu.project-hami.io"
PODS = ["converted", "from-template", "one-part", "two-parts"]
GI = 1 << 30


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_controller("--manage", DRIVER, *QUICK)
    installation.wait_ready()
    return installation


@pytest.fixture(scope="module")
def namespace(control_plane):
    """The one that HAMi-DRA's manifests name."""
    api, path = control_plane.api, "/api/v1/namespaces/hami"
    api.create("/api/v1/namespaces", {"metadata": {"name": "hami"}})
    api.wait_for("its service account", lambda: api.get(f"{path}/serviceaccounts/default"))
    yield "hami"
    api.delete(path)


@pytest.fixture
def both(lab):
    """T4 cards first by name: what is not for them must not go there."""
    lab.machines(T4, "a-t4", publish_as=DRIVER)
    lab.machines(A10G, "b-a10g", publish_as=DRIVER)
    return lab


def taken(lab, claim_name):
    """(request, memory in GiB, percent of cores) of each device of a claim."""
    found = [result for item, result in allocations(lab.claims()) if item["metadata"]["name"].startswith(claim_name)]
    consumed = [(result["request"], result["consumedCapacity"]) for result in found]
    return [(name, amount(each["memory"]) / GI, amount(each["cores"])) for name, each in consumed]


def test_claims_of_every_form_are_placed_unchanged(both):
    lab = both
    lab.apply_file(GOLDEN / "claims.yaml")
    before = {item["metadata"]["name"]: item["spec"] for item in lab.claims()}
    lab.apply_file(GOLDEN / "pods.yaml")
    found = {each.pod: each for each in lab.wait_running(names=PODS)}

    assert taken(lab, "one-part") == [("single-gpu", 4, 30)]
    assert taken(lab, "from-template-gpu-") == [("single-gpu", 4, 30)]
    assert sorted(taken(lab, "two-parts")) == [("large", 8, 60), ("small", 4, 30)]
    assert taken(lab, "hami-converted-app") == [("gpu", 10, 50)]
    assert found["converted"].node == "b-a10g"  # its selector will have no T4
    assert {lab.bound_by(name) for name in PODS} == {"default-scheduler"}
    assert {item["metadata"]["name"]: item["spec"] for item in lab.claims()}.items() >= before.items()
    assert all(allocated_by(item) == "hami-dra" for item in lab.claims())
    assert lab.overcommitted() == []


def test_its_devices_are_fenced_and_scored_like_ours(both):
    lab = both
    drivers = {rule["spec"]["deviceSelector"]["driver"] for rule in lab.hami.fence_rules()}
    assert drivers >= {DRIVER, "nvidia.hami.io"}
    lab.create(template("half", part("7500Mi", device_class=DRIVER)))
    for shape, asked in (("2 | 2", policies("spread", "binpack")), ("1+1+1+1", policies("binpack", "spread"))):
        for number in range(4):
            lab.create(pod(f"web-{number}", templates=["half"], annotations=asked))
        assert pattern(lab.wait_running(4)) == shape
        assert lab.overcommitted() == []
        lab.clear()
