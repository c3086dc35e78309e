"""When the fence taint is in the slices, and when it leaves them."""

import pytest

from hami_dra.api.kinds import DEVICE_TAINT_RULE
from hami_dra.driver.fence import QUIET, Fence
from hami_dra.kube.protocol import ServerVersion
from tests.support.steered_cluster import SteeredCluster

DRIVER = "nvidia.hami.io"
V1_36 = ServerVersion(1, 36, "v1.36.4")


def rule(driver=DRIVER, key="hami.io/controller-allocates"):
    spec = {"taint": {"key": key, "effect": "NoSchedule"}, "deviceSelector": {"driver": driver}}
    return {"metadata": {"name": f"fence-{driver}"}, "spec": spec}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("tainted", [False, True])
async def test_without_taint_rules_the_taint_is_in_the_slices(tainted):
    fence = Fence(SteeredCluster(V1_36))
    await fence.refresh()
    assert fence.in_slices(DRIVER, tainted=tainted)


async def test_with_taint_rules_it_never_comes_into_the_slices():
    fence = Fence(SteeredCluster())
    await fence.refresh()
    assert not fence.in_slices(DRIVER, tainted=False)


async def test_after_an_upgrade_it_stays_until_the_rule_has_been_there_for_a_while():
    cluster, clock = SteeredCluster(), Clock()
    fence = Fence(cluster, now=clock)
    await fence.refresh()
    assert fence.in_slices(DRIVER, tainted=True)
    await cluster.create(DEVICE_TAINT_RULE, rule("other.example.com"))
    await cluster.create(DEVICE_TAINT_RULE, rule(key="maintenance") | {"metadata": {"name": "maintenance"}})
    await fence.refresh()
    clock.now += QUIET
    assert fence.in_slices(DRIVER, tainted=True)
    await cluster.create(DEVICE_TAINT_RULE, rule())
    await fence.refresh()
    clock.now += QUIET - 0.1
    await fence.refresh()
    assert fence.in_slices(DRIVER, tainted=True)
    clock.now += 0.1
    assert not fence.in_slices(DRIVER, tainted=True)


async def test_a_rule_that_comes_and_goes_starts_again():
    cluster, clock = SteeredCluster(), Clock()
    fence = Fence(cluster, now=clock)
    await cluster.create(DEVICE_TAINT_RULE, rule())
    await fence.refresh()
    await cluster.delete(DEVICE_TAINT_RULE, f"fence-{DRIVER}")
    await fence.refresh()
    clock.now += QUIET
    assert fence.in_slices(DRIVER, tainted=True)
    await cluster.create(DEVICE_TAINT_RULE, rule())
    await fence.refresh()
    assert fence.in_slices(DRIVER, tainted=True)


@pytest.mark.parametrize(("mode", "expected"), [("on", True), ("off", False)])
async def test_a_mode_decides_whatever_the_cluster_has(mode, expected):
    for cluster in (SteeredCluster(), SteeredCluster(V1_36)):
        fence = Fence(cluster, mode)
        await fence.refresh()
        assert fence.in_slices(DRIVER, tainted=not expected) is expected
        assert not cluster.requests
