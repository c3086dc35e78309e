"""The decision points of a search: which alternative, which devices.

Created and driven by `search.Search`: `advance` makes the next choice, `next` opens the decision
after it, `retract` undoes the choice because nothing after it worked. No recursion, so the length
of claims is not limited by the stack.

`exceeded` is upstream's special failure: the claim would hold more than 32 results. It ends every
choice of devices before it in the claim at once, up to an alternative that needs fewer.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from controller.allocation.allocating import Taken
from controller.allocation.candidates import Candidate
from controller.allocation.resolved import RequestGroup, ResolvedRequest
from controller.inventory.model import Device

if TYPE_CHECKING:
    from controller.allocation.search import Search


class Frame(Protocol):
    claim_index: int
    exceeded: bool

    def advance(self) -> bool:
        """Make the first or next choice. Returns False if there is none left, and nothing is held."""

    def next(self) -> "Frame | None":
        """Return the decision after this choice, None after the last."""

    def retract(self, *, exceeded: bool) -> None:
        """Undo the choice. `exceeded`: whether too many results are why nothing after it worked."""


class Alternatives:
    """A `firstAvailable` request: one subrequest after the other."""

    def __init__(self, search: "Search", group: RequestGroup) -> None:
        self._search = search
        self._group = group
        self._rank = -1
        self.claim_index = group.alternatives[0].claim_index
        self.exceeded = True

    def advance(self) -> bool:
        self._rank += 1
        return self._rank < len(self._group.alternatives)

    def next(self) -> Frame:
        return self._search.open(self._group.alternatives[self._rank])

    def retract(self, *, exceeded: bool) -> None:
        self.exceeded = self.exceeded and exceeded


class AllDevices:
    """A request for all devices: no choice, only whether each of them can be taken."""

    def __init__(self, search: "Search", view: ResolvedRequest) -> None:
        self._search = search
        self._view = view
        self._taken: list[Taken] = []
        self._tried = False
        self.claim_index = view.claim_index
        self.exceeded = False

    def advance(self) -> bool:
        if self._tried:
            return False
        self._tried = True
        search, view = self._search, self._view
        candidates = search.candidates.all_of(view)
        # As upstream: a request for all devices needs at least one device.
        if not candidates:
            return False
        if not search.room_for_results(view):
            self.exceeded = True
            return False
        devices = [candidate.device for candidate in candidates]
        # A device that the chooser leaves out is refused, and "all" cannot do without it.
        if len(search.chooser.order(view, devices, search.held.tentative)) < len(devices):
            return False
        for candidate in candidates:
            taken = search.take_all(view, candidate)
            if taken is None:
                self._release()
                return False
            self._taken.append(taken)
        return True

    def next(self) -> Frame | None:
        return self._search.enter(self.claim_index, self._view.request_index + 1)

    def retract(self, *, exceeded: bool) -> None:
        self._release()
        self.exceeded = exceeded

    def _release(self) -> None:
        while self._taken:
            self._search.held.release(self._taken.pop())


class ExactCount:
    """A request by count: the chooser's sets, or else ascending combinations in its order.

    Combinations are made depth first. `_positions` holds the index at which each depth continues.
    For two of the devices a, b and c:

        taken []   positions [0]      take a
        taken [a]  positions [1, 1]   take b: the set {a, b}
        retract: b is released
        taken [a]  positions [1, 2]   take c: the set {a, c}
        retract: c is released
        taken [a]  positions [1, 3]   none left: a is released
        taken []   positions [1]      take b
        taken [b]  positions [2, 2]   take c: the set {b, c}
    """

    def __init__(self, search: "Search", view: ResolvedRequest, before: "ExactCount | None") -> None:
        self._search = search
        self._view = view
        self._taken: list[Taken] = []
        self.claim_index = view.claim_index
        self.exceeded = not search.room_for_results(view)
        self._entries: Sequence[Candidate] = ()
        self._sets: Iterator[Sequence[Candidate]] | None = None
        self._in_upstream_order = False
        self._positions: list[int] = [0]
        """Index at which each depth continues, one for each chosen device and one for the next."""
        self._failed: list[set[Hashable]] = [set()]
        """Kinds of device without a solution, at the same depths."""
        self._failed_sets: set[Hashable] = set()
        if not self.exceeded:
            self._ask_chooser(before)

    def _ask_chooser(self, before: "ExactCount | None") -> None:
        search, view = self._search, self._view
        entries = search.candidates.of(view)
        eligible = [
            candidate.device
            for candidate in entries
            if candidate.error is None and search.held.available(view, candidate)
        ]
        ordered = search.chooser.order(view, eligible, search.held.tentative)
        if ordered is eligible:
            self._in_upstream_order = True
            self._entries = entries
            # Equal requests: {a, b} then {c, d} is no other solution than {c, d} then {a, b},
            # so this one starts at the first device of the one before.
            if before is not None and before.is_twin_of(view):
                self._positions = [before.first_position]
        else:
            # Devices that cannot be judged come last: an order other than upstream's is no reason
            # to reach them earlier.
            by_device = {candidate.device: candidate for candidate in entries}
            self._entries = [by_device[device] for device in ordered] + [
                candidate for candidate in entries if candidate.error is not None
            ]
        sets = search.chooser.sets(view, ordered, view.count, search.held.tentative)
        if sets is not None:
            self._sets = self._read_sets(sets)

    def is_twin_of(self, view: ResolvedRequest) -> bool:
        """Return whether the requests differ in nothing, so that their devices may be swapped: only
        ascending choices are tried.
        """
        own = self._view
        return (
            self._in_upstream_order
            and self._search.prunes
            and self._sets is None
            and own.claim_index == view.claim_index
            and own.shape_index == view.shape_index
            and own.constraints == view.constraints
            and own.count == view.count
        )

    @property
    def first_position(self) -> int:
        return self._positions[0] - 1

    def advance(self) -> bool:
        if self.exceeded:
            return False
        return self._next_combination() if self._sets is None else self._next_set(self._sets)

    def next(self) -> Frame | None:
        view = self._view
        before = self if view.name == view.parent_name else None
        return self._search.enter(self.claim_index, view.request_index + 1, before)

    def retract(self, *, exceeded: bool) -> None:
        # The claim has too many results: no other devices for this request can change their number.
        if exceeded:
            self.exceeded = True
            self._release()
        elif self._sets is None:
            self._drop_last()
        else:
            self._failed_sets.add(self._kinds([taken.candidate for taken in self._release()]))

    def _next_combination(self) -> bool:
        while len(self._taken) < self._view.count:
            if self._take_next():
                continue
            if not self._taken:
                return False
            self._drop_last()
        return True

    def _take_next(self) -> bool:
        """Take one more device, at or after the index of this depth."""
        search, view, entries = self._search, self._view, self._entries
        depth = len(self._taken)
        failed = self._failed[depth]
        missing = view.count - depth
        for position in range(self._positions[depth], len(entries)):
            candidate = entries[position]
            if candidate.error is not None:
                # Upstream ends the search when it reaches a device that it cannot judge; whether it
                # reaches this one depends on the devices before it.
                if search.held.available(view, candidate):
                    search.defer_error(candidate.error)
                continue
            # Too few devices are left for the rest of the set, and none of them has an error to
            # report.
            too_few = search.prunes and len(entries) - position < missing
            if too_few and all(candidate.error is None for candidate in entries[position:]):
                return False
            # An equal device failed at this depth: with this one the search would go the same way.
            if failed and search.kind(candidate) in failed:
                search.skip()
                continue
            # The quota must cover this device and the cheapest of the rest; a later, cheaper device
            # may do.
            if missing > 1 and not search.affords_set(view, candidate, entries[position + 1 :], missing - 1):
                continue
            taken = search.take(view, candidate)
            if taken is not None:
                self._positions[depth] = position + 1
                self._positions.append(position + 1)
                self._failed.append(set())
                self._taken.append(taken)
                return True
        return False

    def _drop_last(self) -> None:
        """Release the device chosen last; its kind has no solution at this depth."""
        self._positions.pop()
        self._failed.pop()
        taken = self._taken.pop()
        self._search.held.release(taken)
        self._failed[-1].add(self._search.kind(taken.candidate))

    def _next_set(self, sets: Iterator[Sequence[Candidate]]) -> bool:
        search, view = self._search, self._view
        while True:
            candidates = next(sets, None)
            # No set is left. A device that cannot be judged is in none of them; upstream would have
            # reached it, and ended the search there.
            if candidates is None:
                for candidate in self._entries:
                    if candidate.error is not None and search.held.available(self._view, candidate):
                        search.defer_error(candidate.error)
                return False
            # A set of the same kinds failed: {a, b} fails like {c, d} if a equals c and b equals d.
            if self._failed_sets and self._kinds(candidates) in self._failed_sets:
                search.skip(len(candidates))
                continue
            # A set is taken whole or not at all.
            for candidate in candidates:
                taken = search.take(view, candidate)
                if taken is None:
                    self._release()
                    break
                self._taken.append(taken)
            else:
                return True

    def _read_sets(self, sets: Iterable[Sequence[Device]]) -> Iterator[Sequence[Candidate]]:
        by_device = {candidate.device: candidate for candidate in self._entries}
        for devices in sets:
            assert len(set(devices)) == self._view.count, "the chooser gave a set of the wrong size"
            yield [by_device[device] for device in devices]

    def _kinds(self, candidates: Sequence[Candidate]) -> Hashable:
        return frozenset(Counter(self._search.kind(candidate) for candidate in candidates).items())

    def _release(self) -> list[Taken]:
        released = []
        while self._taken:
            taken = self._taken.pop()
            self._search.held.release(taken)
            released.append(taken)
        return released
