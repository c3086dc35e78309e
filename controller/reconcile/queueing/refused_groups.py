"""Groups of refused pods with equal requests, and their pauses. Pure.

Used by `queue`: one pod is tried on behalf of its group.
"""

from typing import Final, NamedTuple

from msgspec import Struct, field

from controller.reasons import ANY, Change
from hami_dra.kube.backoff import doubled

FOREVER: Final = float("inf")


class Rank(NamedTuple):
    """Orders pods: higher priority first, then older, then by name."""

    negative_priority: int
    created: str
    key: str

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


class Pause(Struct):
    """The time after a refusal in which no pod of the group is tried."""

    refusals: int = 0
    """Since a pod of the group was placed: each doubles the pause."""
    start: float = -FOREVER
    """In the future for a group whose decision took long: nothing shortens that time."""
    end: float = -FOREVER
    is_due: bool = False
    """Something happened during the pause that may help: try one pod when it ends."""

    def begin(self, refused_at: float, first: float, most: float) -> None:
        self.refusals += 1
        self.start = refused_at
        self.end = refused_at + doubled(first, self.refusals - 1, most)


class RefusedGroup(Struct):
    """Refused pods of one signature, and the one that is tried for all of them."""

    size: int = 0
    """Number of members."""
    by_rank: list[tuple[Rank, int]] = field(default_factory=list)
    """Heap of (rank, version) of the members, including void ones."""
    representative: str = ""
    """The pod that is tried on behalf of the group."""
    pause: Pause = field(default_factory=Pause)
    due_rank: int = 0
    """Negative priority of its first pod when something happened during the pause."""
    helps: Change = ANY
    """Changes that may make the pods fit."""
    review_at: float = FOREVER
    """When one pod is tried even if nothing happened."""
    review_queued: float = FOREVER
    """Time of the group's entry in the heap of reviews, however often it is refused; others of it are void."""

    @property
    def namespace(self) -> str:
        return self.by_rank[0][0].namespace if self.by_rank else ""
