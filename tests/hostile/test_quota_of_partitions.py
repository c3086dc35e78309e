"""No mix of whole cards, shares and MIG partitions holds more than the quota of its namespace; admin access is no way around it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.quantity import Quantity
from hami_dra.kube.manifests import shipped
from tests.support import manifests
from tests.support.examples import examples
from tests.support.manifests import simulated
from tests.support.quotas import MIB, quota

SLICES = [*manifests.slices("n1", "a2-ultragpu-2g-mig"), *manifests.slices("n2", "a2-ultragpu-2g-mig")]
NODES = [manifests.node("n1"), manifests.node("n2")]
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
CLASSES = list(shipped("deviceclasses"))
PUBLISHED = {
    (raw["spec"]["pool"]["name"], device["name"]): device.get("capacity", {})
    for raw in SLICES
    for device in raw["spec"].get("devices", ())
}

wants = st.fixed_dictionaries(
    {
        "nvidia.com/gpu": st.integers(1, 2),
        "nvidia.com/gpumem": st.sampled_from([0, 1, 4000, 9000, 9728, 20000, 40000]),
        "nvidia.com/gpucores": st.sampled_from([0, 10, 50, 100]),
    }
)
pods = st.lists(st.tuples(wants, st.sampled_from(["", "mig", "hami-core"]), st.booleans()), min_size=1, max_size=7)
limits = st.fixed_dictionaries(
    {},
    optional={
        "nvidia.com/gpu": st.integers(0, 5),
        "nvidia.com/gpumem": st.sampled_from([0, 9727, 9728, 20000, 81920, 200000]),
        "nvidia.com/gpucores": st.sampled_from([0, 14, 100, 300]),
    },
)


def watching(name):
    """A claim and a pod that ask for admin access, which the namespace does not allow."""
    request = {"name": "all", "exactly": {"deviceClassName": "nvidia-gpu.hami.io", "adminAccess": True}}
    return manifests.claim(name, request), manifests.pod(name, name)


def amount(result, capacity):
    """What a result holds of a capacity: the part that it names, or all that is published."""
    held = result.get("consumedCapacity", {})
    if capacity in held:
        return Quantity.parse(held[capacity]).value()
    published = PUBLISHED[result["pool"], result["device"]].get(capacity, {}).get("value")
    return Quantity.parse(published).value() if published is not None else 0


def held_by(report):
    results = [
        result
        for placed in report.placements
        for claim in placed["claims"]
        for result in claim["allocation"]["devices"]["results"]
    ]
    return {
        "nvidia.com/gpu": len(results),
        "nvidia.com/gpumem": sum(amount(each, "memory") // MIB for each in results),
        "nvidia.com/gpucores": sum(amount(each, "cores") for each in results),
    }


@settings(max_examples=examples(25), deadline=None)
@given(pods=pods, hard=limits)
def test_nothing_is_held_beyond_the_quota(pods, hard):
    objects = []
    for number, (wanted, mode, admin) in enumerate(pods):
        amounts = {key: str(value) for key, value in wanted.items() if value}
        annotations = {"nvidia.com/vgpu-mode": mode} if mode else {}
        objects.append(manifests.pod(f"p{number}", limits=amounts, annotations=annotations))
        if admin:
            objects.extend(watching(f"w{number}"))
    report = simulated(NAMESPACE, *CLASSES, *NODES, *SLICES, quota(hard), *objects)
    held = held_by(report)
    assert all(held[key] <= most for key, most in hard.items()), held
    assert not any(placed["pod"].startswith("default/w") for placed in report.placements)
