"""Ascend on a real control plane: rings and vNPUs with their counters, by HAMi's names and by claims."""

import pytest

from tests.e2e.lab import EXAMPLES
from tests.e2e.objects import pod

FORMS = {
    "legacy.yaml": ("ascend-four", "ascend-vnpu", "ascend-310p-vnpu"),
    "claims.yaml": ("ascend-four-by-claim", "ascend-vnpu-by-claim", "ascend-310p-vnpu-by-claim"),
}


def ascend(name, series, count, memory=None):
    limits = {f"huawei.com/{series}": str(count)}
    if memory is not None:
        limits[f"huawei.com/{series}-memory"] = str(memory)
    return pod(name, resources={"limits": limits})


def devices(lab, name):
    return sorted(device.rpartition("/")[2] for device in lab.placement(name).devices)


@pytest.mark.parametrize("form", FORMS)
def test_the_examples(lab, form):
    for machine in ("atlas-800t-a2", "atlas-800i-a2", "atlas-300i-pro-6"):
        lab.machines(machine, machine)
    lab.apply_file(EXAMPLES / "ascend" / form)
    lab.wait_running(names=FORMS[form])
    four, (quarter,), (small,) = (devices(lab, name) for name in FORMS[form])
    assert len(four) == 4
    assert not any("-vir" in device for device in four)
    assert "-vir05-1c-8g-" in quarter
    assert "-vir02-" in small
    assert {lab.bound_by(name) for name in FORMS[form]} == {"default-scheduler"}
    assert lab.overcommitted() == []


def test_vnpus_fill_a_machine_and_what_is_left_over_waits(lab):
    """Two rings of four 910A: one ring is taken whole, the other by halves and what fits beside them."""
    lab.machines("atlas-800-9000", "n")
    lab.create(ascend("ring", "Ascend910A", 4))
    lab.wait_running(names=["ring"])
    assert len({int(device.removeprefix("npu-")) // 4 for device in devices(lab, "ring")}) == 1
    halves, quarters = [f"half-{n}" for n in range(4)], [f"quarter-{n}" for n in range(4)]
    for name, memory in (*((name, 17_476) for name in halves), *((name, 8_738) for name in quarters)):
        lab.create(ascend(name, "Ascend910A", 1, memory))
    lab.wait_running(names=[*halves, *quarters])
    lab.create(ascend("another", "Ascend910A", 1, 8_738))
    lab.wait_event("another", "FilteringFailed", "CardMigTopologyInfeasible")
    assert lab.overcommitted() == []
