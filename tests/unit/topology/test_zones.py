"""Zones and switches as published data says them, and the decision tree against HAMi's, spelled out slowly."""

from itertools import combinations, pairwise

import pytest

from hami_dra.topology.zones import Pick, Zones, decision_tree, some_of, zones_of

ALONE = ("0" * 8,) * 8
NO_LANES = ((0,) * 8,) * 8


def mask(*cards):
    return sum(1 << card for card in cards)


def cards_of(bits):
    return [card for card in range(bits.bit_length()) if bits >> card & 1]


def sets_of(pick):
    """All sets that a pick stands for."""
    return [pick.fixed | mask(*more) for more in combinations(cards_of(pick.pool), pick.more)]


def switched(*groups):
    """`distance` rows where the cards of each group hang on one switch."""
    return tuple(
        "".join("-" if a == b else "S" if any(a in group and b in group for group in groups) else "X" for b in range(8))
        for a in range(8)
    )


# --- what counts as a zone -----------------------------------------------------------------------------------------


def test_zones_by_number():
    found = zones_of((2, 2, 1, 1, 7, 7, 0, 0), NO_LANES, ALONE)
    assert found == Zones(zones=(mask(2, 3), mask(0, 1), mask(4, 5)), switches=())


def test_cards_without_a_number_that_links_join_are_zones_too_after_the_numbered():
    lanes = [[0] * 8 for _ in range(8)]
    lanes[2][3] = lanes[3][2] = lanes[4][5] = 1  # 4-5: only one side says so
    lanes[0][6] = lanes[6][0] = 1  # 0 has a number, so 6 is not joined by it
    found = zones_of((1, 1, 0, 0, 0, 0, 0, 0), lanes, ALONE)
    assert found == Zones(zones=(mask(0, 1), mask(2, 3), mask(4, 5)), switches=())


def test_what_is_left_is_grouped_by_the_switch():
    found = zones_of((1, 1, 1, 0, 0, 0, 0, 0), NO_LANES, switched((2, 3), (4, 5, 6)))
    assert found == Zones(zones=(mask(0, 1, 2),), switches=(mask(4, 5, 6),))  # 3's only neighbour is in a zone


def test_one_board_counts_as_one_switch_and_farther_paths_as_none():
    rows = ["-BMHCXX0", *("0" * 8 for _ in range(7))]
    assert zones_of((0,) * 8, NO_LANES, rows) == Zones(zones=(), switches=(mask(0, 1),))


def test_points_of_a_pair():
    zones = Zones(zones=(mask(0, 1, 2, 3),), switches=(mask(4, 5, 6),))
    assert zones.connection(mask(0, 1)) == 10
    assert zones.connection(mask(4, 5)) == 1
    assert zones.connection(mask(0, 4)) == zones.connection(mask(0, 7)) == zones.connection(mask(0)) == 0
    assert zones.connection(mask(*range(8))) == 60 + 3


# --- the tree, where everything has a zone or none ---------------------------------------------------------------------


def hamis_tree(group, free, count):
    """prioritizeExclusiveDevices: sets of cards as the code picks them, zones of one size in order of their numbers."""
    candidates = [card for card in range(len(group)) if card in free]
    if len(candidates) <= count:
        return candidates
    by_zone = {}
    for card in candidates:
        if group[card] > 0:
            by_zone.setdefault(group[card], []).append(card)
    zones = [by_zone[number] for number in sorted(by_zone)]
    zones.sort(key=len)
    for zone in zones:
        if len(zone) >= count:
            return zone[:count]
    walk = [card for zone in zones for card in zone]
    return [*walk, *(card for card in candidates if group[card] <= 0)][:count]


def growth(size):
    """All ways to put cards into zones or into none (0), up to the names of the zones."""

    def extend(prefix, highest):
        if len(prefix) == size:
            yield tuple(prefix)
            return
        for number in range(highest + 2):
            yield from extend([*prefix, number], max(highest, number))

    yield from extend([], 0)


def test_all_zone_layouts_of_eight_cards():
    """Every partition of eight cards into zones and zoneless ones: 21,147 layouts, every number of cards."""
    layouts = 0
    for group in growth(8):
        layouts += 1
        zones = zones_of(group, NO_LANES, ALONE)
        for count in range(1, 9):
            first = next(decision_tree(zones, 0xFF, count))
            assert some_of(first) == mask(*hamis_tree(group, set(range(8)), count)), (group, count)
    assert layouts == 21_147


@pytest.mark.parametrize(
    "group",
    [
        (1, 1, 1, 1, 2, 2, 2, 2),
        (2, 2, 2, 2, 1, 1, 1, 1),
        (1, 1, 2, 2, 3, 3, 4, 4),
        (1, 1, 1, 2, 2, 2, 0, 0),
        (1, 1, 1, 1, 1, 1, 1, 1),
        (1, 0, 1, 0, 1, 0, 2, 2),
        (0,) * 8,
    ],
)
def test_every_busy_pattern(group):
    zones = zones_of(group, NO_LANES, ALONE)
    for pattern in range(256):
        free = set(cards_of(pattern))
        for count in range(1, len(free) + 1):
            picks = list(decision_tree(zones, pattern, count))
            assert some_of(picks[0]) == mask(*hamis_tree(group, free, count))
            for pick in picks:
                sets = sets_of(pick)
                assert all(each & ~pattern == 0 and each.bit_count() == count for each in sets)
                assert len({zones.connection(each) for each in sets}) == 1
        assert not list(decision_tree(zones, pattern, len(free) + 1))


def test_zones_that_hold_all_come_from_small_to_large_then_by_number():
    zones = zones_of((1, 1, 1, 2, 2, 3, 3, 0), NO_LANES, ALONE)
    picks = list(decision_tree(zones, 0xFF, 2))
    assert picks == [Pick(0, zone, 2) for zone in (mask(3, 4), mask(5, 6), mask(0, 1, 2))]


# --- switches ------------------------------------------------------------------------------------------------------------


def test_without_zones_a_switch_that_holds_all_then_switches_from_small_to_large():
    zones = zones_of((0,) * 8, NO_LANES, switched((0, 1, 2, 3), (4, 5)))
    assert [some_of(next(decision_tree(zones, 0xFF, count))) for count in (2, 3, 5, 7)] == [
        mask(4, 5),
        mask(0, 1, 2),
        mask(4, 5, 0, 1, 2),
        mask(0, 1, 2, 3, 4, 5, 6),
    ]


def test_a_linked_pair_before_a_pair_on_one_switch_before_none():
    zones = zones_of((1, 1, 2, 0, 0, 0, 0, 0), NO_LANES, switched((3, 4), (5, 6)))
    all_free, no_linked_pair, no_switch = 0xFF, 0xFF & ~mask(0), mask(1, 2, 3, 5, 7)
    assert [some_of(next(decision_tree(zones, free, 2))) for free in (all_free, no_linked_pair, no_switch)] == [
        mask(0, 1),
        mask(3, 4),
        mask(1, 2),
    ]
    points = [zones.connection(cards) for cards in (mask(0, 1), mask(3, 4), mask(1, 2))]
    assert all(better > worse for better, worse in pairwise(points))


def test_three_cards_with_a_linked_pair_are_better_than_three_on_a_switch():
    zones = zones_of((1, 1, 2, 0, 0, 0, 0, 0), NO_LANES, switched((3, 4, 5)))
    first, second = decision_tree(zones, 0xFF, 3)
    assert (some_of(first), some_of(second)) == (mask(0, 1, 2), mask(3, 4, 5))


def test_what_zones_lack_comes_from_one_switch_if_one_has_it():
    zones = zones_of((1, 1, 0, 0, 0, 0, 0, 0), NO_LANES, switched((2, 3), (4, 5, 6)))
    found = {count: some_of(next(decision_tree(zones, 0xFF, count))) for count in (4, 5, 6)}
    assert found == {4: mask(0, 1, 2, 3), 5: mask(0, 1, 4, 5, 6), 6: mask(0, 1, 2, 3, 4, 5)}
