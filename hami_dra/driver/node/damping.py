"""Faults that come and go, made calm: one counts as soon as it is seen, and is over only when it stayed away for a while.

Used by `hardware`. In: what each look found, and when no look was possible. Out: the faults that count. Pure but for what it
remembers; time is an argument.

A fault that returns stays for twice as long each time, up to `MOST`; a card that was well for `MEMORY` starts from the first
time again. So a card that flaps changes its slice a few times an hour and not at every look.

A fault is `lasting` once every look of `confirm` seconds saw it. Healthy looks, and times in which nobody could look, are no
part of these seconds: two slips of a tool, minutes apart, are two slips. With looks every 10 s and `confirm` = 30 s:

    looks at    0      10     20     30     40
    found       fault  fault  fault  fault          lasting from 30 on
    found       fault  well   well   fault  fault   not lasting: the second sighting began at 30
    found       fault  -      -      -      fault   not lasting: nobody knows what was between 0 and 40
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_dra.api.hardware import Fault
from hami_dra.kube.backoff import doubled

MOST: Final = 900.0
MEMORY: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Counted:
    """A fault that counts."""

    fault: Fault
    lasting: bool
    """Every look of the confirm time saw it, so that it is no slip of a tool."""


@dataclass(slots=True)
class _Episode:
    """A fault from when it is first seen until it is over. It may consist of several sightings with healthy looks between them."""

    fault: Fault
    began: float
    seen_since: float
    """First look of the current sighting: all looks since then saw the fault."""
    lasting: bool
    times: int = 1
    interrupted: bool = False
    """Nobody could look since the fault was last seen."""
    gone_at: float | None = None
    """Not seen since; it still counts."""
    cleared_at: float | None = None
    """It does not count any more."""


class FlapDamper:
    """Seconds: `recovery` until a fault that is not seen any more is over, `confirm` until one is `lasting`."""

    def __init__(self, recovery: float, confirm: float) -> None:
        self._recovery = recovery
        self._confirm = confirm
        self._episodes: dict[str, dict[str, _Episode]] = {}

    def look(self, seen: Mapping[str, Iterable[Fault]], now: float) -> None:
        """Uuid → what speaks against the card now. A card that is not in it was not looked at: nothing changes for it."""
        for uuid, faults in seen.items():
            episodes = self._episodes.setdefault(uuid, {})
            present = {fault.code: fault for fault in faults}
            for code, fault in present.items():
                self._note(episodes, code, fault, now)
            for code in [code for code in episodes if code not in present]:
                self._miss(episodes, code, now)

    def blind(self) -> None:
        """The hardware could not be looked at: what counts goes on to count, and no fault comes nearer to lasting."""
        for episodes in self._episodes.values():
            for episode in episodes.values():
                episode.interrupted = True

    def counted(self, uuid: str) -> tuple[Counted, ...]:
        """Oldest first, so that what is published does not change with the order in which a tool tells it."""
        active = [each for each in self._episodes.get(uuid, {}).values() if each.cleared_at is None]
        active.sort(key=lambda each: (each.began, each.fault.code))
        return tuple(Counted(each.fault, each.lasting) for each in active)

    def forget(self, uuid: str) -> None:
        """The card is not ours to watch any more."""
        self._episodes.pop(uuid, None)

    def _note(self, episodes: dict[str, _Episode], code: str, fault: Fault, now: float) -> None:
        episode = episodes.get(code)
        if episode is None:
            episodes[code] = _Episode(fault, now, now, lasting=self._confirm <= 0)
            return
        if episode.cleared_at is not None:
            episode.times = episode.times + 1 if now - episode.cleared_at < MEMORY else 1
            episode.began = episode.seen_since = now
            episode.cleared_at, episode.lasting = None, False
        elif episode.gone_at is not None:
            episode.times += 1
            episode.seen_since, episode.lasting = now, False
        elif episode.interrupted:
            episode.seen_since = now  # one that was lasting already stays so: nothing says that it was well meanwhile
        episode.fault, episode.gone_at, episode.interrupted = fault, None, False
        episode.lasting = episode.lasting or now - episode.seen_since >= self._confirm

    def _miss(self, episodes: dict[str, _Episode], code: str, now: float) -> None:
        episode = episodes[code]
        if episode.cleared_at is not None:
            if now - episode.cleared_at >= MEMORY:
                del episodes[code]
            return
        if episode.gone_at is None:
            episode.gone_at = now
        hold = doubled(self._recovery, episode.times - 1, max(MOST, self._recovery))
        if now - episode.gone_at >= hold:
            episode.cleared_at, episode.gone_at = now, None
