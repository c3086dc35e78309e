"""Decisions about gangs that take several turns, so that other pods get theirs in between.

Used by the scheduling cycle of gangs. What a gang has found so far counts in the inventory while
nothing else is decided; at most one gang counts so at a time. Releasing 200 places and taking them
again between two turns would cost as much as about 80 decisions.
"""

from functools import partial
from typing import Final

from controller.reconcile.binding import AssumedPods
from controller.reconcile.queueing import GangAssessment, GangQueue
from controller.reconcile.runtime import Context
from controller.reconcile.scheduling_cycle.collaborators import Deciding
from controller.scheduling.decide import Unfinished
from controller.scheduling.gangs import GangDecision, GangKey, GangRequest, GangSearch, GangUnschedulable

_PORTION: Final = 0.035
"""CPU seconds after which a decision is interrupted, so that other pods get their turn. Releasing
what a large gang holds by then takes up to another 15 ms.
"""


class GangSearches:
    def __init__(self, context: Context, deciding: Deciding, members: GangQueue, assumed_pods: AssumedPods) -> None:
        self._inventory = context.inventory
        self._clock = context.clock
        self._options = deciding.options
        self._gangs = context.informers.gangs
        self._members = members
        self._assumed_pods = assumed_pods
        self._counting: tuple[GangKey, GangSearch] | None = None

    def make_way(self, key: GangKey | None) -> None:
        """Stop counting what another gang has found so far, because this gang, or a single pod
        (None), is decided now, or nothing is decided for a while.
        """
        if self._counting is not None and self._counting[0] != key:
            counted, search = self._counting
            self._counting = None
            search.suspend()
            for pod in self._gangs.members(counted):  # claims may pin them since it began to count
                self._assumed_pods.refresh(pod)

    def is_outdated(self, found: GangAssessment) -> bool:
        """Return whether the gang counts but is no longer what is being decided; its own findings may be the reason."""
        key = found.state.key
        if self._counting is None or self._counting[0] != key:
            return False
        return self._members.remembered(key).searched != _searched(found)

    def decide(self, found: GangAssessment) -> GangDecision | GangUnschedulable:
        """Decide for one turn. Raises SliceSpent: the next turn continues there."""
        remembered = self._members.remembered(found.state.key)
        search, searched = remembered.search, _searched(found)
        if search is None or remembered.searched != searched:
            self.make_way(None)
            search, remembered.spent = GangSearch(self._inventory, _request_of(found), self._options), 0.0
        before = self._clock.cpu()
        answer = search.advance(partial(self._is_over, before + _PORTION))
        remembered.spent += self._clock.cpu() - before
        if isinstance(answer, Unfinished):
            remembered.search, remembered.searched = search, searched
            self._counting = found.state.key, search
            raise answer.cause
        remembered.search, remembered.searched, self._counting = None, None, None
        return answer

    def _is_over(self, until: float) -> bool:
        return self._clock.cpu() >= until


def _searched(found: GangAssessment) -> object:
    return found.signature, found.identity


def _request_of(found: GangAssessment) -> GangRequest:
    members = tuple([member.request for member in found.ready])
    return GangRequest(found.state.key, members, found.least, found.topology, found.settled_nodes)
