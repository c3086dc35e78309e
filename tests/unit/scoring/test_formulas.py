"""HAMi's formulas and orders, with the figures of its own tests and issues."""

import numpy as np
import pytest

from controller.scoring.formulas import best_node, device_order, device_scores, ranked_nodes
from controller.scoring.policies import DevicePolicy, Weights
from hami_dra.vendors.protocol import CardRequest, Cards


def ints(*values):
    return np.array(values, dtype=np.int64)


def cards(slots_used, cores_used, memory_used, *, slots=10, cores=100, memory=100, numa=None, index=None):
    n = len(slots_used)
    full = lambda value: np.full(n, value, dtype=np.int64)  # noqa: E731 # shorter than three lines of np.full
    return Cards(
        index=ints(*(index or range(n))),
        numa=ints(*(numa or [0] * n)),
        slots_total=full(slots),
        slots_used=ints(*slots_used),
        cores_total=full(cores),
        cores_used=ints(*cores_used),
        memory_total=full(memory),
        memory_used=ints(*memory_used),
        mark=ints(*[0] * n),
    )


def ask(n, slots=1, cores=0, memory=0):
    return CardRequest(slots=ints(*[slots] * n), cores=ints(*[cores] * n), memory=ints(*[memory] * n))


def order(the_cards, policy, the_ask=None):
    the_ask = the_ask or ask(len(the_cards.index))
    return list(device_order(the_cards, device_scores(the_cards, the_ask, policy.weights), policy))


def test_hami_example_of_weights():
    """HAMi's weighted-score test: A has 1/10 slots, 90/100 cores, 10/100 memory; B 7/10, 10/100, 20/100."""
    two = cards([1, 7], [90, 10], [10, 20])
    request = ask(2, memory=40)
    assert device_scores(two, request, Weights()) == pytest.approx([16, 15])
    assert device_scores(two, request, Weights(memory=3)) == pytest.approx([26, 27])
    assert order(two, DevicePolicy(("binpack",)), request) == [0, 1]
    assert order(two, DevicePolicy(("binpack",), Weights(memory=3)), request) == [1, 0]


def test_spread_takes_the_idle_card_binpack_the_fullest():
    three = cards([2, 0, 1], [0, 0, 0], [40, 0, 20])
    assert order(three, DevicePolicy(("spread",))) == [1, 2, 0]
    assert order(three, DevicePolicy(("binpack",))) == [0, 2, 1]


def test_score_comes_before_numa_and_index_breaks_ties():
    """Spread used to fill one socket first (HAMi issue 1806)."""
    four = cards([0, 1, 0, 0], [0] * 4, [0] * 4, numa=[1, 0, 1, 0], index=[3, 2, 1, 0])
    assert order(four, DevicePolicy(("spread",))) == [3, 2, 0, 1]


def test_mutex_leaves_used_cards_out():
    assert order(cards([1, 0, 2], [0] * 3, [0] * 3), DevicePolicy(("mutex",))) == [1]


def test_a_comma_list_is_taken_key_by_key():
    four = cards([1, 0, 1, 0], [0] * 4, [0] * 4, numa=[0, 1, 1, 0])
    assert order(four, DevicePolicy(("numa", "binpack"))) == [0, 3, 2, 1]
    assert order(four, DevicePolicy(("binpack", "numa"))) == [0, 2, 3, 1]


def test_a_driver_without_memory_and_cores_is_ordered_by_its_slots():
    two = cards([0, 1], [0, 0], [0, 0], slots=2, cores=0, memory=0)
    assert device_scores(two, ask(2), Weights()) == pytest.approx([15, 30])


def test_what_vendors_say_of_equal_nodes_comes_before_their_names():
    scores, rank, everyone = np.array([0.0, 15.0, 7.5, 15.0]), ints(0, 1, 2, 3), np.arange(4)
    tie = np.array([9.0, -10.0, 9.0, -5.0])
    assert best_node(scores, rank, everyone, "binpack", tie) == 3
    assert best_node(scores, rank, everyone, "binpack", np.zeros(4)) == 1
    assert best_node(scores, rank, everyone, "spread", tie) == 0


def test_nodes_binpack_highest_spread_lowest_ties_by_name():
    scores = np.array([0.0, 15.0, 7.5, 15.0])
    rank = ints(3, 2, 1, 0)
    everyone = np.arange(4)
    assert best_node(scores, rank, everyone, "binpack") == 3
    assert best_node(scores, rank, everyone, "spread") == 0
    assert list(ranked_nodes(scores, rank, everyone, "binpack", 10)) == [3, 1, 2, 0]
    assert list(ranked_nodes(scores, rank, np.array([1, 2, 3]), "spread", 10)) == [2, 3, 1]
    assert list(ranked_nodes(scores, rank, everyone, "binpack", 2)) == [3, 1]
