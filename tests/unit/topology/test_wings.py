"""Wings of a board: which cards they hold, what is linked, and machines that are not eight cards in two wings."""

import pytest

from hami_dra.topology.subsets import bits
from hami_dra.topology.wings import Stage, board, bubble, choices

EIGHT = range(8)
UNNUMBERED = 1 << 30


def plain(numbers, groups=None, links=None):
    size = len(list(numbers))
    return board(list(numbers), groups or [0] * size, links or [[0] * size] * size)


def sets(view, free, count):
    """All sets by position, best first."""
    mask = sum(1 << card for card in free)
    return [tuple(bits(cards)) for choice in choices(view, mask, count) for cards in choice.sets]


def test_wings_by_number():
    view = plain(EIGHT)
    assert view.wings == (0b1111, 0b11110000)
    assert [tuple(bits(pair)) for pair in view.pairs] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert len(view.quads) == 6


def test_published_groups_say_which_wing_a_card_is_in():
    assert plain(EIGHT, [7, 7, 7, 7, 2, 2, 2, 2]).wings == (0b1111, 0b11110000)
    assert plain(EIGHT, [1, 2, 1, 2, 1, 2, 1, 2]).wings == (0b01010101, 0b10101010)


def test_a_card_without_a_group_is_in_the_wing_of_its_neighbours_by_number():
    assert plain(EIGHT, [1, 1, 0, 1, 0, 2, 2, 2]).wings == (0b1111, 0b11110000)


def test_pairs_inside_one_wing_are_nothing_of_their_own():
    """Where all cards are one group every set lies in it, and nothing is across."""
    view = plain(EIGHT, [1] * 8)
    assert (view.pairs, view.quads) == ((), ())
    assert len(sets(view, EIGHT, 4)) == 70


def test_cards_without_a_number_take_those_that_are_missing():
    """Only card 3 says nothing; its place in the list is the last."""
    view = plain([0, 1, 2, 4, 5, 6, 7, UNNUMBERED])
    assert view.wings == (0b10000111, 0b01111000)
    assert plain([UNNUMBERED] * 8).wings == (0b1111, 0b11110000)
    assert plain([0, 0, 1, 1]).wings == (0b1111,)


@pytest.mark.parametrize(
    ("free", "count", "first"),
    [
        ((0, 1, 2, 3), 4, (0, 1, 2, 3)),
        ((0, 1, 2, 3), 1, (0,)),
        ((0, 2, 3), 2, (0, 2)),
        ((1,), 2, None),
    ],
)
def test_four_cards_are_one_wing(free, count, first):
    assert next(iter(sets(plain(range(4)), free, count)), None) == first


def test_a_board_where_cards_are_missing_goes_by_their_numbers():
    """Cards 0, 1, 4, 5: positions 0 to 3 are no wing of four, but quad 0145."""
    view = plain([0, 1, 4, 5])
    assert sets(view, range(4), 2) == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert sets(view, range(4), 4) == [(0, 1, 2, 3)]
    assert sets(view, range(4), 3) == [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    assert sets(view, [0, 1, 2], 3) == [(0, 1, 2)]
    assert sets(view, [0, 2, 3], 3) == [(0, 2, 3)]


def test_six_cards_in_wings_of_four_and_two():
    view = plain(range(6))
    assert sets(view, range(6), 5)[:2] == [(0, 1, 2, 3, 4), (0, 1, 2, 3, 5)]
    assert sets(view, range(6), 6)[0] == (0, 1, 2, 3, 4, 5)
    assert sets(view, [0, 1, 4, 5], 3) == []


def test_the_rest_beside_a_full_wing_is_linked_where_links_are_known():
    """Card 4 has lost its link to card 0: 5 is better company for the first wing."""
    links = [
        [int(one != other and (one // 4 == other // 4 or one % 4 == other % 4)) for other in EIGHT] for one in EIGHT
    ]
    view = plain(EIGHT, links=links)
    assert sets(view, EIGHT, 5)[0] == (0, 1, 2, 3, 4)
    links[0][4] = links[4][0] = 0
    view = plain(EIGHT, links=links)
    assert sets(view, EIGHT, 5)[0] == (0, 1, 2, 3, 5)
    assert {choice.stage for choice in choices(view, 0xFF, 5)} == {Stage.FULL_WINGS}


def test_many_cards_are_no_problem():
    view = plain(range(64))
    assert len(view.wings) == 16
    assert next(choices(view, (1 << 64) - 1, 32)).sets == ((1 << 32) - 1,)
    assert len(next(choices(plain(range(64), [1] * 64), (1 << 64) - 1, 32)).sets) <= 12_870


@pytest.mark.parametrize(
    ("cards", "value"),
    [
        ((), 1),
        ((0,), 3),
        ((0, 1), 2),
        ((0, 4), 4),
        ((0, 1, 2), 2),
        ((0, 1, 2, 3), 1),
        ((0, 1, 2, 3, 4), 2),
        ((0, 1, 4, 5), 2),
        (tuple(EIGHT), 0),
    ],
)
def test_bubble(cards, value):
    assert bubble(plain(EIGHT), sum(1 << card for card in cards)) == value
