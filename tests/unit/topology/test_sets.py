"""Pair scores, islands, cliques, sets: pure functions on small graphs, against slow ones."""

import itertools
import random

import pytest

from hami_dra.topology.pairs import pairs
from hami_dra.topology.subsets import MOST_SETS, all_sets, bits, cliques, components, grown, mask_of, measure

SEEDS = range(40)


def table(lanes, distance=None, group=None):
    size = len(lanes)
    return pairs(lanes, distance or ["0" * size] * size, group or [0] * size)


def linked(size, *edges, lanes=1):
    rows = [[0] * size for _ in range(size)]
    for one, other in edges:
        rows[one][other] = rows[other][one] = lanes
    return rows


def tangle(seed, size):
    """A random machine: symmetric lanes and distances."""
    chance = random.Random(seed)
    share = chance.choice([0.2, 0.5, 0.8])
    edges = [pair for pair in itertools.combinations(range(size), 2) if chance.random() < share]
    return table(linked(size, *edges))


@pytest.mark.parametrize(
    ("letter", "score"), [("X", 10), ("C", 20), ("H", 30), ("M", 40), ("S", 50), ("B", 60), ("0", 0), ("?", 0)]
)
def test_every_pcie_distance_has_hamis_score(letter, score):
    found = table(linked(2), [f"-{letter}", f"{letter}-"])
    assert found.score.tolist() == [[0, score], [score, 0]]
    assert not found.linked.any()


def test_links_add_up_and_four_lanes_on_one_switch_are_450():
    found = table(linked(2, (0, 1), lanes=4), ["-S", "S-"])
    assert found.score[0, 1] == found.score[1, 0] == 450
    assert found.linked[0, 1]


def test_of_two_directions_the_slower_counts():
    found = table([[0, 4, 2], [2, 0, 0], [0, 1, 0]], ["-SS", "C-0", "00-"])
    assert found.score.tolist() == [[0, 220, 50], [220, 0, 0], [50, 0, 0]]
    assert found.linked.tolist() == [[False, True, False], [True, False, False], [False, False, False]]


def test_an_island_without_lanes_is_joined_by_one_lane():
    found = table(linked(4), group=[1, 1, 2, 0])
    assert found.score.tolist() == [[0, 100, 0, 0], [100, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    # who reports lanes to others has none to the rest of its island
    mesh = table(linked(4, (0, 1), (1, 2), (2, 3)), group=[1, 1, 1, 1])
    assert [mesh.score[0, 2], mesh.score[0, 3], mesh.score[1, 3]] == [0, 0, 0]


def test_bits_and_masks():
    assert bits(0b101101) == [0, 2, 3, 5]
    assert mask_of(bits(0b101101)) == 0b101101
    assert bits(0) == []


def test_islands_are_what_is_connected_among_the_free():
    chain = table(linked(6, (0, 1), (1, 2), (3, 4)))
    assert components(chain, range(6)) == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2, 5: 1}
    assert components(chain, [0, 2, 4]) == {0: 1, 2: 1, 4: 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_cliques_are_the_largest_groups_of_linked_cards(seed):
    found = tangle(seed, 8)
    free = [card for card in range(8) if (seed * 37 >> card) & 1 or seed % 3 == 0]
    every = [
        set(chosen)
        for size in range(1, len(free) + 1)
        for chosen in itertools.combinations(free, size)
        if all(found.linked[one, other] for one, other in itertools.combinations(chosen, 2))
    ]
    for least in (1, 2, 3):
        largest = [group for group in every if len(group) >= least and not any(group < other for other in every)]
        assert cliques(found, free, least) == [mask_of(group) for group in sorted(map(sorted, largest))]


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_and_damage(seed):
    chance = random.Random(seed)
    found = tangle(seed, 7)
    free = sorted(chance.sample(range(7), 5))
    for count in range(1, 6):
        sets = all_sets(free, count)
        measured = measure(found, sets, free)
        assert [tuple(cards) for cards in sets.tolist()] == list(itertools.combinations(free, count))
        for row, cards in enumerate(sets.tolist()):
            inside = sum(int(found.score[pair]) for pair in itertools.combinations(cards, 2))
            across = sum(int(found.score[card, peer]) for card in cards for peer in free if peer not in cards)
            assert (measured.total[row], measured.damage[row]) == (inside, across)
            assert measured.cliques[row] == all(found.linked[pair] for pair in itertools.combinations(cards, 2))


def test_sixteen_cards_are_looked_at_in_full_and_more_sets_are_not():
    assert len(all_sets(range(16), 8)) == MOST_SETS == 12_870
    assert all_sets(range(17), 8) is None
    assert len(all_sets(range(128), 2)) == 8128


def test_promising_sets_grow_from_every_card():
    quads = [pair for base in (0, 4, 8) for pair in itertools.combinations(range(base, base + 4), 2)]
    found = table(linked(12, *quads))
    assert grown(found, range(12), 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert grown(found, [1, 2, 3, 6, 7], 3).tolist() == [[1, 2, 3], [1, 6, 7]]


def test_a_tangle_of_the_largest_size_ends():
    chance = random.Random(1)
    edges = [pair for pair in itertools.combinations(range(128), 2) if chance.random() < 0.7]
    found = table(linked(128, *edges))
    assert all(mask.bit_count() >= 3 for mask in cliques(found, range(128), 3))
    assert grown(found, range(128), 32).shape[1] == 32
