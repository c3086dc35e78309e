"""Kunlunxin on a real control plane: wings, slices and handles, by HAMi's names and by claims. Native mode: test_native.py."""

import pytest

from tests.e2e.lab import EXAMPLES
from tests.e2e.objects import pod, request, template

MACHINE = "p800-oam-8"
FORMS = {
    "legacy.yaml": ("topo-aware-demo-pod", "kunlun-vxpu-demo", "kunlun-wing"),
    "claims.yaml": ("xpu-two-by-claim", "vxpu-quarter-by-claim", "xpu-wing-by-claim"),
}
VXPU, MEMORY = "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"


def numbers(placement):
    return sorted(int(device.partition("/xpu-")[2]) for device in placement.devices)


def legacy(name, **limits):
    names = {"vxpu": VXPU, "memory": MEMORY}
    return pod(name, resources={"limits": {names[key]: str(amount) for key, amount in limits.items()}})


@pytest.mark.parametrize("form", FORMS)
def test_the_examples(lab, form):
    lab.machines(MACHINE, MACHINE)
    lab.apply_file(EXAMPLES / "kunlunxin" / form)
    lab.wait_running(names=FORMS[form])
    two, quarter, wing = (numbers(lab.placement(name)) for name in FORMS[form])
    assert quarter[0] in {1, 3}
    assert len(two) == 2
    assert len({card // 4 for card in two}) == 1
    assert wing in ([0, 1, 2, 3], [4, 5, 6, 7])
    consumed = {
        int(result["device"].removeprefix("xpu-")): result["consumedCapacity"]
        for item in lab.claims()
        for result in item["status"]["allocation"]["devices"]["results"]
    }
    assert (consumed[quarter[0]]["memory"], consumed[quarter[0]]["cores"]) == ("24Gi", "25")
    assert {lab.bound_by(name) for name in FORMS[form]} == {"default-scheduler"}
    assert lab.overcommitted() == []


def test_slices_and_handles(lab):
    """The seed's limits: 8 quarters are refused with the reason, 6 quarters and then 2 whole cards fit."""
    lab.machines(MACHINE, "n")
    lab.create(legacy("eight", vxpu=8, memory=24_576))
    lab.wait_event("eight", "FilteringFailed", "NodeHandlesExhausted")
    lab.create(legacy("six", vxpu=6, memory=24_576))
    lab.wait_running(names=["six"])
    assert numbers(lab.placement("six")) == [0, 1, 2, 3, 4, 5]
    lab.create(legacy("two", vxpu=2))
    lab.wait_running(names=["two"])
    assert numbers(lab.placement("two")) == [6, 7]
    assert lab.overcommitted() == []


def test_two_without_memory_and_cards_that_are_not_linked(lab):
    lab.machines(MACHINE, "n")
    lab.create(legacy("two", vxpu=2))
    lab.wait_running(names=["two"])
    assert numbers(lab.placement("two")) == [0, 1]
    listed = {"hami.io/use-xpu-uuid": "n-kunlun-2,n-kunlun-5"}
    lab.create(template("apart", request(device_class="kunlunxin-xpu.hami.io", count=2), annotations=listed))
    lab.create(pod("apart", templates=["apart"]))
    lab.wait_event("apart", "FilteringFailed", "NumaNotFit")
    half = request(device_class="kunlunxin-vxpu.hami.io", memory="48Gi", cores="50")
    lab.create(template("half", half))
    lab.create(pod("halves", templates=["half", "half"]))
    lab.wait_running(names=["halves"])
    first, second = (device.partition("/")[2] for device in lab.placement("halves").devices)
    assert first == second
