"""What becomes of a unit that has no place yet."""

import math

from msgspec import Struct
from msgspec.structs import replace

from controller.reconcile.runtime import messages


class Waits(Struct, frozen=True):
    """The unit waits."""

    until: float = math.inf
    """When to look again, in seconds of the monotonic clock."""
    why: str = ""
    said: messages.Message | None = None
    """To be said of it now."""
    keeps_gate: bool = True
    """False: it waits as any unit without room."""
    review: float = math.inf
    """When to look again at it or an equal unit."""


def both(first: Waits | None, second: Waits | None) -> Waits | None:
    """Return the second, with the review of the first if that is sooner."""
    if first is None or second is None:
        return first or second
    return replace(second, review=min(first.review, second.review))
