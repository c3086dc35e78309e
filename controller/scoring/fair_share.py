"""The node policy `fair-share`: do not strand cards, do not break cards, then fewest cards left.
Pure; arrays in, costs out.

Formula and constants: docs/design/packing.md. Cards are counted in millionths (`roles.WHOLE_CARD`), a
card's use is the larger of its shares of memory and of cores; so cards of different sizes, several
vendors and nodes without memory figures need no rule of their own. Called by `scoring.ranking`.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental.saturation import MOST
from controller.inventory.roles import WHOLE_CARD
from controller.scoring.policies import Packing
from hami_dra.api.arrays import Floats, Ints

_EIGHT: Final = 8.0
"""Number of cards that the weight `left` refers to."""
_CPU_UNIT: Final = 128_000.0
"""Millicores."""
_CPU_WEIGHT: Final = 0.05
_ENDLESS: Final = 1e30


class UsableCapacity(Struct, frozen=True):
    """The amounts of one resource on nodes. Shape (nodes,), int64; a node that does not declare
    what it offers has `MOST`.
    """

    offered: Ints
    left: Ints

    def after(self, taken: int) -> "UsableCapacity":
        return UsableCapacity(self.offered, self.left - taken)

    def cards_per_unit(self, cards: Ints, theta: float) -> Floats:
        """Return how many cards one unit of the resource feeds: `cards / (theta x offered)`;
        endless if unknown.

        8 cards and 128 CPU, of which a card's fair share is 0.5 x 16 = 8 CPU: one CPU feeds an
        eighth of a card.

        >>> cpu = UsableCapacity(np.array([128]), np.array([128]))
        >>> cpu.cards_per_unit(np.array([8]), 0.5).tolist()
        [0.125]
        """
        feeds: Floats = np.full(cards.shape, _ENDLESS)
        known = (self.offered > 0) & (self.offered < MOST)
        np.divide(cards, theta * self.offered, out=feeds, where=known)
        return feeds


class CardTotals(Struct, frozen=True):
    """Nodes at one moment; arrays of shape (nodes,)."""

    cards: Ints
    """Number of cards."""
    free: Ints
    """Sum of the free parts of the cards, in millionths."""
    partial: Ints
    """Sum of the free parts of cards that are neither idle nor full, in millionths."""
    cpu: UsableCapacity
    memory: UsableCapacity


def stranded(state: CardTotals, cpu: Floats, memory: Floats) -> Floats:
    """Return the cards' worth that is free and cannot be used for lack of CPU or memory. Shape
    (nodes,).

    `cpu`, `memory`: number of cards that a unit of each feeds (`UsableCapacity.cards_per_unit`).
    Four free cards, 16 CPU left at 8 a card, memory for all: two cards are stranded.

    >>> one = np.array([1])
    >>> cpu, memory = UsableCapacity(128 * one, 16 * one), UsableCapacity(one, one)
    >>> state = CardTotals(8 * one, 4_000_000 * one, 0 * one, cpu, memory)
    >>> stranded(state, np.array([0.125]), np.array([8.0])).tolist()
    [2.0]
    """
    free = state.free / WHOLE_CARD
    fed = np.minimum(state.cpu.left * cpu, state.memory.left * memory)
    found: Floats = np.maximum(free - np.maximum(fed, 0.0), 0.0)
    return found


class Cost(Struct, frozen=True):
    """Cost in cards; lower is better. Shape (nodes,)."""

    stranded: Floats
    """Cards' worth that the pod would strand; below 0 if it frees some."""
    broken: Floats
    """Growth of the free parts of used cards."""
    left: Floats
    cpu: Floats

    @property
    def total(self) -> Floats:
        return self.stranded + self.broken + self.left + self.cpu


def cost(before: CardTotals, after: CardTotals, weights: Packing) -> Cost:
    """Return the terms of packing by fair share, see docs/design/packing.md. `after`: with the pod.

    A node of 8 cards and 128 CPU has 4 idle cards and 32 CPU left, so with theta = 0.5 (8 CPU a
    card) nothing is stranded. The pod takes one card and 24 CPU: then 8 CPU are left for 3 cards,
    and 2 of them are stranded. No card is broken open, and `left` has weight 0:

    >>> one = np.array([1])
    >>> memory, offered = UsableCapacity(one, one), 128_000 * one
    >>> cpu, cpu_after = UsableCapacity(offered, 32_000 * one), UsableCapacity(offered, 8_000 * one)
    >>> before = CardTotals(8 * one, 4_000_000 * one, 0 * one, cpu, memory)
    >>> after = CardTotals(8 * one, 3_000_000 * one, 0 * one, cpu_after, memory)
    >>> terms = cost(before, after, Packing(theta=0.5, left=0.0))
    >>> terms.stranded.tolist(), terms.broken.tolist(), terms.left.tolist()
    ([2.0], [0.0], [0.0])
    """
    known = after.cpu.offered < MOST
    feeds = [resource.cards_per_unit(before.cards, weights.theta) for resource in (before.cpu, before.memory)]
    return Cost(
        stranded=stranded(after, *feeds) - stranded(before, *feeds),
        broken=(after.partial - before.partial) / WHOLE_CARD,
        left=weights.left * (after.free / WHOLE_CARD) / _EIGHT,
        cpu=np.where(known, np.maximum(after.cpu.left, 0) * (_CPU_WEIGHT / _CPU_UNIT), 0.0),
    )
