"""Histories of single Neuron devices: the same arrivals and departures under our rule and under HAMi's order (the last
free device). What can hold over all of them, what cannot, and why (docs/design/neuron.md).
"""

from functools import cache
from itertools import permutations

import numpy as np
import pytest

from hami_dra.vendors.neuron.rules import block_sizes, singles

SMALL = [(8, False), (8, True)]


def largest(size, free, *, aligned):
    return max(block_sizes(tuple(range(size)), free, aligned=aligned), default=0)


def last_free(free):
    return 1 << (free.bit_length() - 1)


def first_choice(size, free, *, aligned):
    (mask,) = next(singles(tuple(range(size)), free, free, aligned=aligned)).sets
    return mask


@cache
def figures(size, aligned):
    """Return of each state, a mask of free devices: the largest block, and what a single leaves under our rule and HAMi's."""
    states = range(1 << size)
    best = np.array([largest(size, free, aligned=aligned) for free in states])
    ours = np.array([0, *(free & ~first_choice(size, free, aligned=aligned) for free in states[1:])])
    hamis = np.array([0, *(free & ~last_free(free) for free in states[1:])])
    return best, ours, hamis


def largest_of_any_rule(size, free, arrivals, *, aligned):
    """The largest block that any choice of `arrivals` devices can leave: some block is kept, the others lie elsewhere."""
    sizes = block_sizes(tuple(range(size)), free, aligned=aligned)
    room = free.bit_count() - arrivals
    if aligned:
        return max((block for block in sizes if block <= room), default=0)
    return min(max(sizes, default=0), room) if min(max(sizes, default=0), room) > 1 else 0


@pytest.mark.parametrize(("size", "aligned"), [*SMALL, (12, False)])
def test_arrivals_from_any_state_leave_the_largest_block_that_any_rule_could(size, aligned):
    """So no number of singles leaves less than under HAMi's order, whatever was there before."""
    best, ours, hamis = figures(size, aligned)
    for free in range(1 << size):
        state = after_hami = free
        for arrivals in range(1, free.bit_count() + 1):
            state, after_hami = int(ours[state]), int(hamis[after_hami])
            assert best[state] == largest_of_any_rule(size, free, arrivals, aligned=aligned), (bin(free), arrivals)
            assert best[state] >= best[after_hami]


def departures(size, states):
    """Let one of the devices in use become free, each with the same probability. `states`: by history, by state."""
    numbers = np.arange(1 << size)
    shares = states / np.maximum(size - np.bitwise_count(numbers), 1)
    left = np.zeros_like(states)
    for device in range(size):
        used = numbers >> device & 1 == 0
        left[:, numbers[used] | 1 << device] += shares[:, used]
    return left


def arrivals(states, after):
    left = np.zeros_like(states)
    np.add.at(left.T, after[1:], states[:, 1:].T)
    return left


def idle_at_first(size):
    states = np.zeros((1, 1 << size))
    states[0, -1] = 1.0
    return states


def test_over_every_sequence_of_arrivals_and_departures_the_mean_is_never_below_hamis():
    """All sequences of 16 steps on eight devices; at a departure each tenant is as likely to go as another.

    Sequences with the same distributions are counted once.
    """
    size = 8
    best, *rules = figures(size, False)
    ours, hamis = (idle_at_first(size) for _ in rules)
    used = np.array([0])
    for _ in range(16):
        more, fewer = used < size, used > 0
        ours, hamis = (
            np.vstack([arrivals(states[more], after), departures(size, states[fewer])])
            for states, after in zip((ours, hamis), rules, strict=True)
        )
        used = np.concatenate([used[more] + 1, used[fewer] - 1])
        assert (ours @ best - hamis @ best).min() > -1e-9
        _, once = np.unique(np.round(np.hstack([ours, hamis]), 12), axis=0, return_index=True)
        ours, hamis, used = ours[once], hamis[once], used[once]
    assert (ours @ best - hamis @ best).max() > 0.1


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(("size", "aligned"), [*SMALL, (12, False)])
def test_in_the_long_run_the_mean_is_above_hamis(size, aligned, load):
    """`load`: the probability that the next step is an arrival."""
    best, *rules = figures(size, aligned)
    share = np.full(1 << size, load)
    share[0], share[-1] = 0.0, 1.0
    means = []
    for after in rules:
        states, mean = idle_at_first(size), 0.0
        for step in range(120):
            states = arrivals(states * share, after) + departures(size, states * (1 - share))
            mean += (states @ best).item() if step >= 100 else 0.0  # even and odd steps differ
        means.append(mean / 20)
    assert means[0] > means[1]


# --- why not in each single history ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "aligned", "gone", "then"),
    [(12, False, (3, 8, 9, 10, 11), (1, 2, 4, 5)), (16, True, (2, 12, 13, 14, 15), (0, 1, 3, 4, 5, 6, 7))],
)
def test_keeping_the_largest_block_loses_a_history(size, aligned, gone, then):
    """The node is full, five tenants go, one comes, and others go whose devices surround the one that our rule took.

    HAMi's order cuts the block of four at the end. Ours keeps it, which is what the rule is for.
    """
    free = sum(1 << device for device in gone)
    ours, hamis = first_choice(size, free, aligned=aligned), last_free(free)
    after = [largest(size, free & ~taken, aligned=aligned) for taken in (ours, hamis)]
    assert after[0] > after[1]
    later = free | sum(1 << device for device in then)
    at_the_end = [largest(size, later & ~taken, aligned=aligned) for taken in (ours, hamis)]
    assert at_the_end[0] < at_the_end[1]


@pytest.mark.parametrize("size", range(3, 8))
def test_only_hamis_order_and_its_mirror_are_never_behind_it(size):
    """Fill the node: each tenant has one device under HAMi's order and one under the other rule, a permutation.

    When two neighbours under HAMi's order go, these must be neighbours under the other rule, or it is behind. Only two
    permutations keep all neighbours; under both the largest block is HAMi's at every step. So a rule that is never
    behind in any history is never ahead either, and cuts the largest block where HAMi's order does.
    """
    line = tuple(range(size))
    never_behind = [
        other for other in permutations(line) if all(abs(other[one] - other[one + 1]) == 1 for one in line[:-1])
    ]
    assert never_behind == [line, line[::-1]]


def test_on_trainium_too_a_rule_that_is_never_behind_is_never_ahead():
    """The same for eight devices in rows of four: whatever is never behind permutes rows and devices within a row."""
    size, rows = 8, ({0, 1, 2, 3}, {4, 5, 6, 7})
    best, *_ = figures(size, True)
    never_behind = [
        other
        for other in permutations(range(size))
        if {other[0], other[1], other[2], other[3]} in rows and {other[4], other[5], other[6], other[7]} in rows
    ]
    assert len(never_behind) == 2 * 24 * 24
    bits = np.arange(1 << size)
    for other in never_behind[::7]:
        moved = sum((bits >> device & 1) << there for device, there in enumerate(other))
        assert (best[moved] == best).all()
