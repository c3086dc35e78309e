"""Enflame on a real control plane: slices and whole GCUs, by HAMi's names and by claims. Native mode: test_native.py."""

import pytest

from tests.e2e.lab import EXAMPLES

FORMS = {"legacy.yaml": ("gcu-slice", "gcu-pair"), "claims.yaml": ("gcu-slice-by-claim", "gcu-pair-by-claim")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("slices", "cores"), [(4, "25"), (3, "33")])
def test_a_slice_and_a_close_pair(lab, form, slices, cores):
    lab.machines("s60-8", "s60", sharing={"slices": slices})
    lab.apply_file(EXAMPLES / "enflame" / form)
    lab.wait_running(names=FORMS[form])
    part, pair = (lab.placement(name) for name in FORMS[form])
    consumed = {
        result["device"]: result["consumedCapacity"]
        for item in lab.claims()
        for result in item["status"]["allocation"]["devices"]["results"]
    }
    (device,) = part.devices
    used = consumed[device.partition("/")[2]]
    assert (used["cores"], used["slices"]) == (cores, "1")
    first, second = sorted(int(each.partition("/gcu-")[2]) for each in pair.devices)
    assert second == first + 1
    assert first % 2 == 0
    assert {lab.bound_by(name) for name in FORMS[form]} == {"default-scheduler"}
    assert lab.overcommitted() == []
