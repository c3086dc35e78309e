"""Recent history: allocations and releases of each card, and each vendor's utilisation over time.

In memory, bounded, lost with the process. Fed by `Source.on_claim` and by a tick every `INTERVAL`
seconds; read by the pages of a card and the overview. In: claims old and new. Out: `TimelineEvent`s
and `Sample`s, oldest first.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from msgspec import Struct

from controller.dashboard.summary import allocated_share
from controller.views.overview import Packing
from hami_dra.api.resource import ResourceClaim

T = TypeVar("T")
INTERVAL: Final = 15.0
"""Seconds between samples."""
MOST_SAMPLES: Final = 480
"""Two hours of all samples, and a day of every twelfth."""
_EVERY: Final = 12
MOST_OF_CARD: Final = 50
MOST_CARDS: Final = 5_000
"""Most cards with a history; beyond that, the cards with the oldest last event lose theirs."""


class TimelineEvent(Struct, frozen=True):
    at: datetime
    taken: bool
    """False: released."""
    namespace: str
    claim: str
    pod: str


class Sample(Struct, frozen=True):
    """One vendor's cards at one moment."""

    at: datetime
    allocated: float
    """Share of the capacity of usable cards, 0.0 to 1.0."""
    free_cards: int


class _Series(Generic[T]):
    """Values over time: the latest two hours as they came, a day with one in three minutes."""

    def __init__(self) -> None:
        self._recent: deque[T] = deque(maxlen=MOST_SAMPLES)
        self._long: deque[T] = deque(maxlen=MOST_SAMPLES)
        self._number = 0

    def append(self, value: T) -> None:
        if len(self._recent) == MOST_SAMPLES:
            if self._number % _EVERY == 0:
                self._long.append(self._recent[0])
            self._number += 1
        self._recent.append(value)

    def all(self) -> list[T]:
        return [*self._long, *self._recent]


class History:
    def __init__(self, most_cards: int = MOST_CARDS) -> None:
        self.since = datetime.now(UTC)
        self._most = most_cards
        self._cards: OrderedDict[str, deque[TimelineEvent]] = OrderedDict()
        self._samples: dict[str, _Series[Sample]] = {}
        self._pending: _Series[tuple[datetime, int]] = _Series()

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        before, after = ({each.device_id for each in claim.results} if claim else set() for claim in (old, new))
        if before == after:
            return
        at = datetime.now(UTC)
        for claim, devices in ((old, before - after), (new, after - before)):
            if claim is None:
                continue
            for device in sorted(devices):
                self._note(device, _happening(at, claim, taken=claim is new))

    def of_card(self, device: str) -> Sequence[TimelineEvent]:
        """Newest first."""
        return list(reversed(self._cards.get(device, ())))

    def sample(self, packing: Iterable[Packing], pending: int = 0, at: datetime | None = None) -> None:
        """Record one moment. `pending`: number of pods that wait."""
        moment = at or datetime.now(UTC)
        self._pending.append((moment, pending))
        for each in packing:
            sample = Sample(moment, allocated_share(each), each.free_cards)
            self._samples.setdefault(each.driver, _Series()).append(sample)

    def pending(self) -> Sequence[tuple[datetime, int]]:
        """Return the number of pods that waited, oldest first."""
        return self._pending.all()

    def of_driver(self, driver: str) -> Sequence[Sample]:
        """Oldest first."""
        found = self._samples.get(driver)
        return found.all() if found is not None else ()

    def _note(self, device: str, happening: TimelineEvent) -> None:
        events = self._cards.get(device)
        if events is None:
            events = self._cards[device] = deque(maxlen=MOST_OF_CARD)
            if len(self._cards) > self._most:
                self._cards.popitem(last=False)
        events.append(happening)
        self._cards.move_to_end(device)


def _happening(at: datetime, claim: ResourceClaim, *, taken: bool) -> TimelineEvent:
    users = [each.name for each in claim.status.reserved_for if each.resource == "pods"]
    return TimelineEvent(at, taken, claim.metadata.namespace, claim.metadata.name, users[0] if users else "")
