"""The search: order, choosers, errors where upstream has them, and an end to every search."""

import pytest

from controller.allocation.bounds import counts
from controller.allocation.chooser import FirstFit
from controller.allocation.errors import AllocatorError, BudgetExceeded, InvalidPools
from controller.allocation.features import FeatureGates
from controller.allocation.search import (
    DEFAULT_BUDGET,
    LOOK_UP_AFTER,
    MOST_EFFORT,
    ORDERED_PER_STEP,
    Effort,
    Search,
    solve,
)
from hami_dra.api.core import Node
from tests.support.allocation import (
    DRIVER,
    GPU,
    NODE,
    InUse,
    allocate,
    alternative,
    claim,
    class_of,
    device,
    everything,
    exactly,
    first_of,
    names_of,
    parse,
    pools_of,
    problem_of,
    slice_of,
)


def cards(count, **attributes):
    return [device(f"gpu-{index}", **attributes) for index in range(count)]


class Reversed(FirstFit):
    """The last device first."""

    def order(self, request, devices, tentative):
        return list(reversed(devices))

    def kind(self, device):
        return device.id


class Without(Reversed):
    """Refuses some devices."""

    def __init__(self, *refused):
        self._refused = refused

    def order(self, request, devices, tentative):
        return [device for device in devices if device.id.device not in self._refused]


class Sets(Reversed):
    """Names whole sets."""

    def __init__(self, *sets):
        self._sets = sets
        self.read = 0

    def sets(self, request, devices, count, tentative):
        by_name = {device.id.device: device for device in devices}
        for names in (names for names in self._sets if len(names) == count):
            self.read += 1
            if all(name in by_name for name in names):
                yield [by_name[name] for name in names]


# --- order and choosers ------------------------------------------------------------------------------------------------------


def test_first_fit_takes_devices_as_listed():
    assert names_of(allocate([slice_of(*cards(4))], claim(exactly(count=2)))) == [["gpu-0", "gpu-1"]]


def test_a_chooser_decides_the_order_and_nothing_else():
    slices = [slice_of(*cards(4), device("gpu-4", taints=[{"key": "t", "effect": "NoSchedule"}]))]
    usage = InUse(exclusive={"gpu-3"})
    assert names_of(allocate(slices, claim(exactly(count=2)), chooser=Reversed(), usage=usage)) == [["gpu-2", "gpu-1"]]


def test_devices_that_a_chooser_leaves_out_are_refused():
    slices = [slice_of(*cards(3))]
    assert names_of(allocate(slices, claim(exactly(count=2)), chooser=Without("gpu-0"))) == [["gpu-1", "gpu-2"]]
    assert allocate(slices, claim(exactly(count=3)), chooser=Without("gpu-0")) is None
    assert allocate(slices, claim(everything()), chooser=Without("gpu-0")) is None


def test_a_chooser_sees_what_earlier_requests_and_claims_took():
    seen = []

    class Watching(FirstFit):
        def order(self, request, devices, tentative):
            added = {
                str(id_): (delta.exclusive, delta.shares, dict(delta.consumed))
                for id_, delta in tentative.added.items()
            }
            seen.append((request.name, [device.id.device for device in devices], added))
            return devices

    shared = device("s", shared=True, capacity={"memory": "10"})
    whole = device("w", capacity={"memory": "8"})
    amounts = {"memory": "4"}
    allocate(
        [slice_of(shared, whole)],
        claim(exactly("a", capacity=amounts), exactly("b", capacity=amounts), name="one"),
        claim(exactly("c", capacity=amounts), name="two"),
        chooser=Watching(),
    )
    prefix = f"{DRIVER}/node-1"
    assert seen == [
        ("a", ["s", "w"], {}),
        ("b", ["s", "w"], {f"{prefix}/s": (0, 1, {"memory": 4})}),
        ("c", ["w"], {f"{prefix}/s": (0, 2, {"memory": 8})}),
    ]


def test_sets_are_tried_in_the_chooser_s_order_until_one_fits():
    slices = [slice_of(*cards(4))]
    usage = InUse(exclusive={"gpu-0"})
    chooser = Sets(("gpu-0", "gpu-1"), ("gpu-1", "gpu-3"), ("gpu-2", "gpu-3"))
    assert names_of(allocate(slices, claim(exactly(count=2)), chooser=chooser, usage=usage)) == [["gpu-1", "gpu-3"]]
    assert chooser.read == 2


def test_the_next_set_is_tried_when_a_later_request_finds_nothing():
    slices = [slice_of(device("gpu-0", big=True), *cards(4)[1:])]
    raw = claim(exactly("a", 2), exactly("b", where=f'has(device.attributes["{DRIVER}"].big)'))
    chooser = Sets(("gpu-0", "gpu-1"), ("gpu-1", "gpu-2"), ("gpu-0",))
    assert names_of(allocate(slices, raw, chooser=chooser)) == [["gpu-1", "gpu-2", "gpu-0"]]


def test_a_set_that_breaks_a_constraint_is_given_back_whole():
    slices = [slice_of(*(device(f"gpu-{index}", island=index // 2) for index in range(4)))]
    same_island = [{"matchAttribute": f"{DRIVER}/island"}]
    chooser = Sets(("gpu-0", "gpu-2"), ("gpu-1", "gpu-3"), ("gpu-2", "gpu-3"))
    found = allocate(slices, claim(exactly(count=2), constraints=same_island), chooser=chooser)
    assert names_of(found) == [["gpu-2", "gpu-3"]]


def test_sets_of_the_same_kinds_are_not_tried_again():
    class Alike(Sets):
        def kind(self, device):
            return None

    slices = [slice_of(*cards(4))]
    impossible = claim(exactly("a", 2), exactly("b", where="false"))
    pairs = [(f"gpu-{a}", f"gpu-{b}") for a in range(4) for b in range(a)]
    chooser = Alike(*pairs)
    assert allocate(slices, impossible, chooser=chooser, budget=6) is None
    assert chooser.read == len(pairs)


def test_no_set_left_is_no_solution():
    assert allocate([slice_of(*cards(2))], claim(exactly(count=2)), chooser=Sets()) is None


# --- claims, requests, alternatives --------------------------------------------------------------------------------------------


def test_claims_of_a_pod_are_met_together_or_not_at_all():
    one = claim(exactly(count=2), name="one")
    two = claim(exactly(), name="two")
    assert names_of(allocate([slice_of(*cards(3))], one, two)) == [["gpu-0", "gpu-1"], ["gpu-2"]]
    assert allocate([slice_of(*cards(2))], one, two) is None


def test_the_search_turns_round_for_a_later_request():
    slices = [slice_of(device("gpu-0", big=True), *cards(3)[1:])]
    raw = claim(exactly("a", 2), exactly("b", where=f'has(device.attributes["{DRIVER}"].big)'))
    assert names_of(allocate(slices, raw)) == [["gpu-1", "gpu-2", "gpu-0"]]


def test_the_first_alternative_that_leads_to_a_solution_is_taken():
    raw = claim(first_of("r", alternative("three", 3), alternative("two", 2)))
    solution = allocate([slice_of(*cards(2))], raw)
    assert names_of(solution) == [["gpu-0", "gpu-1"]]
    assert solution.picks[0][0].request.name == "r/two"


def test_rank_counts_how_good_the_alternatives_are():
    raw = claim(first_of("a", alternative("x")), first_of("b", alternative("x", 9), alternative("y", 2)), exactly("c"))
    assert allocate([slice_of(*cards(4))], raw).rank == 8 + 7
    assert allocate([slice_of(*cards(4))], claim(exactly())).rank == 0


def test_a_pod_without_claims_is_solved():
    assert names_of(allocate([])) == []


def test_more_than_32_devices_make_the_search_choose_a_smaller_alternative():
    raw = claim(first_of("a", alternative("many", 20), alternative("few", 10)), exactly("b", 20))
    solution = allocate([slice_of(*cards(60))], raw)
    assert {pick.request.name for pick in solution.picks[0]} == {"a/few", "b"}


def test_all_of_too_many_devices_is_passed_over_for_an_alternative():
    raw = claim(exactly("a", 20), first_of("b", alternative("all", 0, allocationMode="All"), alternative("one", 1)))
    solution = allocate([slice_of(*cards(25, model="x"))], raw)
    assert {pick.request.name for pick in solution.picks[0]} == {"a", "b/one"}


def test_devices_that_cannot_be_judged_do_not_keep_the_search_from_skipping_equals():
    slices = [slice_of(*cards(6, size=2), device("broken"))]
    usage = InUse(exclusive={"broken"})
    raw = claim(exactly("a", 2, adminAccess=True), exactly("b", 7, where=FRAGILE))
    assert allocate(slices, raw, usage=usage) is None
    watching = claim(exactly("a", where=FRAGILE, count=6), exactly("b", where=FRAGILE, adminAccess=True))
    with pytest.raises(AllocatorError, match=r"fails on device .*/broken"):
        allocate(slices, watching, usage=usage)


def test_the_limit_is_one_of_claims_not_of_pods():
    claims = [claim(exactly(count=32), name=name) for name in ("one", "two")]
    assert [len(names) for names in names_of(allocate([slice_of(*cards(64))], *claims))] == [32, 32]


def test_a_long_pod_does_not_run_out_of_stack():
    claims = [claim(exactly(count=32), name=f"c{index}") for index in range(40)]
    slices = [
        slice_of(*(device(f"gpu-{part}-{index}") for index in range(128)), name=f"slice-{part:02}", count=10)
        for part in range(10)
    ]
    assert len(allocate(slices, *claims).picks) == 40


def test_an_admin_joins_what_others_hold_but_not_twice_in_a_claim():
    usage = InUse(exclusive={"gpu-0"})
    watch = exactly("watch", adminAccess=True)
    assert names_of(allocate([slice_of(*cards(1))], claim(watch), usage=usage)) == [["gpu-0"]]
    assert allocate([slice_of(*cards(1))], claim(watch, exactly("again", adminAccess=True))) is None
    both = allocate([slice_of(*cards(1))], claim(watch, name="a"), claim(watch, name="b"))
    assert names_of(both) == [["gpu-0"], ["gpu-0"]]


# --- all devices -----------------------------------------------------------------------------------------------------------------


def test_all_means_every_device_that_matches_and_each_must_be_free():
    slices = [slice_of(*cards(3))]
    assert names_of(allocate(slices, claim(everything()))) == [["gpu-0", "gpu-1", "gpu-2"]]
    assert allocate(slices, claim(everything()), usage=InUse(exclusive={"gpu-1"})) is None
    assert allocate(slices, claim(everything(where="false"))) is None


def test_all_leaves_out_devices_too_small_but_not_devices_too_full():
    small, large = (device(name, shared=True, capacity={"memory": size}) for name, size in (("s", "2"), ("l", "8")))
    raw = claim(everything(capacity={"memory": "4"}))
    assert names_of(allocate([slice_of(small, large)], raw)) == [["l"]]
    full = InUse(shared={"l": 1}, amounts={"l": {"memory": 5}})
    assert allocate([slice_of(small, large)], raw, usage=full) is None


def test_a_tainted_device_keeps_all_from_being_met():
    tainted = device("gpu-1", taints=[{"key": "t", "effect": "NoSchedule"}])
    assert allocate([slice_of(device("gpu-0"), tainted)], claim(everything())) is None


def test_all_of_an_incomplete_or_invalid_pool_is_an_error_but_some_of_another_is_not():
    good = slice_of(device("g"), name="good", pool="good")
    incomplete = slice_of(device("i"), name="bad", pool="bad", count=2)
    assert names_of(allocate([good, incomplete], claim(exactly()))) == [["g"]]
    with pytest.raises(AllocatorError, match=r"asks for all devices, but the resource pool .*/bad is being updated"):
        allocate([good, incomplete], claim(everything()))
    invalid = slice_of(device("i"), device("i"), name="bad", pool="bad")
    with pytest.raises(AllocatorError, match="is invalid: duplicate device name i"):
        allocate([good, invalid], claim(everything()))
    with pytest.raises(InvalidPools, match=r"node node-1 has invalid resource pools: .*/bad: duplicate device name i"):
        allocate([good, invalid], claim(exactly(count=2)))


def test_a_constraint_that_all_devices_cannot_meet_is_an_error():
    slices = [slice_of(device("gpu-0", model="a"), device("gpu-1", model="b"))]
    raw = claim(everything(), constraints=[{"matchAttribute": f"{DRIVER}/model"}])
    with pytest.raises(
        AllocatorError, match=r"asks for all devices, and device .*/gpu-1 breaks spec.devices.constraints\[0\]"
    ):
        allocate(slices, raw)


# --- errors of selectors -----------------------------------------------------------------------------------------------------------

FRAGILE = f'device.attributes["{DRIVER}"].size > 1'


def test_a_selector_that_fails_is_an_error_once_the_search_gets_to_the_device():
    broken_last = [slice_of(device("gpu-0", size=2), device("gpu-1"))]
    assert names_of(allocate(broken_last, claim(exactly(where=FRAGILE)))) == [["gpu-0"]]
    with pytest.raises(
        AllocatorError, match=r"ResourceClaim ns/c: request r: selectors\[0\] fails on device .*/gpu-1: no such key"
    ):
        allocate(broken_last, claim(exactly(count=2, where=FRAGILE)))
    with pytest.raises(AllocatorError, match=r"fails on device .*/gpu-0"):
        allocate([slice_of(device("gpu-0"), device("gpu-1", size=2))], claim(exactly(where=FRAGILE)))


def test_a_device_in_use_is_not_judged():
    usage = InUse(exclusive={"gpu-0"})
    slices = [slice_of(device("gpu-0"), device("gpu-1", size=2))]
    assert names_of(allocate(slices, claim(exactly(where=FRAGILE)), usage=usage)) == [["gpu-1"]]


def test_with_an_order_of_our_own_devices_that_cannot_be_judged_come_last():
    slices = [slice_of(device("gpu-0"), device("gpu-1", size=2), device("gpu-2", size=3))]
    assert names_of(allocate(slices, claim(exactly(where=FRAGILE)), chooser=Reversed())) == [["gpu-2"]]
    with pytest.raises(AllocatorError, match=r"fails on device .*/gpu-0"):
        allocate(slices, claim(exactly(count=3, where=FRAGILE)), chooser=Reversed())
    with pytest.raises(AllocatorError, match=r"fails on device .*/gpu-0"):
        allocate(slices, claim(exactly(where=FRAGILE)), chooser=Sets())


def test_what_cannot_be_judged_ends_a_search_in_our_own_order_only_where_nothing_else_is_found():
    slices = [slice_of(device("gpu-0"), device("gpu-1", size=2, model=1), device("gpu-2", size=3))]
    needs_the_second = exactly("b", where=f'device.attributes["{DRIVER}"].?model.orValue(0) == 1')
    raw = claim(exactly("a", where=FRAGILE), needs_the_second)
    assert names_of(allocate(slices, raw, chooser=Reversed())) == [["gpu-2", "gpu-1"]]
    both = [slice_of(device("gpu-0"), device("gpu-1", size=2, model=1))]
    with pytest.raises(AllocatorError, match=r"fails on device .*/gpu-0"):
        allocate(both, raw, chooser=Reversed())


def test_all_devices_that_break_a_constraint_end_a_search_in_our_own_order_only_where_nothing_else_is_found():
    first, second, third = (device(f"gpu-{index}", model=model) for index, model in enumerate("aab"))
    rest = everything("rest", where=f'device.attributes["{DRIVER}"].?only.orValue(false)')
    second["attributes"]["only"] = {"bool": True}
    raw = claim(exactly("one"), rest, constraints=[{"matchAttribute": f"{DRIVER}/model"}])
    assert names_of(allocate([slice_of(first, second, third)], raw, chooser=Reversed())) == [["gpu-0", "gpu-1"]]
    with pytest.raises(AllocatorError, match=r"gpu-1 breaks spec.devices.constraints\[0\]"):
        allocate([slice_of(second, third)], raw, chooser=Reversed())


def test_devices_of_other_nodes_are_held_against_selectors_and_not_taken():
    here, there = device("gpu-1", size=2), device("gpu-0", size=3)
    here["nodeName"], there["nodeName"] = NODE, "elsewhere"
    mixed = slice_of(there, here, nodeName=None, perDeviceNodeSelection=True)
    assert names_of(allocate([mixed], claim(exactly(where=FRAGILE)))) == [["gpu-1"]]
    assert names_of(allocate([mixed], claim(everything(where=FRAGILE)))) == [["gpu-1"]]
    del there["attributes"]["size"]
    for request in (exactly(where=FRAGILE), everything(where=FRAGILE)):
        with pytest.raises(AllocatorError, match=r"fails on device .*/gpu-0"):
            allocate([mixed], claim(request))


def test_a_selector_that_does_not_compile_is_an_error_only_with_a_device():
    raw = claim(first_of("r", alternative("good"), alternative("bad", where="noSuchVar")))
    assert names_of(allocate([slice_of(*cards(1))], raw)) == [["gpu-0"]]
    with pytest.raises(AllocatorError, match=r"DeviceClass gpu: spec.selectors\[0\] does not compile"):
        allocate([slice_of(*cards(1))], claim(exactly()), classes=[class_of("noSuchVar")])
    assert allocate([], claim(exactly()), classes=[class_of("noSuchVar")]) is None


# --- taints and gates ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "toleration", "fits"),
    [
        ("NoSchedule", None, False),
        ("NoExecute", None, False),
        ("None", None, True),
        ("SomethingNew", None, True),
        ("NoSchedule", {"operator": "Exists"}, True),
        ("NoSchedule", {"key": "k", "operator": "Exists"}, True),
        ("NoSchedule", {"key": "other", "operator": "Exists"}, False),
        ("NoSchedule", {"key": "k", "operator": "Equal", "value": "v"}, True),
        ("NoSchedule", {"key": "k", "value": "v"}, True),
        ("NoSchedule", {"key": "k", "operator": "Equal", "value": "w"}, False),
        ("NoSchedule", {"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ("NoExecute", {"key": "k", "operator": "Exists", "effect": "NoExecute"}, True),
        ("NoSchedule", {"key": "k", "operator": "Unheard"}, False),
    ],
)
def test_taints_must_be_tolerated(effect, toleration, fits):
    slices = [slice_of(device("gpu-0", taints=[{"key": "k", "value": "v", "effect": effect}]))]
    rest = {"tolerations": [toleration]} if toleration else {}
    assert (allocate(slices, claim(exactly(**rest))) is not None) is fits


def test_our_own_fence_is_ignored_and_no_other():
    fenced = device("gpu-0", taints=[{"key": "hami.io/controller-allocates", "effect": "NoSchedule"}])
    ignored = {"hami.io/controller-allocates"}
    assert names_of(allocate([slice_of(fenced)], claim(exactly()), ignored_taints=ignored)) == [["gpu-0"]]
    fenced["taints"].append({"key": "other", "effect": "NoSchedule"})
    assert allocate([slice_of(fenced)], claim(exactly()), ignored_taints=ignored) is None


def test_without_consumable_capacity_who_holds_a_share_holds_the_device():
    slices = [slice_of(device("gpu-0", shared=True), device("gpu-1", shared=True))]
    usage = InUse(shared={"gpu-0": 1})
    off = FeatureGates(consumable_capacity=False)
    assert names_of(allocate(slices, claim(exactly()), usage=usage)) == [["gpu-0"]]
    assert names_of(allocate(slices, claim(exactly()), usage=usage, features=off)) == [["gpu-1"]]
    assert allocate(slices, claim(exactly(count=2)), usage=usage, features=off) is None


def test_gates_decide_which_devices_can_be_used():
    binding = [slice_of(device("gpu-0", bindingConditions=["ready"]))]
    tainted = [slice_of(device("gpu-0", taints=[{"key": "k", "effect": "NoSchedule"}]))]
    assert allocate(binding, claim(exactly()), features=FeatureGates(claim_device_status=False)) is None
    assert allocate(tainted, claim(exactly()), features=FeatureGates(device_taints=False)) is not None


def test_optional_node_operations_need_gate_and_node():
    slices = [slice_of(device("gpu-0"), skipNodeOperations=["NodePrepareResources"])]
    able = {"metadata": {"name": "node-1"}, "status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}}
    on = FeatureGates(optional_node_operations=True)
    assert names_of(allocate(slices, claim(exactly()), node=able, features=on)) == [["gpu-0"]]
    assert allocate(slices, claim(exactly()), features=on) is None
    other = FeatureGates(list_type_attributes=True)
    assert allocate(slices, claim(exactly()), node=able, features=other) is None


def test_without_alpha_gates_the_field_of_optional_node_operations_is_not_known():
    slices = [slice_of(device("gpu-0"), skipNodeOperations=["NodePrepareResources"])]
    solution = allocate(slices, claim(exactly()))
    assert names_of(solution) == [["gpu-0"]]
    assert "skipNodeOperations" not in solution.allocations()[0]["devices"]["results"][0]


# --- an end to every search --------------------------------------------------------------------------------------------------------------


def steps(solution):
    assert solution is not None
    return solution.steps


def test_a_request_for_more_than_there_is_ends_at_once():
    assert allocate([slice_of(*cards(31))], claim(exactly(count=32)), budget=10) is None


def test_many_requests_for_more_than_there_is_end_soon():
    raw = claim(*(exactly(f"r{index}") for index in range(32)))
    for chooser in (FirstFit(), Reversed()):
        assert allocate([slice_of(*cards(31))], raw, chooser=chooser) is None


def test_equal_devices_are_tried_once():
    slices = [slice_of(*cards(64))]
    impossible = exactly("last", where="false")
    raw = claim(*(exactly(f"r{index}", where=f"{index} >= 0") for index in range(31)), impossible)
    assert allocate(slices, raw, budget=LOOK_UP_AFTER) is None


def test_32_requests_of_a_claim_in_conflict_over_128_equal_devices_end_within_the_budget():
    slices = [slice_of(*cards(128, model="a"))]
    requests = [exactly(f"r{index}") for index in range(32)]
    same = {"matchAttribute": f"{DRIVER}/model"}
    different = {"distinctAttribute": f"{DRIVER}/model"}
    assert steps(allocate(slices, claim(*requests, constraints=[same]))) < 400
    for constraints in ([different], [same, different], [same, {"matchAttribute": f"{DRIVER}/absent"}]):
        assert allocate(slices, claim(*requests, constraints=constraints)) is None


@pytest.mark.parametrize("chooser", [FirstFit(), Reversed()])
def test_hostile_claims_end_within_the_budget(chooser):
    racks = [device(f"gpu-{index}", rack=index // 16, serial=index) for index in range(128)]
    slices = [slice_of(*racks)]
    requests = [exactly(f"r{index}") for index in range(32)]
    rack, serial = f"{DRIVER}/rack", f"{DRIVER}/serial"
    half = [f"r{index}" for index in range(17)]
    for constraints in (
        [{"distinctAttribute": rack}],  # 8 racks for 32
        [{"matchAttribute": rack}],  # 16 of a rack for 32
        [{"matchAttribute": rack}, {"distinctAttribute": serial}],
        [{"matchAttribute": serial}],
        [{"matchAttribute": rack, "requests": half}, {"distinctAttribute": serial}],  # 17 of 16
    ):
        assert allocate(slices, claim(*requests, constraints=constraints), chooser=chooser) is None
    assert allocate(slices, claim(exactly(count=17), constraints=[{"matchAttribute": rack}]), chooser=chooser) is None


@pytest.mark.parametrize("chooser", [FirstFit(), Reversed()])
def test_deep_prioritized_lists_end_within_the_budget(chooser):
    """32 requests of 8 alternatives: 8 to the power of 32 ways to choose among them, and 128 devices for each."""

    def lists(count, amounts):
        return [
            first_of(f"r{index}", *(alternative(f"s{rank}", **amounts(rank)) for rank in range(8)))
            for index in range(count)
        ]

    racks = [device(f"gpu-{index}", rack=index // 16, serial=index) for index in range(128)]
    rack = f"{DRIVER}/rack"
    of_all = lists(32, lambda rank: {"where": f'device.attributes["{DRIVER}"].serial % 8 == {rank}'})
    for requests, constraints in (
        ([*lists(31, lambda _: {}), exactly("last", where="false")], []),
        (lists(32, lambda _: {}), [{"distinctAttribute": rack}]),
        (of_all, [{"matchAttribute": rack}]),
        ([*of_all[:31], exactly("last", where="false")], []),
    ):
        assert allocate([slice_of(*racks)], claim(*requests, constraints=constraints), chooser=chooser) is None
    mixed = [
        first_of(f"r{index}", *(alternative(f"s{count}", count=count) for count in (4, 3, 1))) for index in range(17)
    ]
    found = allocate([slice_of(*racks)], claim(*mixed), chooser=chooser)
    assert steps(found) < DEFAULT_BUDGET
    assert len(names_of(found)[0]) == 32


@pytest.mark.parametrize("chooser", [FirstFit(), Reversed()])
def test_shares_for_more_than_all_devices_have_left_end_soon(chooser):
    slots = [device(f"gpu-{index}", shared=True, serial=index, capacity={"memory": "10"}) for index in range(8)]
    sizes = [4 + index % 3 for index in range(17)]
    assert sum(sizes) > 80
    requests = [exactly(f"r{index}", capacity={"memory": str(size)}) for index, size in enumerate(sizes)]
    assert allocate([slice_of(*slots)], claim(*requests), chooser=chooser) is None
    rest = [first_of("rest", alternative("a", capacity={"memory": "7"}), alternative("b", capacity={"memory": "6"}))]
    usage = InUse(shared={"gpu-0": 1}, amounts={"gpu-0": {"memory": 4}})
    assert allocate([slice_of(*slots)], claim(*requests[:16], *rest), chooser=chooser, usage=usage) is None


def test_a_device_that_holds_too_much_takes_no_room_from_the_others():
    slots = [device(f"gpu-{index}", shared=True, capacity={"memory": "4"}) for index in range(2)]
    usage = InUse(shared={"gpu-0": 1}, amounts={"gpu-0": {"memory": 9}})
    problem = problem_of(claim(exactly(capacity={"memory": "4"})))
    node, pools = parse({"metadata": {"name": NODE}}, Node), pools_of(slice_of(*slots))
    search = Search(problem, node, pools, usage, FirstFit(), budget=DEFAULT_BUDGET)
    assert not any(counts(problem, search.candidates, search.held.constraints, usage))


@pytest.mark.parametrize("chooser", [FirstFit(), Reversed()])
def test_what_no_count_rules_out_is_refused_when_the_budget_is_spent(chooser):
    """17 claims of 6 cards of one rack, of 8 racks that hold two such claims each."""
    racks = [device(f"gpu-{index}", rack=index // 16, serial=index) for index in range(128)]
    together = [{"matchAttribute": f"{DRIVER}/rack"}]
    claims = [claim(exactly(count=6), name=f"c{index}", constraints=together) for index in range(17)]
    with pytest.raises(BudgetExceeded, match="given up after 100000 steps; simplify the claim: fewer requests, or"):
        allocate([slice_of(*racks)], *claims, chooser=chooser)
    assert allocate([slice_of(*racks)], *claims[:16], chooser=chooser) is not None


def test_ordering_many_devices_counts_as_steps():
    found = allocate([slice_of(*cards(10 * ORDERED_PER_STEP))], claim(exactly()), chooser=Reversed())
    assert steps(found) == 12  # the request, its devices ten times sixteen, and one tried


def test_long_searches_of_one_decision_share_their_effort_and_short_ones_are_free():
    problem = problem_of(claim(*(exactly(f"r{index}") for index in range(32))))
    node, pools = parse({"metadata": {"name": NODE}}, Node), pools_of(slice_of(*cards(128)))
    short = Effort()
    assert solve(problem_of(claim(exactly())), node, pools, InUse(), FirstFit(), effort=short) is not None
    assert short.spent == 0
    effort = Effort()
    assert solve(problem, node, pools, InUse(), FirstFit(), effort=effort) is not None
    assert 0 < effort.spent < 1_000
    effort.spend(MOST_EFFORT)
    with pytest.raises(BudgetExceeded, match=f"given up after {effort.spent + LOOK_UP_AFTER} steps"):
        solve(problem, node, pools, InUse(), FirstFit(), effort=effort)
    assert solve(problem_of(claim(exactly())), node, pools, InUse(), FirstFit(), effort=effort) is not None


def test_shares_for_more_than_there_is_room_end_soon():
    slots = [device(f"gpu-{index}", shared=True, serial=index, capacity={"shares": "4"}) for index in range(7)]
    raw = claim(*(exactly(f"r{index}", capacity={"shares": "1"}) for index in range(29)))
    for chooser in (FirstFit(), Reversed()):
        assert allocate([slice_of(*slots)], raw, chooser=chooser) is None


def test_a_claim_that_cannot_be_met_alone_ends_the_search_of_the_pod():
    slots = [device(f"gpu-{index}", shared=True, serial=index, capacity={"shares": "9"}) for index in range(8)]
    free = claim(*(exactly(f"r{index}", capacity={"shares": "1"}) for index in range(8)), name="free")
    amounts = {"shares": "1"}
    stuck = claim(
        exactly("a", capacity=amounts, where=f'device.attributes["{DRIVER}"].serial == 1'),
        exactly("b", capacity=amounts, where=f'device.attributes["{DRIVER}"].serial == 2'),
        constraints=[{"matchAttribute": f"{DRIVER}/serial"}],
        name="stuck",
    )
    for chooser in (FirstFit(), Reversed()):
        assert allocate([slice_of(*slots)], free, stuck, chooser=chooser) is None


def test_a_search_that_takes_too_long_is_given_up_with_a_clear_word():
    slices = [slice_of(*cards(8))]
    with pytest.raises(BudgetExceeded, match="given up after 5 steps; simplify the claim"):
        allocate(slices, claim(exactly(count=8)), budget=5)
    assert steps(allocate(slices, claim(exactly(count=8)), budget=DEFAULT_BUDGET)) < 20


def test_the_class_of_the_table_is_the_class_of_these_tests():
    assert GPU["spec"]["selectors"][0]["cel"]["expression"] == f'device.driver == "{DRIVER}"'
