"""NVIDIA's rules on whole nodes, through simulate: which node, which cards, why not. Legacy manifests, claims, classes."""

from fractions import Fraction

import pytest

from controller.scoring.policies import Policies
from controller.webhook.convert import ConversionRefused, Options, convert_pod
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.legacy import InvalidLegacy
from hami_dra.vendors.nvidia import islands
from hami_dra.vendors.nvidia.legacy import NvidiaLegacy
from hami_dra.vendors.nvidia.preferences import NvidiaPreferences, nvidia_preferences
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from hami_dra.vendors.nvidia.rules import Nvidia
from hami_dra.vendors.preferences import CardLists, InvalidPreference
from hami_dra.vendors.protocol import CandidateTier, CardState, Layout, NodeView, PartitionUse
from tests.support.manifests import claim, node, pod, simulated, template
from tests.support.settings import vendor_settings

CLASSES = NvidiaPublishing().device_classes()
H100, DGX1, PAIRS, PCIE, MIG = "dgx-h100", "dgx-1", "v100-pairs-8", "l40s-pcie-8", "a2-ultragpu-2g-mig"
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
REQUIRED = {"hami.io/gpu-topology": "required"}
IN_PARTS = {"nvidia.com/vgpu-mode": "mig"}


def cluster(sharing=None, **nodes):
    """Node name → machine."""
    raws = list(CLASSES)
    for name, machine_name in nodes.items():
        raws.append(node(name, labels={"name": name}))
        raws += slice_bodies(machine_pools(machine(machine_name, name), sharing))
    return raws


def cards(name, count, *annotations, on=None, cores=None, **more):
    """A legacy pod that wants whole cards, or parts with `memory` (MiB)."""
    limits = {"nvidia.com/gpu": count}
    if "memory" in more:
        limits["nvidia.com/gpumem"] = more.pop("memory")
    if cores is not None:
        limits["nvidia.com/gpucores"] = cores
    if on is not None:
        more["nodeSelector"] = {"name": on}
    found = {key: value for each in annotations for key, value in each.items()}
    return pod(name, limits=limits, annotations=found, **more)


def uuids(machine_name, *numbers, node_name="n"):
    return ",".join(card.uuid for card in machine(machine_name, node_name).cards if card.index in numbers)


def exactly(machine_name, node_name, *numbers):
    """A pod that holds just these cards."""
    lists = {"nvidia.com/use-gpuuuid": uuids(machine_name, *numbers, node_name=node_name)}
    return cards(f"holds-{node_name}", len(numbers), lists, on=node_name)


def devices(report):
    """Pod → (node, devices)."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            [
                result["device"].removeprefix("gpu-")
                for each in entry["claims"]
                for result in each["allocation"]["devices"]["results"]
            ],
        )
        for entry in report.placements
    }


def reasons(report):
    return {entry["pod"].removeprefix("default/"): entry["reasons"] for entry in report.unplaced}


def placed(*raws, pod_name="p", **settings):
    """(node, devices) of the pod `p`."""
    report = simulated(*raws, **settings)
    assert pod_name in devices(report), report.unplaced
    return devices(report)[pod_name]


# --- HAMi's worked examples --------------------------------------------------------------------------------------------


def box():
    """8 PCIe cards on two sockets: 50 in a pair, 30 in a socket, 10 across."""
    letters = [
        "".join(
            "-" if one == other else "S" if one // 2 == other // 2 else "H" if one // 4 == other // 4 else "X"
            for other in range(8)
        )
        for one in range(8)
    ]
    return Layout(tuple(range(8)), (0,) * 8, (0,) * 8, ("GPU",) * 8, ((0,) * 8,) * 8, tuple(letters))


def first_tier(layout, free, count):
    card_states = bytes(CardState.ELIGIBLE if card in free else 0 for card in range(layout.size))
    node_view = NodeView(
        layout, card_states, bytes(layout.size), count, NvidiaPreferences(), "binpack", ("topology-aware",)
    )
    return next(iter(Nvidia().arrange(node_view).tiers))


def test_two_of_eight_pcie_cards_are_a_pair_and_four_are_a_socket():
    pair = first_tier(box(), range(8), 2)
    assert (pair.score, pair.sets) == (50.0, (0b11, 0b1100, 0b110000, 0b11000000))
    socket = first_tier(box(), range(8), 4)
    assert (socket.score, socket.sets) == (220.0, (0b1111, 0b11110000))


def test_of_equally_good_pairs_the_one_that_costs_the_others_least():
    assert first_tier(box(), [0, 1, 2, 3, 4, 5], 2).sets == (0b110000,)


def test_one_card_does_least_damage():
    """The socket with fewer cards left is the poorer one; there the card without its pair."""
    assert first_tier(box(), [0, 1, 2, 3, 4, 5, 6], 1).sets == (0b1000000,)


def test_scores_of_nodes_keep_their_order_at_the_largest_sizes():
    """The worst set that NVLink joins beats the best that it does not, and a card left over weighs more than any sum."""
    most_pairs = 32 * 31 // 2 * (35 * 100 + 60)
    assert most_pairs < islands.LEFT_OVER
    assert most_pairs < islands.LINKED - 127 * islands.LEFT_OVER


# --- several cards, across nodes -----------------------------------------------------------------------------------------


def test_an_exactly_fitting_island_goes_before_splitting_a_larger_one():
    raws = cluster(a=H100, b=H100)
    assert placed(raws, exactly(H100, "b", 0, 2, 4, 6), cards("p", 4, TOPOLOGY)) == ("b", ["1", "3", "5", "7"])
    # without topology-aware nothing of the kind: the name decides between nodes that are both idle enough
    spread = {"hami.io/node-scheduler-policy": "spread"}
    assert placed(raws, exactly(H100, "b", 0, 2, 4, 6), cards("p", 4, spread))[0] == "a"


def test_a_whole_pair_goes_before_two_of_eight_although_eight_are_faster():
    node_name, found = placed(cluster(a=H100, b=PAIRS), cards("p", 2, TOPOLOGY))
    assert node_name == "b"
    assert found in [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_the_smaller_rest_of_an_island_goes_first():
    raws = cluster(a=H100, b=H100)
    assert placed(raws, exactly(H100, "b", 0, 1), cards("p", 4, TOPOLOGY))[0] == "b"


def test_linked_cards_go_before_cards_on_pcie_whatever_the_node_policy():
    for policy in ("binpack", "spread"):
        own = {"hami.io/node-scheduler-policy": policy}
        raws = cluster(a=PCIE, b=H100)
        assert placed(raws, cards("p", 4, TOPOLOGY, own))[0] == "b"
        assert placed(raws, exactly(PCIE, "a", 0), exactly(H100, "b", 0, 1), cards("p", 4, TOPOLOGY, own))[0] == "b"


def test_node_policies_decide_between_equally_good_choices():
    raws = cluster(a=PCIE, b=PCIE)
    packed = {"hami.io/node-scheduler-policy": "binpack"}
    spread = {"hami.io/node-scheduler-policy": "spread"}
    held = exactly(PCIE, "a", 4)
    assert placed(raws, held, cards("p", 4, TOPOLOGY, packed)) == ("a", ["0", "1", "2", "3"])
    assert placed(raws, held, cards("p", 4, TOPOLOGY, spread))[0] == "b"


def test_where_the_node_policy_too_finds_nodes_equal_the_least_damage_decides():
    """Both have three cards taken, and pairs. On `a` each pair has a neighbour on its socket; on `b` one has none."""
    raws = cluster(a=PCIE, b=PCIE)
    held = [exactly(PCIE, "a", 0, 1, 2), exactly(PCIE, "b", 0, 4, 5)]
    assert placed(raws, held, cards("p", 2, TOPOLOGY)) == ("b", ["6", "7"])


def test_no_pair_is_split_while_a_whole_one_is_there():
    report = simulated(
        cluster(n=PAIRS), cards("one", 1, TOPOLOGY), cards("two", 2, TOPOLOGY), cards("three", 1, TOPOLOGY)
    )
    found = devices(report)
    assert found["three"][1][0] == str(int(found["one"][1][0]) ^ 1)
    assert int(found["two"][1][0]) // 2 == int(found["two"][1][1]) // 2


def test_a_mesh_gives_its_quads():
    """DGX-1: eight cards in one island, four of them joined pairwise only in the two quads."""
    first = placed(cluster(n=DGX1), cards("p", 4, TOPOLOGY))
    assert first[1] in (["0", "1", "2", "3"], ["4", "5", "6", "7"])


# --- one card ----------------------------------------------------------------------------------------------------------------


def test_one_card_is_one_in_no_island_also_on_another_node():
    assert placed(cluster(a=H100, b=PAIRS, c=PCIE), cards("p", 1, TOPOLOGY))[0] == "c"
    raws = cluster(a=H100, b=PAIRS)
    assert placed(raws, exactly(PAIRS, "b", 5), cards("p", 1, TOPOLOGY)) == ("b", ["4"])
    assert placed(raws, exactly(PAIRS, "b", 4, 5), cards("p", 1, TOPOLOGY))[0] == "b"


def test_one_card_breaks_the_smaller_island():
    raws = cluster(a=H100, b=H100)
    assert placed(raws, exactly(H100, "b", 0, 1, 2, 3, 4), cards("p", 1, TOPOLOGY))[0] == "b"


# --- required ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["spread", "binpack", "topology-aware", "mutex", "numa", "spread,mutex"])
def test_required_takes_only_cards_that_nvlink_joins(policy):
    own = {"hami.io/gpu-scheduler-policy": policy}
    assert placed(cluster(a=PCIE, b=DGX1), cards("p", 4, own, REQUIRED)) in [
        ("b", ["0", "1", "2", "3"]),
        ("b", ["4", "5", "6", "7"]),
    ]
    report = simulated(cluster(a=PCIE, b=DGX1, c=PAIRS), cards("p", 5, own, REQUIRED))
    assert reasons(report) == {"p": {"TopologyNotFit": 3}}


def test_required_drops_a_node_with_enough_free_cards_that_are_not_joined():
    raws = cluster(n=PAIRS)
    held = exactly(PAIRS, "n", 0, 2, 4, 6)
    assert reasons(simulated(raws, held, cards("p", 2, REQUIRED)))["p"] == {"TopologyNotFit": 1}
    assert placed(raws, held, cards("p", 2, {"hami.io/gpu-topology": "preferred"}))[0] == "n"
    assert placed(raws, held, cards("p", 1, REQUIRED))[0] == "n"


def test_required_by_claim_template_class_and_default():
    raws = cluster(a=PCIE)
    request = {"name": "gpu", "exactly": {"deviceClassName": "nvidia-gpu.hami.io", "count": 2}}
    wanted = {"p": {"TopologyNotFit": 1}}
    assert reasons(simulated(raws, claim("c", request, annotations=REQUIRED), pod("p", "c"))) == wanted
    assert reasons(simulated(raws, template("t", request, annotations=REQUIRED), pod("p", "template:t"))) == wanted
    own_class = {**CLASSES[0], "metadata": {"name": "linked", "annotations": REQUIRED}}
    of_class = {"name": "gpu", "exactly": {"deviceClassName": "linked", "count": 2}}
    assert reasons(simulated(raws, own_class, claim("c", of_class), pod("p", "c"))) == wanted
    # the pod's own word comes first
    free = pod("p", "c", annotations={"hami.io/gpu-topology": "preferred"})
    assert placed(raws, own_class, claim("c", of_class), free)[0] == "a"
    defaults = Policies(annotations=REQUIRED)
    assert reasons(simulated(raws, claim("c", request), pod("p", "c"), policies=defaults)) == wanted


def test_a_claim_gets_topology_without_any_legacy_name():
    request = {"name": "gpu", "exactly": {"deviceClassName": "nvidia-gpu.hami.io", "count": 4}}
    raws = [*cluster(a=H100, b=H100), exactly(H100, "b", 0, 1, 2, 3)]
    assert placed(raws, claim("c", request, annotations=TOPOLOGY), pod("p", "c")) == ("b", ["4", "5", "6", "7"])


# --- NUMA -------------------------------------------------------------------------------------------------------------------------

BIND = {"nvidia.com/numa-bind": "true"}


def test_numa_bind_keeps_the_cards_of_a_request_on_one_node():
    raws = cluster(n=PCIE)
    held = exactly(PCIE, "n", 0, 7)
    assert reasons(simulated(raws, held, cards("p", 4, BIND)))["p"] == {"NumaNotFit": 1}
    assert placed(raws, held, cards("p", 4))[0] == "n"
    _, found = placed(raws, held, cards("p", 3, BIND))
    assert found in (["1", "2", "3"], ["4", "5", "6"])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", "0"), ("spread", "4"), ("topology-aware", "4"), ("numa", "0"), ("spread,numa", "0")],
)
def test_under_numa_bind_the_numa_node_comes_first(policy, expected):
    """HAMi's order: the lowest node for binpack, the highest for spread; in a list, the lowest."""
    own = {"hami.io/gpu-scheduler-policy": policy}
    assert placed(cluster(n=PCIE), cards("p", 1, BIND, own)) == ("n", [expected])


@pytest.mark.parametrize(("policy", "expected"), [("binpack", "1"), ("spread", "4")])
def test_numa_comes_before_how_full_a_card_is(policy, expected):
    """Card 1 and card 5 are partly used: binpack goes to the fullest of the lowest node, spread to the idlest of the highest."""
    raws = cluster(n=PCIE)
    own = {"hami.io/gpu-scheduler-policy": policy}
    used = [
        cards(f"u{number}", 1, {"nvidia.com/use-gpuuuid": uuids(PCIE, number)}, memory=size)
        for number, size in ((1, 1000), (5, 9000))
    ]
    assert placed(raws, used, cards("p", 1, BIND, own, memory=1000)) == ("n", [expected])


def test_numa_bind_with_topology():
    """Six are free, three linked pairs; on one NUMA node only one of them is whole."""
    raws = cluster(n=PAIRS)
    assert placed(raws, exactly(PAIRS, "n", 4, 6), cards("p", 2, BIND, TOPOLOGY))[1] in (["0", "1"], ["2", "3"])
    assert placed(raws, exactly(PAIRS, "n", 0, 2, 4), cards("p", 2, BIND, TOPOLOGY, REQUIRED)) == ("n", ["6", "7"])
    report = simulated(raws, exactly(PAIRS, "n", 0, 2, 4, 6), cards("p", 2, BIND, REQUIRED))
    assert reasons(report) == {"p": {"TopologyNotFit": 1}}


# --- lists ------------------------------------------------------------------------------------------------------------------------


def part_of_card(annotations, memory="1Gi", class_name="nvidia-vgpu.hami.io"):
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": class_name,
            "count": 1,
            "capacity": {"requests": {"memory": memory, "cores": "0"}},
        },
    }
    return [claim("c", request, annotations=annotations), pod("p", "c")]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"nvidia.com/use-gputype": "l40S"}, "l"),
        ({"nvidia.com/use-gputype": "NVIDIA-Tesla"}, "v"),
        ({"nvidia.com/use-gputype": "V100, h100"}, "v"),
        ({"nvidia.com/nouse-gputype": "l40s"}, "v"),
        ({"nvidia.com/use-gputype": "tesla,l40s", "nvidia.com/nouse-gputype": "v100"}, "l"),
    ],
)
def test_types_on_a_claim(annotations, expected):
    """Lower and upper case alike, part of the text; HAMi's text is NVIDIA-<product>."""
    assert placed(cluster(l=PCIE, v=PAIRS), part_of_card(annotations))[0] == expected


def test_types_and_uuids_that_no_card_has():
    raws = cluster(n=PCIE)
    assert reasons(simulated(raws, part_of_card({"nvidia.com/use-gputype": "A100"}))) == {"p": {"CardTypeMismatch": 8}}
    assert reasons(simulated(raws, part_of_card({"nvidia.com/nouse-gputype": "l40"}))) == {"p": {"CardTypeMismatch": 8}}
    assert reasons(simulated(raws, part_of_card({"nvidia.com/use-gpuuuid": "x"}))) == {"p": {"CardUuidMismatch": 8}}
    both = {"nvidia.com/use-gpuuuid": uuids(PCIE, 2), "nvidia.com/nouse-gpuuuid": uuids(PCIE, 2)}
    assert reasons(simulated(raws, part_of_card(both))) == {"p": {"CardUuidMismatch": 8}}


def test_uuids_on_a_claim():
    raws = cluster(n=PCIE)
    assert placed(raws, part_of_card({"nvidia.com/use-gpuuuid": uuids(PCIE, 5)})) == ("n", ["5"])
    most = {"nvidia.com/nouse-gpuuuid": uuids(PCIE, 0, 1, 2, 3)}
    assert placed(raws, part_of_card(most)) == ("n", ["4"])


def test_topology_is_arranged_of_what_the_lists_leave():
    lists = {"nvidia.com/nouse-gpuuuid": uuids(PAIRS, 0, 2, 4)}
    assert placed(cluster(n=PAIRS), cards("p", 2, lists, TOPOLOGY)) == ("n", ["6", "7"])


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"hami.io/gpu-topology": "strict"}, "hami.io/gpu-topology: 'strict' is not one of required"),
        ({"nvidia.com/numa-bind": "yes"}, "nvidia.com/numa-bind: 'yes' is neither true nor false"),
        ({"nvidia.com/vgpu-mode": "mps"}, "'mps': hami-dra runs no MPS daemon. Write hami-core"),
        ({"nvidia.com/vgpu-mode": "time-slicing"}, "'time-slicing' is not one of hami-core, mig"),
        ({"nvidia.com/vgpu-mode": "migg"}, "'migg' is not one of hami-core, mig (did you mean mig?)"),
        ({"nvidia.com/vgpu-mode": "hami-core,MIG"}, "'hami-core,MIG' is not one of hami-core, mig (did you mean mig?)"),
        ({"nvidia.com/vgpu-mode": ","}, "',' leaves no mode that a card could have"),
    ],
)
def test_a_word_that_means_nothing_is_an_error(annotations, message):
    (entry,) = simulated(cluster(n=PCIE), part_of_card(annotations)).unplaced
    assert message in entry["message"] + entry["error"]


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_booleans_are_those_of_go(text):
    assert nvidia_preferences({"nvidia.com/numa-bind": text}).numa_bind
    no = {"1": "0", "t": "f", "T": "F", "TRUE": "FALSE", "true": "false", "True": "False"}[text]
    assert not nvidia_preferences({"nvidia.com/numa-bind": no}).numa_bind
    assert not nvidia_preferences({"nvidia.com/numa-bind": ""}).numa_bind


def test_modes():
    assert nvidia_preferences({}).lists == CardLists()
    assert nvidia_preferences({"nvidia.com/vgpu-mode": "hami-core"}).lists.parts is False
    assert nvidia_preferences({"nvidia.com/vgpu-mode": "mig"}).lists.parts is True
    assert nvidia_preferences({"nvidia.com/vgpu-mode": "mig,hami-core"}).lists.parts is None
    assert (
        nvidia_preferences({"volcano.sh/vgpu-mode": "mig", "nvidia.com/vgpu-mode": "mig,hami-core"}).lists.parts is True
    )
    with pytest.raises(InvalidPreference) as refused:
        nvidia_preferences({"volcano.sh/vgpu-mode": "mig", "nvidia.com/vgpu-mode": "hami-core"})
    assert refused.value.annotation == "volcano.sh/vgpu-mode"


# --- several requests, constraints -------------------------------------------------------------------------------------------


def containers(*counts, annotations):
    """One pod, one container for each count of cards."""
    found = pod("p", annotations=annotations)
    found["spec"]["containers"] = [
        {"name": f"c{number}", "resources": {"limits": {"nvidia.com/gpu": count}}}
        for number, count in enumerate(counts)
    ]
    return found


def test_containers_are_met_one_after_the_other():
    _, found = placed(cluster(n=PAIRS), containers(2, 2, 1, annotations={**TOPOLOGY, **REQUIRED}))
    assert [int(card) // 2 for card in found[:4]] in ([0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3])
    report = simulated(cluster(n=PAIRS), containers(2, 2, 2, 2, 1, annotations={**TOPOLOGY, **REQUIRED}))
    assert set(reasons(report)) == {"p"}


def test_the_node_is_chosen_for_all_requests_together():
    """`b` has one pair left and `a` has two: only `a` has two pairs."""
    raws = cluster(a=PAIRS, b=PAIRS)
    held = [exactly(PAIRS, "a", 0, 1, 2, 3), exactly(PAIRS, "b", 0, 1, 2, 4)]
    assert placed(raws, held, containers(2, 2, annotations=TOPOLOGY)) == ("a", ["4", "5", "6", "7"])


def test_a_constraint_of_the_claim_may_want_another_set():
    """The best pair by links is not the one that the claim's own constraint allows."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "nvidia-gpu.hami.io", "count": 3}}
    apart = claim("c", request, annotations=TOPOLOGY)
    apart["spec"]["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    node_name, found = placed(cluster(n=DGX1), exactly(DGX1, "n", 0, 5), apart, pod("p", "c"))
    assert node_name == "n"
    assert {int(card) // 4 for card in found} in ({0}, {1})


# --- health -------------------------------------------------------------------------------------------------------------------


def test_an_abnormal_card_is_in_no_set():
    """An island of eight with a broken card is one of seven; a pair with a broken card is no island."""
    bodies = slice_bodies(machine_pools(machine(PAIRS, "n")))
    for device in bodies[-1]["spec"]["devices"]:
        if device["name"] in {"gpu-0", "gpu-3"}:
            device["taints"] = [{"key": "hami.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}]
    raws = [*CLASSES, node("n"), *bodies]
    assert placed(raws, cards("p", 2, TOPOLOGY))[1] in (["4", "5"], ["6", "7"])
    assert placed(raws, cards("p", 1, TOPOLOGY))[1] in (["1"], ["2"])
    assert reasons(simulated(raws, cards("p", 7, TOPOLOGY))) == {
        "p": {"CardNotHealth": 2, "AllocatedCardsInsufficientRequest": 6}
    }


# --- oversubscription --------------------------------------------------------------------------------------------------------------


def test_scaled_memory_can_be_asked_for():
    memory = 60_000  # MiB; an L40S has 46,068
    assert reasons(simulated(cluster(n=PCIE), cards("p", 1, memory=memory))) == {"p": {"CardInsufficientMemory": 8}}
    scaled = vendor_settings(memory_scaling=Fraction(3, 2))
    assert placed(cluster(scaled, n=PCIE), cards("p", 1, memory=memory))[0] == "n"


def test_a_card_with_more_than_all_cores_is_never_exclusive():
    one = {"nvidia.com/use-gpuuuid": uuids(PCIE, 0)}
    pods = [cards(f"p{number}", 1, one, memory=1000, cores=100) for number in range(3)]
    assert set(devices(simulated(cluster(n=PCIE), pods))) == {"p0"}
    twice = simulated(cluster(vendor_settings(core_scaling=Fraction(2)), n=PCIE), pods)
    assert set(devices(twice)) == {"p0", "p1"}
    assert reasons(twice)["p2"]["CardInsufficientCore"] == 1


def test_the_split_count_limits_who_shares_a_card():
    one = {"nvidia.com/use-gpuuuid": uuids(PCIE, 0)}
    pods = [cards(f"p{number}", 1, one, memory=10) for number in range(3)]
    report = simulated(cluster(vendor_settings(slots=2), n=PCIE), pods)
    assert set(devices(report)) == {"p0", "p1"}
    assert reasons(report)["p2"]["CardTimeSlicingExhausted"] == 1


def test_each_node_is_shared_its_own_way():
    raws = [*cluster(vendor_settings(memory_scaling=Fraction(2)), a=PCIE), *cluster(b=PCIE)[len(CLASSES) :]]
    assert placed(raws, cards("p", 1, memory=60_000))[0] == "a"


# --- MIG ------------------------------------------------------------------------------------------------------------------------------


def profile(device):
    """`0-mig-1g-10gb-6` → (card, profile, start)."""
    card, _, compute, memory, start = device.split("-")
    return int(card), f"{compute}.{memory}", int(start)


def mig_pods(*sizes, policy="spread", annotations=IN_PARTS, **more):
    own = {"hami.io/gpu-scheduler-policy": policy}
    return [cards(f"p{number}", 1, annotations, own, memory=size, **more) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(1, "1g.10gb"), (9_728, "1g.10gb"), (9_729, "1g.20gb"), (19_969, "3g.40gb"), (40_193, "7g.80gb")],
)
def test_the_smallest_profile_that_holds_the_request(memory, expected):
    _, (device,) = placed(cluster(n=MIG), mig_pods(memory), pod_name="p0")
    assert profile(device)[1] == expected


def test_cores_count_too():
    """20 percent of the cores: two of seven slices."""
    _, (device,) = placed(cluster(n=MIG), mig_pods(5_000, cores=20), pod_name="p0")
    assert profile(device)[1] == "2g.20gb"


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(1, "1g.10gb"), (10, "1g.10gb"), (12, "1g.20gb"), (50, "7g.80gb"), (98, "7g.80gb"), (99, None), (100, None)],
)
def test_a_percentage_is_one_of_the_card_that_an_instance_is_cut_from(percent, expected):
    """HAMi's Fit resolves it on the card: 10 percent of 81,920 MiB are 8,192; all of it has no instance."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": percent, "nvidia.com/gpucores": 1}
    report = simulated(cluster(n=MIG), pod("p", limits=limits, annotations=IN_PARTS if expected else {}))
    (device,) = devices(report)["p"][1]
    assert (profile(device)[1] if "mig" in device else None) == expected


def by_claim(class_name="nvidia-vgpu.hami.io", **more):
    return claim("c", {"name": "gpu", "exactly": {"deviceClassName": class_name, **more}})


def test_a_request_for_all_of_the_memory_of_instances_never_fits_and_says_so():
    percent_100 = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}
    for limits in (percent_100, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 10}):
        with pytest.raises(ConversionRefused, match="a MIG instance never has all of the memory of its card"):
            convert_pod(pod("p", limits=limits, annotations=IN_PARTS), "default")
    report = simulated(
        cluster(n=MIG), by_claim(capacity={"requests": {"cores": "10"}}), pod("p", "c", annotations=IN_PARTS)
    )
    assert reasons(report) == {"p": {"ModeNotFit": 2, "CardInsufficientMemory": 36}}


@pytest.mark.parametrize("cores", [10, 50, 99])
@pytest.mark.parametrize("policy", ["spread", "binpack", "topology-aware", "numa"])
def test_a_request_without_memory_never_lands_on_an_instance_that_holds_less_than_the_card(cores, policy):
    """The documented `gpu: 2, gpucores: 50` of HAMi's web page, too: both are whole cards."""
    raws = cluster(a=MIG, b=H100)
    own = {"hami.io/gpu-scheduler-policy": policy, "hami.io/node-scheduler-policy": "binpack"}
    for count in (1, 2):
        _, found = placed(raws, cards("p", count, own, cores=cores))
        assert len(found) == count
        assert not any("mig" in device for device in found)
    asked = by_claim(capacity={"requests": {"cores": str(cores)}})
    _, found = placed(raws, asked, pod("p", "c", annotations=own))
    assert not any("mig" in device for device in found)


def test_a_request_for_instances_as_such_takes_all_of_one():
    """By class or by selector: there the amount that the profile has is what is meant."""
    wanted = 'device.attributes["nvidia.hami.io"].?profile.orValue("") == "2g.20gb"'
    by_profile = by_claim(selectors=[{"cel": {"expression": wanted}}])
    for asked, expected in ((by_claim("nvidia-mig.hami.io"), "1g.10gb"), (by_profile, "2g.20gb")):
        _, (device,) = placed(cluster(n=MIG), asked, pod("p", "c"))
        assert profile(device)[1] == expected


def test_more_than_a_card_has_is_refused():
    assert reasons(simulated(cluster(n=MIG), mig_pods(90_000)))["p0"] == {"ModeNotFit": 2, "CardInsufficientMemory": 36}


def test_binpack_and_spread_order_the_cards_and_best_fit_the_places_in_a_card():
    packed = devices(simulated(cluster(n=MIG), mig_pods(5_000, 5_000, 5_000, policy="binpack")))
    assert [profile(packed[f"p{number}"][1][0]) for number in range(3)] == [
        (0, "1g.10gb", 6),
        (0, "1g.10gb", 4),
        (0, "1g.10gb", 5),
    ]
    spread = devices(simulated(cluster(n=MIG), mig_pods(5_000, 5_000, 5_000)))
    assert [profile(spread[f"p{number}"][1][0])[0] for number in range(3)] == [0, 1, 0]


@pytest.mark.parametrize(("policy", "nodes"), [("binpack", ["a", "a", "a"]), ("spread", ["a", "b", "a"])])
def test_node_policies_order_nodes_of_cut_cards(policy, nodes):
    own = {**IN_PARTS, "hami.io/node-scheduler-policy": policy}
    report = simulated(cluster(a=MIG, b=MIG), mig_pods(5_000, 5_000, 5_000, annotations=own))
    assert [entry["node"] for entry in report.placements] == nodes


def test_a_node_whose_cards_are_cut_up_is_passed_over():
    """Seven of one slice fill a card: the next goes to the other node, and then nowhere, for that reason."""
    raws = cluster(a=MIG, b=MIG)
    report = simulated(raws, mig_pods(*[5_000] * 29, policy="binpack"))
    assert [entry["node"] for entry in report.placements] == ["a"] * 14 + ["b"] * 14
    assert reasons(report)["p28"] == {"ModeNotFit": 4, "CardTimeSlicingExhausted": 28, "CardMigTopologyInfeasible": 44}


def test_best_fit_keeps_room_for_large_instances():
    """Three small ones, then two of four slices: nothing that came before stands in the way of the last."""
    found = devices(simulated(cluster(n=MIG), mig_pods(5_000, 5_000, 5_000, 30_000, 30_000, 30_000, policy="binpack")))
    assert [profile(found[f"p{number}"][1][0])[1] for number in range(6)] == ["1g.10gb"] * 3 + ["3g.40gb"] * 3


def test_a_card_is_shared_or_cut_never_both():
    raws = cluster(n=MIG)
    core = {"nvidia.com/vgpu-mode": "hami-core"}
    one = {"nvidia.com/use-gpuuuid": uuids(MIG, 0)}
    shared = devices(simulated(raws, cards("s", 1, core, one, memory=1000), cards("t", 1, core, one, memory=1000)))
    assert shared == {"s": ("n", ["0"]), "t": ("n", ["0"])}
    cut = simulated(raws, cards("s", 1, core, one, memory=1000), cards("m", 1, IN_PARTS, one, memory=1000))
    assert set(devices(cut)) == {"s"}
    assert reasons(cut)["m"]["CardMigTopologyInfeasible"] == 18
    turned = simulated(raws, cards("m", 1, IN_PARTS, one, memory=1000), cards("s", 1, core, one, memory=1000))
    assert set(devices(turned)) == {"m"}
    assert reasons(turned)["s"]["CardMigTopologyInfeasible"] == 1
    free = simulated(raws, cards("m", 1, IN_PARTS, one, memory=1000), cards("s", 1, core, memory=1000))
    assert devices(free)["s"] == ("n", ["1"])


def test_modes_are_refused_where_there_is_no_such_card():
    assert reasons(simulated(cluster(n=PCIE), mig_pods(1000))) == {"p0": {"ModeNotFit": 8}}
    only_parts = cluster(n=MIG)
    for body in only_parts:
        if body["kind"] == "ResourceSlice":
            kept = [each for each in body["spec"].get("devices", ()) if "-mig-" in each["name"]]
            if "devices" in body["spec"]:
                body["spec"]["devices"] = kept
    report = simulated(only_parts, cards("p", 1, {"nvidia.com/vgpu-mode": "hami-core"}, memory=1000))
    assert reasons(report) == {"p": {"ModeNotFit": 36}}


def test_without_a_mode_the_policy_weighs_cards_shared_and_cut_alike():
    raws = cluster(n=MIG)
    none = {}
    assert devices(simulated(raws, mig_pods(5_000, annotations=none)))["p0"] == ("n", ["0"])
    packed = devices(simulated(raws, mig_pods(5_000, 5_000, annotations=none, policy="binpack")))
    assert [profile(packed[name][1][0])[:2] for name in ("p0", "p1")] == [(0, "1g.10gb")] * 2
    # a card that is cut takes the next small one under binpack; under spread it goes to the idle card
    cut = cards("m", 1, IN_PARTS, memory=5_000)
    after = simulated(raws, cut, mig_pods(5_000, annotations=none, policy="binpack"))
    assert profile(devices(after)["p0"][1][0])[:2] == (0, "1g.10gb")
    after = simulated(raws, cut, mig_pods(5_000, annotations=none))
    assert devices(after)["p0"] == ("n", ["1"])


def test_one_container_asks_by_one_family_of_names():
    with pytest.raises(ConversionRefused, match="ask for the same cards by two names; use one"):
        convert_pod(pod("p", limits={"nvidia.com/gpu": 1, "volcano.sh/vgpu-memory": 1000}), "default")


@pytest.mark.parametrize(
    ("annotations", "expression"),
    [
        (IN_PARTS, 'has(device.attributes["nvidia.hami.io"].profile)'),
        ({"volcano.sh/vgpu-mode": "mig"}, 'has(device.attributes["nvidia.hami.io"].profile)'),
        ({"nvidia.com/vgpu-mode": "hami-core"}, '!has(device.attributes["nvidia.hami.io"].profile)'),
        ({"nvidia.com/vgpu-mode": "hami-core,mig"}, None),
    ],
)
@pytest.mark.parametrize("mode", ["exclusive", "native"])
def test_a_mode_is_a_selector_too_so_that_it_holds_in_native_mode(annotations, expression, mode):
    asked = pod("p", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5000}, annotations=annotations)
    (made,) = convert_pod(asked, "default", Options(mode=mode)).templates
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    selectors = request["exactly"].get("selectors", [])
    assert [each["cel"]["expression"] for each in selectors] == ([expression] if expression else [])


def test_a_mode_that_no_card_can_have_is_refused_at_admission():
    asked = pod("p", limits={"nvidia.com/gpu": 1}, annotations={"nvidia.com/vgpu-mode": "mps"})
    with pytest.raises(ConversionRefused, match=r"hami-dra runs no MPS daemon\. Write hami-core"):
        convert_pod(asked, "default")
    with pytest.raises(InvalidLegacy, match="'mps' is not one of mig, hami-core"):
        NvidiaLegacy().selectors({"nvidia.com/vgpu-mode": ("mps",)})


@pytest.mark.parametrize("mode", ["mig", None])
def test_volcanos_names(mode):
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 5000, "volcano.sh/vgpu-cores": 10}
    annotations = {"volcano.sh/vgpu-mode": mode} if mode else {}
    raws = cluster(n=MIG)
    node_name, (device,) = placed(raws, pod("p", limits=limits, annotations=annotations))
    assert node_name == "n"
    assert device == "0" if mode is None else profile(device)[1] == "1g.10gb"
    assert placed(cluster(n=PCIE), pod("p", limits=limits)) == ("n", ["0"])


def test_a_claim_for_partitions():
    """Class nvidia-mig.hami.io has nothing but partitions, so the smallest comes first without any annotation."""
    raws = cluster(n=MIG)
    for policy in ("spread", "binpack"):
        own = {"hami.io/gpu-scheduler-policy": policy}
        _, (device,) = placed(raws, part_of_card(own, "9Gi", "nvidia-mig.hami.io"))
        assert profile(device)[1:] == ("1g.10gb", 6)
    asked = {"cel": {"expression": 'device.attributes["nvidia.hami.io"].profile == "3g.40gb"'}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "nvidia-mig.hami.io", "selectors": [asked]}}
    assert placed(raws, claim("c", request), pod("p", "c")) == ("n", ["0-mig-3g-40gb-4"])


def test_partitions_are_no_whole_cards():
    report = simulated(cluster(n=MIG), cards("p", 2), cards("q", 1))
    assert devices(report) == {"p": ("n", ["0", "1"])}


def test_several_partitions_of_one_request():
    raws = cluster(n=MIG)
    two = cards("p", 2, IN_PARTS, memory=5_000)
    assert [profile(each)[1] for each in placed(raws, two)[1]] == ["1g.10gb"] * 2
    # they are never joined by NVLink
    report = simulated(raws, cards("p", 2, IN_PARTS, REQUIRED, memory=5_000))
    assert reasons(report) == {"p": {"TopologyNotFit": 1}}


def test_partitions_stand_behind_sets_of_cards():
    """topology-aware without a mode: the two linked cards, whole, rather than instances; instances where cards are cut."""
    raws = cluster(n=MIG)
    assert placed(raws, cards("p", 2, TOPOLOGY, memory=5_000)) == ("n", ["0", "1"])
    cut = cards("m", 1, IN_PARTS, {"nvidia.com/use-gpuuuid": uuids(MIG, 0)}, memory=5_000)
    found = placed(raws, cut, cards("p", 2, TOPOLOGY, memory=5_000))
    assert found[0] == "n"
    assert any("-mig-" in device for device in found[1])


def test_numa_bind_and_required_say_how_parts_may_be_used():
    layout = box()
    for preferences, parts in (
        (NvidiaPreferences(), PartitionUse.ANY),
        (NvidiaPreferences(numa_bind=True), PartitionUse.ONE_NUMA_NODE),
        (NvidiaPreferences(linked=True), PartitionUse.NO),
        (NvidiaPreferences(linked=True, numa_bind=True), PartitionUse.NO),
    ):
        node_view = NodeView(
            layout, bytes([CardState.ELIGIBLE] * 8), bytes(8), 2, preferences, "binpack", ("topology-aware",)
        )
        assert Nvidia().arrange(node_view).parts is parts


def test_a_node_of_cut_cards_is_as_full_as_its_cards():
    """Memory, cores and slots of a card count once, however many ways it could be cut."""
    report = simulated(cluster(n=MIG), mig_pods(5_000, 5_000))
    second = report.placements[1]["score"]["node"]
    one_of_seven = 10 * (1 / 20 + 14 / 200 + 9728 / (2 * 81_920))
    assert second == pytest.approx(one_of_seven, abs=1e-4)


# --- many cards ------------------------------------------------------------------------------------------------------------------


def switch(size, lanes=18):
    """All to all behind NVSwitch."""
    rows = tuple(tuple(0 if one == other else lanes for other in range(size)) for one in range(size))
    return Layout(tuple(range(size)), (1,) * size, (0,) * size, ("GPU",) * size, rows, ("C" * size,) * size)


@pytest.mark.parametrize("linked", [False, True])
def test_large_machines_are_not_looked_at_set_by_set(linked):
    """Two islands of 32 in 64 cards: C(64, 16) sets are 5e14."""
    half = switch(32)
    lanes = tuple((*row, *([0] * 32)) for row in half.lanes) + tuple((*([0] * 32), *row) for row in half.lanes)
    layout = Layout(tuple(range(64)), (1,) * 32 + (2,) * 32, (0,) * 64, ("GPU",) * 64, lanes, ("C" * 64,) * 64)
    free = set(range(20)) | set(range(32, 50))
    card_states = bytes(CardState.ELIGIBLE if card in free else 0 for card in range(64))
    node_view = NodeView(
        layout, card_states, bytes(64), 16, NvidiaPreferences(linked=linked), "binpack", ("topology-aware",)
    )
    tiers = Nvidia().arrange(node_view).tiers
    first = next(iter(tiers))
    assert all(mask >> 32 and not mask & 0xFFFFFFFF for mask in first.sets), "the island that leaves two, not four"
    *_, last = tiers
    pools = {frozenset(card for card in range(64) if pool >> card & 1) for pool in last.pools}
    islands_of = {frozenset(range(20)), frozenset(range(32, 50))}
    assert pools == (islands_of if linked else {frozenset(free)})


def test_sixteen_cards_choose_eight():
    layout = switch(16)
    node_view = NodeView(
        layout, bytes([CardState.ELIGIBLE] * 16), bytes(16), 8, NvidiaPreferences(), "binpack", ("topology-aware",)
    )
    (tier,) = Nvidia().arrange(node_view).tiers
    assert len(set(tier.sets)) == 12_870
    assert {mask.bit_count() for mask in tier.sets} == {8}


def test_a_set_of_a_tier():
    assert CandidateTier(0.0, sets=(0b101, 0b110), pools=(0b1111,)).some(2) == 0b101
    assert CandidateTier(0.0, pools=(0b1101100, 0b11)).some(2) == 0b1100


def test_pools_are_drawn_from_in_the_order_of_the_device_policy():
    """required under spread: the set of the least used cards among all that are joined."""
    raws = cluster(n=H100)
    used = [
        cards(f"u{number}", 1, {"nvidia.com/use-gpuuuid": uuids(H100, number)}, memory=1000 * (8 - number))
        for number in range(6)
    ]
    wanted = cards("p", 4, REQUIRED, memory=1000)
    assert placed(raws, used, wanted) == ("n", ["4", "5", "6", "7"])
    packed = cards("p", 4, REQUIRED, {"hami.io/gpu-scheduler-policy": "binpack"}, memory=1000)
    assert placed(raws, used, packed) == ("n", ["0", "1", "2", "3"])
