"""Connection quality of two cards as a number, and whether the fast interconnect joins them.

Called by the vendors' rules once per layout. In: lanes, PCIe distance and islands, by position.
Out: tables. Pure.

Source of the numbers: HAMi D/nvidia/calculate_score.go:211-286. The score of a pair is the SUM of
its links: one for the PCIe path, one for the fast link, so four lanes between cards on one switch
are 50 + 400 = 450.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from hami_dra.api.arrays import Bools, Ints

PCIE: Final[Mapping[str, int]] = {"X": 10, "C": 20, "H": 30, "M": 40, "S": 50, "B": 60}
"""Letters of `hami.io/distance`: across CPUs, same CPU, host bridge, several switches, single switch, one board."""
LANE: Final = 100
"""Score of one lane of the fast interconnect."""


class Pairs(Struct, frozen=True, eq=False):
    """Tables by position, shape (n, n), symmetric; zero or False on the diagonal."""

    score: Ints
    linked: Bools
    """True where the fast interconnect joins two cards directly."""

    @property
    def size(self) -> int:
        return len(self.score)


def pairs(lanes: Sequence[Sequence[int]], distance: Sequence[str], group: Sequence[int]) -> Pairs:
    """Return the tables of all pairs.

    `lanes[a][b]`: from a to b, 0 = none; `distance[a][b]`: a letter of PCIE, anything else = not
    known.

    If the two sides report different numbers of lanes, the lower one counts: a pair is as fast as
    its slower direction. (HAMi treats such a pair as not connected at all.) If a card reports no
    lanes at all, two cards of one island (`group`, 0 = none) count as joined by a single lane: a
    link is known to exist, its width is not.
    """
    size = len(lanes)
    each_way: Ints = np.array(lanes, dtype=np.int64).reshape(size, size)
    both_ways = np.minimum(each_way, each_way.T)
    silent: Bools = (each_way == 0).all(axis=1).reshape(size, 1)
    islands: Ints = np.array(group, dtype=np.int64).reshape(size, 1)
    together = (islands == islands.T) & (islands > 0)
    guessed = together & (silent | silent.T)
    both_ways = np.where(guessed, np.maximum(both_ways, 1), both_ways)
    np.fill_diagonal(both_ways, 0)
    path = np.array([[PCIE.get(letter, 0) for letter in row] for row in distance], dtype=np.int64).reshape(size, size)
    np.fill_diagonal(path, 0)
    # If only one side knows the distance, that side counts.
    path = np.where((path == 0) | (path.T == 0), np.maximum(path, path.T), np.minimum(path, path.T))
    return Pairs(score=path + LANE * both_ways, linked=both_ways > 0)
