"""What becomes of a unit that has no place yet."""

import math
from datetime import timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.preemption import seconds_of
from controller.reconcile.preemption.notes import delayed_until
from controller.reconcile.queueing import QueuedUnit, WaitingPods
from controller.reconcile.runtime import Context, messages
from hami_dra.api import names
from hami_dra.api.times import elapsed

_TAKEOVER: Final = 60.0
"""Seconds of a term in which units are refused that waited before."""


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


def delayed(context: Context, waiting: WaitingPods, unit: QueuedUnit, now: float) -> Waits | None:
    """Return that pods are evicted for the unit only later, if so. The longest delay of its pods
    counts, from its first refusal in this term.
    """
    settings = context.settings.preemption
    stated = [request.pod.metadata.annotations.get(names.PREEMPTION_DELAY, "") for request in unit.ready]
    known = [seconds_of(text) for text in stated if text]
    delay = max([each for each in known if each is not None], default=settings.preemption_delay)
    until = waiting.timeouts.runs_out(unit.key, "refusal", now) + delay
    if not now < until:
        return None
    why = "no pod is evicted for it before its preemption delay is over"
    begins = context.clock.wall() + timedelta(seconds=until - now)
    return Waits(until, why, delayed_until(begins), keeps_gate=False)


def refused_since(context: Context, waiting: WaitingPods, unit: QueuedUnit, began: float, now: float) -> float:
    """Return since when the unit waits for room, in seconds of the monotonic clock: since its creation if it
    was refused when this term began, as an earlier leader may have refused it.
    """
    since = waiting.timeouts.runs_out(unit.key, "refusal", now)
    if since > began + _TAKEOVER:
        return since
    wall = context.clock.wall()
    ages = [elapsed(request.pod.metadata.creation_timestamp, wall) for request in unit.ready]
    return min([since, *(now - age.total_seconds() for age in ages if age is not None)])
