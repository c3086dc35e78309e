"""The node policy `fair-share`: do not strand cards, do not break cards, then fewest cards left. Pure; arrays in, costs out.

Formula and constants: docs/packing.md. Cards are counted in millionths (`roles.WHOLE_CARD`), a card's use is the larger of its
shares of memory and of cores; so cards of different sizes, several vendors and nodes without memory figures need no rule of
their own. Called by `scoring.ranking`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.inventory.roles import WHOLE_CARD
from controller.scheduling.inventory.saturation import MOST
from controller.scheduling.scoring.packing import Packing
from hami_dra.api.arrays import Floats, Ints

_EIGHT: Final = 8.0
"""Cards that the weight `left` is for."""
_CPU_UNIT: Final = 128_000.0
"""Millicores."""
_CPU_WEIGHT: Final = 0.05
_ENDLESS: Final = 1e30


@dataclass(frozen=True, slots=True)
class UsableCapacity:
    """What nodes have of one resource. Shape (nodes,), int64; a node that does not say what it offers has `MOST`."""

    offered: Ints
    left: Ints

    def after(self, taken: int) -> "UsableCapacity":
        return UsableCapacity(self.offered, self.left - taken)

    def cards_per_unit(self, cards: Ints, theta: float) -> Floats:
        """How many cards one unit of the resource feeds: `cards / (theta x offered)`, endlessly many where nobody knows."""
        feeds: Floats = np.full(cards.shape, _ENDLESS)
        known = (self.offered > 0) & (self.offered < MOST)
        np.divide(cards, theta * self.offered, out=feeds, where=known)
        return feeds


@dataclass(frozen=True, slots=True)
class CardTotals:
    """Nodes at one moment; arrays of shape (nodes,)."""

    cards: Ints
    """How many."""
    free: Ints
    """Sum of what is left of them, in millionths."""
    partial: Ints
    """The same over cards that are neither idle nor full."""
    cpu: UsableCapacity
    memory: UsableCapacity


def totals(free: Ints) -> tuple[Ints, Ints]:
    """(free, partial) of `CardTotals`, from what is left of each card. Shape (nodes, cards) → (nodes,)."""
    return free.sum(axis=-1), np.where(free < WHOLE_CARD, free, 0).sum(axis=-1)


def stranded(state: CardTotals, cpu: Floats, memory: Floats) -> Floats:
    """Cards' worth that is free and cannot be used, for want of CPU or memory. Shape (nodes,).

    `cpu`, `memory`: how many cards a unit of each feeds (`UsableCapacity.cards_per_unit`).
    """
    free = state.free / WHOLE_CARD
    fed = np.minimum(state.cpu.left * cpu, state.memory.left * memory)
    found: Floats = np.maximum(free - np.maximum(fed, 0.0), 0.0)
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """In cards; lower is better. Shape (nodes,)."""

    stranded: Floats
    """Cards' worth that the pod would strand; below 0 where it frees some."""
    broken: Floats
    """By how much the free parts of used cards would grow."""
    left: Floats
    cpu: Floats

    @property
    def total(self) -> Floats:
        return self.stranded + self.broken + self.left + self.cpu


def cost(before: CardTotals, after: CardTotals, weights: Packing) -> Cost:
    """`after`: with the pod. The terms of packing by fair share, see docs/packing.md."""
    known = after.cpu.offered < MOST
    feeds = [room.cards_per_unit(before.cards, weights.theta) for room in (before.cpu, before.memory)]
    return Cost(
        stranded=stranded(after, *feeds) - stranded(before, *feeds),
        broken=(after.partial - before.partial) / WHOLE_CARD,
        left=weights.left * (after.free / WHOLE_CARD) / _EIGHT,
        cpu=np.where(known, np.maximum(after.cpu.left, 0) * (_CPU_WEIGHT / _CPU_UNIT), 0.0),
    )
