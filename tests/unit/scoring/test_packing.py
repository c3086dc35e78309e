"""What the packing policies are told and how they choose beyond the trace: islands, mixed cards, missing figures, scarce cards."""

import numpy as np
import pytest

from controller.scoring.device_selection import first_of, fit_keys, left_after
from controller.scoring.policies import (
    DevicePolicy,
    InvalidPolicy,
    Packing,
    Policies,
    Weights,
    parse_packing_weights,
)
from hack.bench.packing_shapes import Shape
from hack.bench.packing_typical import typical_shapes
from tests.support.manifests import device_class, pod, simulated, template


def test_weights_are_read_and_the_others_kept():
    weights = parse_packing_weights("theta=0.7, rare=1", "Pod x", Packing(left=0.3))
    assert weights == Packing(theta=0.7, left=0.3, rare=1.0)


@pytest.mark.parametrize(
    "text", ["", "theta", "theta=0", "theta=1.1", "left=-1", "left=nan", "left=inf", "left=1e9", "g=1", "left=1,left=2"]
)
def test_weights_that_make_no_sense(text):
    with pytest.raises(InvalidPolicy):
        parse_packing_weights(text, "Pod x", Packing())


def test_cards_follow_the_node_policy_unless_somebody_chose():
    assert Policies(node_policy="fair-share").for_claim("a/b").keys == ("fair-share",)
    assert Policies(node_policy="spread").for_claim("a/b").keys == ("spread",)
    said = DevicePolicy(("spread",), Weights(), origin="Pod default/p")
    assert Policies(node_policy="fair-share", device_policies={"a/b": said}).for_claim("a/b").keys == ("spread",)
    assert Policies(node_policy="fair-share", device_policy=DevicePolicy(("mutex",))).for_claim("a/b").keys == (
        "mutex",
    )


def ints(*values):
    return np.array([values], dtype=np.int64)


def chosen(free, share, island, count, scarcity=None):
    free, share = ints(*free), ints(*share)
    may = share <= free
    nothing = np.zeros_like(free)
    keys = fit_keys(
        free, share, ints(*island), may, scarcity=nothing if scarcity is None else ints(*scarcity), count=count
    )
    return np.flatnonzero(first_of(keys, may, count)[0]).tolist()


def test_a_used_card_comes_before_an_idle_one_and_the_tightest_first():
    million = 1_000_000
    assert chosen([million, 600_000, 400_000, 200_000], [300_000] * 4, [0, 1, 2, 3], 1) == [2]
    assert chosen([million, million, 200_000], [300_000] * 3, [0, 1, 2], 1) == [0]


def test_whole_cards_come_from_the_smallest_island_that_holds_them():
    million = 1_000_000
    islands = [0, 1, 0, 1, 0, 5]  # cards 0, 2, 4; cards 1, 3; card 5 alone
    assert chosen([million] * 6, [million] * 6, islands, 2) == [1, 3]
    assert chosen([million] * 6, [million] * 6, islands, 3) == [0, 2, 4]
    assert chosen([million] * 6, [million] * 6, islands, 1) == [5]
    assert chosen([million] * 6, [million] * 6, islands, 4) == [0, 1, 2, 4]  # none holds four: the largest first


def test_what_a_part_takes_is_taken_of_its_card():
    free, home = ints(1_000_000, 0, 0), ints(0, 0, 0)
    after = left_after(free, home, ints(0, 250_000, 500_000), np.array([[False, True, True]]))
    assert after.tolist() == [[250_000, 0, 0]]


def test_typical_are_the_frequent_shapes_and_pods_without_cards_at_most_a_fifth():
    bare, often, rare = Shape(100, ()), Shape(4_000, (b"a",)), Shape(8_000, (b"b",))
    found = dict(typical_shapes({bare: 9_000, often: 98, rare: 2}))
    assert found[bare] == pytest.approx(0.2, abs=0.01)
    assert rare not in found
    assert sum(found.values()) == pytest.approx(1.0)


# --- through simulate ------------------------------------------------------------------------------------------------

GI = 2**30


def slices(node, *cards):
    """`cards`: (product, memory in GiB, island)."""
    devices = [
        {
            "name": f"gpu-{index}",
            "allowMultipleAllocations": True,
            "attributes": {
                "hami.io/index": {"int": index},
                "hami.io/productName": {"string": product},
                "hami.io/linkGroup": {"int": island},
            },
            "capacity": {
                "memory": _capacity(f"{memory}Gi", "1Mi"),
                "cores": _capacity("100", "1"),
                "shares": {"value": "10", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}},
            },
        }
        for index, (product, memory, island) in enumerate(cards)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-slice"},
        "spec": {
            "driver": "nvidia.hami.io",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _capacity(value, step):
    return {"value": value, "requestPolicy": {"default": value, "validRange": {"min": "0", "step": step, "max": value}}}


def host(name, cpu="96", memory="384Gi"):
    allocatable = {key: value for key, value in (("cpu", cpu), ("memory", memory), ("pods", "100")) if value}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def placed(documents, pods, policy="fair-share", **weights):
    report = simulated(*documents, *pods, policies=Policies(node_policy=policy, packing=Packing(**weights)))
    assert not report.unplaced
    return [
        (
            each["node"],
            [result["device"] for claim in each["claims"] for result in claim["allocation"]["devices"]["results"]],
        )
        for each in report.placements
    ]


CLASS = device_class()
WHOLE = {"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}


def whole(count):
    return template(f"whole{count}", {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "count": count}})


def pods(name, *cpus):
    return [
        pod(f"p{number}", f"template:{name}", containers=[{"name": "c", "resources": {"requests": {"cpu": cpu}}}])
        for number, cpu in enumerate(cpus)
    ]


def test_a_node_whose_cpu_would_strand_its_cards_is_left_alone():
    # 16 cores for 4 cards: with 14 of them gone three cards have nobody to feed them
    card = ("T4", 16, 0)
    cluster = [
        CLASS,
        host("a-thin", cpu="16"),
        slices("a-thin", *[card] * 4),
        host("b-fat"),
        slices("b-fat", *[card] * 8),
    ]
    assert placed([*cluster, whole(1)], pods("whole1", "14"))[0][0] == "b-fat"
    assert placed([*cluster, whole(1)], pods("whole1", "14"), policy="binpack")[0][0] == "a-thin"


def test_a_node_that_does_not_say_what_memory_it_has_strands_nothing():
    card = ("T4", 16, 0)
    cluster = [CLASS, host("a", memory=""), slices("a", *[card] * 2), host("b"), slices("b", *[card] * 4)]
    assert placed([*cluster, whole(1)], pods("whole1", "1"))[0][0] == "a"  # fewest cards left


def test_whole_cards_of_a_pod_keep_to_the_smallest_island():
    cards = [("H100", 80, 1), ("H100", 80, 2), ("H100", 80, 1), ("H100", 80, 2), ("H100", 80, 1)]
    cluster = [CLASS, host("a"), slices("a", *cards), whole(2)]
    assert placed(cluster, pods("whole2", "1", "1")) == [("a", ["gpu-1", "gpu-3"]), ("a", ["gpu-0", "gpu-2"])]


def test_a_request_in_bytes_prefers_the_smaller_of_two_idle_cards():
    cluster = [CLASS, host("a"), slices("a", ("H100", 80, 0), ("T4", 16, 0)), template("t", _part("4Gi"))]
    assert placed(cluster, pods("t", "1", "1")) == [("a", ["gpu-1"]), ("a", ["gpu-1"])]


def _part(memory):
    return {
        "name": "gpu",
        "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "0"}}},
    }


def scarce_cluster():
    hosts = ["a-rare", "b-usual", "c-usual"]
    cards = [("H100", 80, 0), ("T4", 16, 0), ("T4", 16, 0)]
    return [
        CLASS,
        template("t", _part("15Gi")),
        *map(host, hosts),
        *(slices(*each) for each in zip(hosts, cards, strict=True)),
    ]


@pytest.mark.parametrize("policy", ["fair-share", "binpack", "spread"])
@pytest.mark.parametrize("weights", [{"rare": 2.0}, {"large": 2.0}])
def test_scarce_cards_are_kept_while_others_do_and_taken_then(policy, weights):
    found = placed(scarce_cluster(), pods("t", "1", "1", "1"), policy, **weights)
    assert [node for node, _ in found] == ["b-usual", "c-usual", "a-rare"]


def test_a_request_that_names_its_cards_is_not_kept_from_them():
    selector = {"cel": {"expression": 'device.attributes["hami.io"].productName == "H100"'}}
    asked = _part("4Gi")
    asked["exactly"]["selectors"] = [selector]
    cluster = [*scarce_cluster(), template("named", asked)]
    (found,) = placed(cluster, pods("named", "1"), rare=2.0, large=2.0)
    assert found[0] == "a-rare"


def test_the_annotation_reaches_the_decision():
    raw = pods("t", "1")
    raw[0]["metadata"]["annotations"] = {
        "hami.io/node-scheduler-policy": "fair-share",
        "hami.io/packing-weights": "large=2",
    }
    report = simulated(*scarce_cluster(), *raw)
    assert report.placements[0]["node"] == "b-usual"
    raw[0]["metadata"]["annotations"]["hami.io/packing-weights"] = "big=2"
    (refused,) = simulated(*scarce_cluster(), *raw).unplaced
    assert refused["error"].startswith("Pod default/p0: annotation hami.io/packing-weights: 'big=2' is not like")


def test_the_second_container_sees_what_the_first_got():
    asked = [{**_part("8Gi"), "name": name} for name in ("one", "two", "three")]
    cluster = [CLASS, host("a"), slices("a", ("T4", 16, 0), ("T4", 16, 0)), template("t", *asked)]
    assert placed(cluster, pods("t", "1")) == [("a", ["gpu-0", "gpu-0", "gpu-1"])]


def test_no_cards_anywhere_is_a_refusal():
    report = simulated(CLASS, host("a"), whole(1), *pods("whole1", "1"), policies=Policies(node_policy="fair-share"))
    assert [entry["error"] for entry in report.unplaced] == [""]


# --- several kinds of cards ------------------------------------------------------------------------------------------


def of_driver(driver, node, *cards):
    """Slices of another vendor beside those of `slices`."""
    body = slices(node, *cards)
    body["metadata"]["name"] = f"{node}-{driver}"
    body["spec"] = {**body["spec"], "driver": driver}
    return body


def asking(name, wanted, cpu):
    return pod(name, f"template:{wanted}", containers=[{"name": "c", "resources": {"requests": {"cpu": cpu}}}])


def test_cards_of_another_vendor_in_the_node_want_their_cpu_too():
    other = {"name": "gpu", "exactly": {"deviceClassName": "other"}}
    cluster = [
        CLASS,
        device_class("other", "metax.hami.io"),
        host("a-mixed", cpu="40"),
        slices("a-mixed", ("T4", 16, 0)),
        of_driver("metax.hami.io", "a-mixed", *[("C500", 64, 0)] * 4),
        host("b-plain"),
        slices("b-plain", *[("T4", 16, 0)] * 2),
        whole(1),
        template("other1", other),
    ]
    # 36 of 40 cores for the one card of its vendor would leave four cards of the other without
    arriving = [asking("p0", "whole1", "36"), *(asking(f"o{number}", "other1", "9") for number in range(4))]
    found = placed(cluster, arriving)
    assert [node for node, _ in found] == ["b-plain", *["a-mixed"] * 4]
    assert placed(cluster, arriving[:1], "binpack")[0][0] == "a-mixed"


def test_cards_of_two_sizes_in_one_node():
    # the card of which least is left then is broken
    cluster = [
        CLASS,
        host("a"),
        slices("a", ("H100", 80, 0), ("T4", 16, 0)),
        host("z"),
        slices("z", *[("T4", 16, 0)] * 9),
    ]
    cluster += [template("small", _part("4Gi")), template("typical", _part("16Gi"))]
    running = [asking(f"t{number}", "typical", "1") for number in range(9)]
    for each in running:
        each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "z"}
    cluster[3]["metadata"]["labels"] = {"kubernetes.io/hostname": "z"}
    found = placed(cluster, [*running, asking("p", "small", "1")])
    assert found[-1] == ("a", ["gpu-1"])


def test_cards_without_memory_and_cores_are_as_full_as_their_slots():
    bodies = [slices("a", *[("X", 16, 0)] * 2), slices("b", *[("X", 16, 0)] * 2)]
    for body in bodies:
        for device in body["spec"]["devices"]:
            device["capacity"] = {"shares": {**device["capacity"]["shares"], "value": "4"}}
    one = {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"shares": "2"}}}}
    cluster = [CLASS, host("a", cpu="", memory=""), host("b", cpu="", memory=""), *bodies, template("half", one)]
    found = placed(cluster, pods("half", *["0"] * 4))
    assert found == [("a", ["gpu-0"]), ("a", ["gpu-0"]), ("a", ["gpu-1"]), ("a", ["gpu-1"])]
