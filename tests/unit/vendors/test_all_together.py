"""Several vendors in one cluster, on one node, in one pod: each by its own rules, none by another's."""

import pytest

from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS
from tests.support.manifests import claim, device_class, node, pod, simulated, slices

CLASSES = [
    device_class(f"{name}.hami.io", f"{name.split('-')[0]}.hami.io")
    for name in (
        *("nvidia-gpu", "nvidia-vgpu", "metax-gpu", "metax-sgpu", "kunlunxin-xpu", "kunlunxin-vxpu"),
        *("neuron-device", "neuron-core", "enflame-gcu", "enflame-vgcu"),
    )
]


def machines(**nodes):
    """Node → one or several machines, all of whose cards are in it."""
    found = []
    for name, kinds in nodes.items():
        found.append(node(name))
        for kind in kinds.split("+"):
            found += slices(name, kind)
    return found


def placed(report):
    """Pod → (node, sorted `driver/device`)."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            sorted(
                f"{result['driver'].partition('.')[0]}/{result['device']}"
                for each in entry["claims"]
                for result in each["allocation"]["devices"]["results"]
            ),
        )
        for entry in report.placements
    }


def reasons(report):
    return {entry["pod"].removeprefix("default/"): (entry["reasons"], entry["error"]) for entry in report.unplaced}


def test_each_name_finds_its_vendor_in_a_mixed_cluster():
    wanted = {
        "nvidia": {"nvidia.com/gpu": 1},
        "neuron": {"aws.amazon.com/neuron": 1},
        "enflame": {"enflame.com/gcu": 1},
    }
    cluster = machines(a="g4dn.12xlarge", b="inf2.48xlarge", c="s60-8")
    report = simulated(CLASSES, cluster, [pod(name, limits=limits) for name, limits in wanted.items()])
    assert {name: where for name, (where, _) in placed(report).items()} == {
        "nvidia": "a",
        "neuron": "b",
        "enflame": "c",
    }


def two_containers(name, first, second):
    raw = pod(name)
    raw["spec"]["containers"] = [
        {"name": "one", "resources": {"limits": first}},
        {"name": "two", "resources": {"limits": second}},
    ]
    return raw


def test_a_pod_that_asks_two_vendors_goes_where_both_are():
    cluster = machines(a="g4dn.12xlarge", b="g4dn.12xlarge+s60-8", c="s60-8")
    wanted = two_containers("both", {"nvidia.com/gpu": 1}, {"enflame.com/gcu": 2})
    report = simulated(CLASSES, cluster, wanted)
    assert placed(report) == {"both": ("b", ["enflame/gcu-0", "enflame/gcu-1", "nvidia/gpu-0"])}


def test_one_container_may_ask_two_vendors():
    wanted = pod("both", limits={"nvidia.com/gpu": 1, "enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 25})
    report = simulated(CLASSES, machines(n="g4dn.12xlarge+s60-8"), wanted)
    assert placed(report) == {"both": ("n", ["enflame/gcu-0", "nvidia/gpu-0"])}


def test_nowhere_both_is_a_refusal():
    wanted = two_containers("both", {"nvidia.com/gpu": 1}, {"enflame.com/gcu": 2})
    report = simulated(CLASSES, machines(a="g4dn.12xlarge", b="s60-8"), wanted)
    assert reasons(report) == {"both": ({"NodeInsufficientDevice": 2}, "")}


def test_the_rules_of_one_vendor_say_nothing_about_the_cards_of_another():
    """Two devices of Trainium are no block; two GPUs and two GCUs of the same node are none of its business."""
    cluster = machines(n="g4dn.12xlarge+trn1.32xlarge+s60-8")
    pods = [
        pod("gpus", limits={"nvidia.com/gpu": 3}),
        pod("gcus", limits={"enflame.com/gcu": 3}),
        pod("neurons", limits={"aws.amazon.com/neuron": 3}),
    ]
    report = simulated(CLASSES, cluster, pods)
    assert placed(report).keys() == {"gpus", "gcus"}
    assert reasons(report) == {"neurons": ({"NumaNotFit": 1}, "")}


def test_a_prioritized_list_across_vendors():
    """The first alternative by block of Trainium, the second on any GPU."""
    alternatives = [
        {"name": "trainium", "deviceClassName": "neuron-device.hami.io", "count": 4},
        {"name": "gpu", "deviceClassName": "nvidia-gpu.hami.io", "count": 2},
    ]
    wanted = claim("c", {"name": "any", "firstAvailable": alternatives})
    other = claim("d", {"name": "any", "firstAvailable": alternatives})
    full = pod("full", limits={"aws.amazon.com/neuron": 16})
    cluster = machines(a="g4dn.12xlarge", b="trn1.32xlarge")
    report = simulated(CLASSES, cluster, wanted, other, pod("first", "c"))
    assert placed(report)["first"] == ("b", [f"neuron/neuron-{number}" for number in range(4)])
    report = simulated(CLASSES, cluster, wanted, other, full, pod("second", "d"))
    assert placed(report)["second"] == ("a", ["nvidia/gpu-0", "nvidia/gpu-1"])


def test_a_class_of_two_vendors_is_met_by_either():
    """Neither vendor can tell which of its cards are the choice, so the device policy decides alone."""
    either = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "any"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver in ["enflame.hami.io", "neuron.hami.io"]'}}]},
    }
    two = {"name": "two", "exactly": {"deviceClassName": "any", "count": 2}}
    report = simulated(either, machines(n="s60-8+trn1.32xlarge"), claim("c", two), pod("p", "c"))
    assert len(placed(report)["p"][1]) == 2


@pytest.mark.parametrize("empty", ["", "  ", " , ,"])
def test_an_empty_list_is_no_constraint_for_any_vendor(empty):
    """HAMi's Kunlunxin page writes `hami.io/use-xpu-uuid: ""`; charts render empty values."""
    lists = {name: empty for name in PREFERENCE_ANNOTATIONS if "uuid" in name or "gputype" in name}
    assert len(lists) >= 14
    limits = [{"nvidia.com/gpu": 1}, {"metax-tech.com/gpu": 1}, {"aws.amazon.com/neuron": 1}]
    limits += [{"enflame.com/gcu": 1}, {"kunlunxin.com/xpu": 1}]
    kinds = machines(n="s60-8", x="trn1.32xlarge", k="p800-oam-8", m="c500-8", v="g4dn.12xlarge")
    pods = [pod(f"p{number}", limits=wanted, annotations=lists) for number, wanted in enumerate(limits)]
    assert len(placed(simulated(CLASSES, kinds, pods))) == 5


def test_an_annotation_that_means_nothing_is_an_error_that_names_pod_and_annotation():
    wrong = {"nvidia.com/numa-bind": "yes"}
    report = simulated(CLASSES, machines(n="s60-8"), pod("p", limits={"enflame.com/gcu": 1}, annotations=wrong))
    (error,) = (error for _, error in reasons(report).values())
    assert error.startswith("Pod default/p: ")
    assert "annotation nvidia.com/numa-bind: 'yes' is neither true nor false" in error


@pytest.mark.parametrize("level", ["claim", "class"])
def test_lists_may_stand_on_claims_and_classes_and_the_pod_comes_first(level):
    def wanted(**on_pod):
        listed = {"enflame.com/use-gpuuuid": "n-GCU-6"}
        own = device_class("own", "enflame.hami.io", annotations=listed if level == "class" else {})
        one = {"name": "one", "exactly": {"deviceClassName": "own"}}
        mine = claim("c", one, annotations=listed if level == "claim" else {})
        return placed(simulated(own, machines(n="s60-8"), mine, pod("p", "c", **on_pod)))["p"][1]

    assert wanted() == ["enflame/gcu-6"]
    assert wanted(annotations={"enflame.com/use-gpuuuid": "n-GCU-3"}) == ["enflame/gcu-3"]
