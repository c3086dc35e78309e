"""Partitionable devices: shared counters and compatibility groups."""

import pytest

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from tests.support.allocation import InUse, allocate, claim, device, everything, exactly, names_of, slice_of

GROUPS = FeatureGates(compatibility_groups=True)


def partition(name, memory, *, groups=(), counter_set="card-0", **rest):
    consumed = {"counterSet": counter_set, "counters": {"memory": {"value": memory}}}
    if groups:
        consumed["compatibilityGroups"] = list(groups)
    return device(name, consumesCounters=[consumed], **rest)


def card(memory="80Gi", name="card-0"):
    return {"name": name, "counters": {"memory": {"value": memory}}}


def pool(*partitions, cards=None, **rest):
    """A pool in two slices: counters, and devices."""
    counters = slice_of(name="counters", count=2)
    counters["spec"]["sharedCounters"] = cards or [card()]
    del counters["spec"]["devices"]
    return [counters, slice_of(*partitions, name="devices", count=2, **rest)]


def test_partitions_of_a_card_share_its_counters():
    slices = pool(partition("half-0", "40Gi"), partition("half-1", "40Gi"), partition("whole", "80Gi"))
    assert names_of(allocate(slices, claim(exactly(count=2)))) == [["half-0", "half-1"]]
    assert allocate(slices, claim(exactly(count=3))) is None


def test_what_is_allocated_counts_also_on_other_nodes_of_the_pool():
    slices = pool(partition("here", "40Gi"))
    slices[0]["spec"]["pool"]["resourceSliceCount"] = slices[1]["spec"]["pool"]["resourceSliceCount"] = 3
    slices[0]["spec"] |= {"nodeName": None, "allNodes": True}
    elsewhere = slice_of(partition("there", "60Gi"), name="elsewhere", count=3, nodeName="node-2")
    assert names_of(allocate([*slices, elsewhere], claim(exactly()))) == [["here"]]
    assert allocate([*slices, elsewhere], claim(exactly()), usage=InUse(exclusive={"there"})) is None


def test_counters_are_given_back_when_the_search_turns_round():
    big = partition("big", "60Gi", size="big")
    slices = pool(big, partition("small-0", "40Gi"), partition("small-1", "40Gi"))
    assert names_of(allocate(slices, claim(exactly("a"), exactly("b")))) == [["small-0", "small-1"]]


def test_a_shared_partition_pays_once():
    slices = pool(partition("part", "50Gi", shared=True, capacity={"slots": "4"}))
    amounts = {"slots": "1"}
    raw = claim(exactly("a", capacity=amounts), exactly("b", capacity=amounts))
    assert names_of(allocate(slices, raw)) == [["part", "part"]]
    other = pool(
        partition("part", "50Gi", shared=True, capacity={"slots": "4"}), partition("rest", "50Gi"), cards=[card()]
    )
    held = InUse(shared={"part": 1}, amounts={"part": {"slots": 1}})
    assert names_of(allocate(other, claim(exactly(capacity=amounts)), usage=held)) == [["part"]]
    assert (
        allocate(other, claim(exactly()), usage=held) is None
    )  # without a request all slots of the one, or the other's 50Gi


def test_an_overdrawn_counter_blocks_the_pool_s_partitions_and_no_other_device():
    slices = pool(
        partition("over", "90Gi"),
        partition("other", "1Gi", counter_set="card-1"),
        device("plain"),
        cards=[card(), card(name="card-1")],
    )
    usage = InUse(exclusive={"over"})
    assert names_of(allocate(slices, claim(exactly()), usage=usage)) == [["plain"]]


def test_all_partitions_at_once_is_no_solution_when_they_exclude_each_other():
    slices = pool(partition("half-0", "40Gi"), partition("half-1", "40Gi"))
    assert names_of(allocate(slices, claim(everything()))) == [["half-0", "half-1"]]
    assert allocate(pool(partition("a", "60Gi"), partition("b", "60Gi")), claim(everything())) is None


def test_without_the_gate_partitions_are_not_used():
    slices = pool(partition("half-0", "40Gi"), device("plain"))
    off = FeatureGates(partitionable_devices=False)
    assert names_of(allocate(slices, claim(exactly()), features=off)) == [["plain"]]


def test_a_counter_that_is_no_quantity_is_an_error_that_names_it():
    with pytest.raises(AllocatorError, match=r"device .*/p: consumesCounters: memory: 'lots' is not a quantity"):
        allocate(pool(partition("p", "lots")), claim(exactly()))
    with pytest.raises(
        AllocatorError, match=r"pool .*/node-1: sharedCounters: card-0.memory: 'much' is not a quantity"
    ):
        allocate(pool(partition("p", "1"), cards=[card("much")]), claim(exactly()))


# --- compatibility groups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "together"),
    [
        ((("mig",), ("mig",)), True),
        ((("mig", "x"), ("mig", "y")), True),
        ((("mig",), ("vgpu",)), False),
        (((), ()), True),
        (((), ("mig",)), False),
        ((("mig",), ()), False),
        ((("a", "b"), ("b", "c"), ("c", "a")), False),  # no group that all three have
        ((("a", "b"), ("b", "c"), ("b",)), True),
    ],
)
def test_partitions_of_a_card_need_a_group_in_common(groups, together):
    slices = pool(*(partition(f"p{index}", "1Gi", groups=each) for index, each in enumerate(groups)))
    found = allocate(slices, claim(exactly(count=len(groups))), features=GROUPS)
    assert (found is not None) is together


def test_groups_of_what_is_allocated_count():
    slices = pool(
        partition("mig", "1Gi", groups=["mig"]), partition("vgpu", "1Gi", groups=["vgpu"]), partition("no", "1Gi")
    )
    assert names_of(allocate(slices, claim(exactly()), features=GROUPS)) == [["mig"]]
    held = InUse(exclusive={"vgpu"})
    assert allocate(slices, claim(exactly()), features=GROUPS, usage=held) is None


def test_groups_are_given_back_when_the_search_turns_round():
    slices = pool(
        partition("p0", "1Gi", groups=["a"]), partition("p1", "1Gi", groups=["b"]), partition("p2", "1Gi", groups=["b"])
    )
    assert names_of(allocate(slices, claim(exactly("x"), exactly("y")), features=GROUPS)) == [["p1", "p2"]]


def test_groups_of_different_cards_do_not_meet():
    slices = pool(
        partition("p0", "1Gi", groups=["a"]),
        partition("p1", "1Gi", groups=["b"], counter_set="card-1"),
        cards=[card(), card(name="card-1")],
    )
    assert names_of(allocate(slices, claim(exactly(count=2)), features=GROUPS)) == [["p0", "p1"]]


def test_without_the_gate_a_pool_with_groups_is_not_whole():
    slices = pool(partition("p0", "1Gi", groups=["a"]), device("plain"))
    assert allocate(slices, claim(exactly())) is None
