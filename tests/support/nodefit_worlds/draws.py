"""The random choices of one world, and the vocabulary that its objects share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")
Json = dict[str, Any]

HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
ZONES: Final = ("z1", "z2", "z3")
APPS: Final = ("web", "db", "cache")
TIERS: Final = ("a", "b")
NAMESPACES: Final = ("default", "default", "default", "red-1", "blue-1", "bare")
CSI: Final = "csi.example.com"
OTHER_CSI: Final = "other.example.com"
THEMES: Final = (
    *("affinity", "anti", "symmetric", "spread", "soft"),
    *("ports", "taints", "nodeaffinity", "resources", "resize", "features"),
    *("volumes", "csi", "local", "zonepv", "rwop", "inline", "migrated"),
)
IMAGES: Final = ("app:1", "registry.example.com/team/app", "tool:2", "sha@sha256:" + "a" * 64)


class Draws:
    """Random choices from one seed. `node_names` is set once the nodes are there."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.themes = set(self.some(THEMES, self.one([1, 1, 2, 2, 3])))
        if self.maybe(0.15):
            self.themes.add("soft")
        self.bad = self.maybe(0.12)
        """Whether some of the input is bad."""
        self.node_names: list[str] = []

    def has(self, *themes: str) -> bool:
        return not self.themes.isdisjoint(themes)

    def maybe(self, probability: float) -> bool:
        return self._random.random() < probability

    def one(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def some(self, choices: Sequence[T], number: int) -> list[T]:
        return self._random.sample(choices, min(number, len(choices)))

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def shuffle(self, entries: list[Any]) -> None:
        self._random.shuffle(entries)

    def spoilt(self, probability: float = 0.3) -> bool:
        """Whether to write something bad here."""
        return self.bad and self.maybe(probability)


def labels_of(draws: Draws) -> dict[str, str]:
    labels = {"app": draws.one(APPS), "tier": draws.one(TIERS), "version": draws.one(["v1", "v2"])}
    if draws.maybe(0.15):
        del labels[draws.one(list(labels))]
    return labels
