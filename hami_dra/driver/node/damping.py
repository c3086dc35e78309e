"""Flap damping: a fault counts as soon as it is seen, and is over only after it stayed away for a while.

Used by `hardware`. In: the findings of each check, or that no check was possible. Out: the faults
that count. Pure but for its memory; time is an argument.

Each time a fault returns it stays for twice as long, up to `MOST`; after a card was healthy for
`MEMORY` the count starts again. A flapping card thus changes its slice a few times an hour and not
at every check.

A fault is `lasting` once every check of `confirm` seconds saw it. Healthy checks, and times without
a check, do not count towards these seconds: two glitches of a tool, minutes apart, stay two
glitches. With a check every 10 s and `confirm` = 30 s:

    check at    0      10     20     30     40
    found       fault  fault  fault  fault          lasting from 30 on
    found       fault  well   well   fault  fault   not lasting: the second sighting began at 30
    found       fault  -      -      -      fault   not lasting: unknown between 0 and 40
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from hami_dra.api.hardware import Fault
from hami_dra.kube.backoff import doubled

MOST: Final = 900.0
MEMORY: Final = 3600.0


class Counted(Struct, frozen=True):
    """A fault that counts."""

    fault: Fault
    lasting: bool
    """Every check of the confirm time saw it, so that it is not a glitch of a tool."""


class _Episode(Struct):
    """A fault from its first sighting until it is over; healthy checks may separate several sightings."""

    fault: Fault
    began: float
    seen_since: float
    """First check of the current sighting: all checks since then saw the fault."""
    lasting: bool
    times: int = 1
    interrupted: bool = False
    """No check was possible at some time since the fault was last seen."""
    gone_at: float | None = None
    """Time since which it has not been seen; it still counts."""
    cleared_at: float | None = None
    """Time since which it no longer counts."""


class FlapDamper:
    """Decide which faults count.

    In seconds: `recovery` until a fault that is not seen any more is over, `confirm` until one is
    `lasting`.
    """

    def __init__(self, recovery: float, confirm: float) -> None:
        self._recovery = recovery
        self._confirm = confirm
        self._episodes: dict[str, dict[str, _Episode]] = {}

    def look(self, seen: Mapping[str, Iterable[Fault]], now: float) -> None:
        """Record a check: uuid → faults of the card now. Cards that are not in `seen` were not checked, and stay."""
        for uuid, faults in seen.items():
            episodes = self._episodes.setdefault(uuid, {})
            present = {fault.code: fault for fault in faults}
            for code, fault in present.items():
                self._note(episodes, code, fault, now)
            for code in [code for code in episodes if code not in present]:
                self._miss(episodes, code, now)

    def blind(self) -> None:
        """Record that no check was possible: faults that count still count, and none comes closer to lasting."""
        for episodes in self._episodes.values():
            for episode in episodes.values():
                episode.interrupted = True

    def counted(self, uuid: str) -> tuple[Counted, ...]:
        """Return the faults that count, oldest first: the slice does not depend on the order of a tool."""
        active = [each for each in self._episodes.get(uuid, {}).values() if each.cleared_at is None]
        active.sort(key=lambda each: (each.began, each.fault.code))
        return tuple(Counted(each.fault, each.lasting) for each in active)

    def forget(self, uuid: str) -> None:
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
            # a lasting fault stays lasting: no check found the card healthy in between
            episode.seen_since = now
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
