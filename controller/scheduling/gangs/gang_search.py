"""Decide all members of a gang at once: all of them find a place, or none does. Pure.

A `GangSearch` works in portions. Between two portions the members that have a place stay assumed,
so the caller may let the event loop run but must make no other decision; it either goes on with
`advance`, or gives up with `close`.
"""

from collections.abc import Callable
from typing import Final

from controller.scheduling.decide.answers import Decision, Unfinished, Unschedulable, without_trace
from controller.scheduling.decide.decision import decide_slice
from controller.scheduling.decide.scheduling_request import Options, SchedulingRequest
from controller.scheduling.gangs.gang_answers import GangAnswer, GangDecision, GangUnschedulable
from controller.scheduling.gangs.gang_request import GangRequest
from controller.scheduling.gangs.trial_assumptions import Trial
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.selector_budget import SliceSpent

STEPS: Final = 2_000
"""Decisions about single members before the gang is given up."""


def decide_gang(inventory: Inventory, request: GangRequest, options: Options, *, steps: int = STEPS) -> GangAnswer:
    """Return a place for at least `least` members at once, or why there is none.

    Afterwards the inventory is as before; the caller assumes the answer in the same synchronous
    step. Under a selector budget (`inventory.verdicts.within`) it may return `Unfinished`: call it
    again then; evaluations so far are cached, but the members are placed from the beginning. A
    `GangSearch` goes on where it stopped.
    """
    search = GangSearch(inventory, request, options, steps=steps)
    try:
        return search.advance()
    finally:
        search.close()


class GangSearch:
    """One decision about a gang, in portions."""

    def __init__(self, inventory: Inventory, request: GangRequest, options: Options, *, steps: int = STEPS) -> None:
        self._inventory = inventory
        self._request = request
        self._options = options
        self._most_steps = steps
        self._steps = 0
        self._trial = Trial(inventory)
        self._next = 0
        self._placed: list[tuple[SchedulingRequest, Decision]] = []
        self._left: list[tuple[SchedulingRequest, Unschedulable]] = []

    def advance(self, pause: Callable[[], bool] = lambda: False) -> GangAnswer:
        """Go on until there is an answer, or until `pause()` is true between two members.

        Returns `Unfinished` where the search is to be continued; members placed so far stay assumed
        then. With any other answer everything is taken back.
        """
        members = self._request.members
        while self._next < len(members):
            member = members[self._next]
            self._trial.lift(member.pod)
            answer = decide_slice(self._inventory, member, self._options)
            if isinstance(answer, Unfinished):
                return answer
            self._steps += 1
            self._next += 1
            answer = without_trace(answer)
            if isinstance(answer, Unschedulable):
                self._left.append((member, answer))
                if len(members) - len(self._left) < self._request.least:
                    return self._refusal()
                continue
            self._trial.assume(member.pod, answer)
            self._placed.append((member, answer))
            if self._next < len(members) and pause():
                return Unfinished(SliceSpent())
        self.close()
        return GangDecision(tuple(self._placed), tuple(self._left), steps=self._steps)

    def close(self) -> None:
        """Take back what is assumed. Idempotent; to be called where the search is not continued."""
        self._trial.close()

    def _refusal(self) -> GangUnschedulable:
        self.close()
        member, refusal = self._left[-1]
        total, found = len(self._request.members), len(self._placed)
        return GangUnschedulable(
            f"{found} of {total} members fit: {refusal.message}", refusal, member.pod.key, found, steps=self._steps
        )
