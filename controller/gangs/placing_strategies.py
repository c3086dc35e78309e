"""Place the members of a gang in one domain: in order, with conflict-directed reordering, and with
shorter prioritized lists. Pure.

Used by `gang_search` for one domain after the other. On success the members have their places on
the trial; otherwise none has.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import Unschedulable
from controller.gangs.gang_members import Bundle, Member
from controller.gangs.member_placements import MemberPlacements, Restriction, most_skipped
from controller.inventory.inventory import Inventory

MOST_MOVES: Final = 4
"""Members that are moved to the front, one after the other, before something else is tried."""


class InOrder:
    """Places the bundles one after the other. `bundles`: the hardest first. `comes_back`: a bundle
    without room is tried again after the others, which may make it fit.
    """

    def __init__(
        self, inventory: Inventory, placements: MemberPlacements, bundles: Sequence[Bundle], *, comes_back: bool
    ) -> None:
        self._comes_back = comes_back
        self._inventory = inventory
        self._placements = placements
        self._bundles = bundles
        self._members = [member for bundle in bundles for member in bundle.members]
        self._most_skipped = max((most_skipped(member.request) for member in self._members), default=0)

    def place(self, allowed: AllowedNodes | None) -> bool:
        """Place the members; return whether all that must have a place. Raises OutOfSteps.

        On failure the member without a place is moved to the front, at most `MOST_MOVES` times, and
        then every prioritized list loses its first alternative. One card that is published whole
        and as two halves, and two members that ask for `[whole, half]` (kubernetes#138765):

            skipped 0   a takes the whole card, b finds nothing; b first: the same, for they are alike
            skipped 1   a and b take a half each
        """
        for skipped in range(self._most_skipped + 1):
            order = [*self._bundles]
            seen: set[tuple[tuple[int, ...], ...]] = set()
            for _ in range(1 + MOST_MOVES):
                kinds = tuple([bundle.kinds for bundle in order])
                if kinds in seen:
                    break
                seen.add(kinds)
                stuck = self._place_all(order, Restriction(allowed, skipped=skipped))
                if stuck is None:
                    return True
                order.remove(stuck)
                order.insert(0, stuck)
        return False

    def _place_all(self, order: Sequence[Bundle], restriction: Restriction) -> Bundle | None:
        """Return the bundle that found no room where too many members have none; all are taken back then."""
        waiting, refused = deque(order), 0
        while waiting:
            bundle = waiting.popleft()
            fits = self._place_bundle(bundle, restriction)
            refused = 0 if fits else refused + 1
            if fits:
                continue
            if not self._comes_back or refused > len(waiting):
                self._placements.clear(self._members)
                return bundle
            for member in reversed(bundle.members):
                self._placements.unplace(member)
            waiting.append(bundle)
        return None

    def _place_bundle(self, bundle: Bundle, restriction: Restriction) -> bool:
        """Place members that share claims; return whether the gang can still be placed.

        The first one chooses the node for all. Where another one does not fit there, the first one
        gets another node. When there is none left, those that fit where the first one would be best
        stay, and the others are left out.
        """
        first, *others = bundle.members
        allowed = restriction.allowed
        while others:
            if self._place_member(first, replace(restriction, allowed=allowed)) is not None:
                break
            for member in others:
                if self._place_member(member, restriction) is not None:
                    break
            else:
                return True
            row = self._inventory.nodes.index_of(self._placements.decisions[first.index].node)
            for member in reversed(bundle.members):
                self._placements.unplace(member)
            allowed = (allowed or everywhere(self._inventory)).without(row)
        for member in bundle.members:
            refusal = self._place_member(member, restriction)
            if refusal is not None and not self._placements.leave(member, refusal):
                return False
        return True

    def _place_member(self, member: Member, restriction: Restriction) -> Unschedulable | None:
        """Return the refusal, or None where the member has a place."""
        answer = self._placements.decide(member, restriction)
        if isinstance(answer, Unschedulable):
            return answer
        self._placements.place(member, answer)
        return None


def everywhere(inventory: Inventory) -> AllowedNodes:
    return AllowedNodes(np.ones(inventory.nodes.size, dtype=np.bool_))
