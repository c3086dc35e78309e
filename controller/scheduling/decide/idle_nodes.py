"""Which nodes could meet the claims of a pod if none of their devices were in use, found by search.

Called by `why_refused`. Columns (`IdleDevices`) say how many devices a node could give to each
request. Whether these may be given together (links, NUMA nodes, constraints, shared counters,
several requests) is found by a search on each node alone, emptied. Nodes that no rule distinguishes
share one search, and its result is valid until devices are published again. Pure.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from controller.scheduling.allocation.constraints import value_of
from controller.scheduling.allocation.errors import AllocatorError, SelectorOverBudget
from controller.scheduling.allocation.prefilter import RequestColumns
from controller.scheduling.allocation.request import AllocationInput
from controller.scheduling.allocation.resolved import ResolvedRequest
from controller.scheduling.decide.node_search import NodeSearch
from controller.scheduling.decide.pre_score import Wanted, arranging_of
from controller.scheduling.decide.problems import inputs_of
from controller.scheduling.decide.scheduling_request import Options, SchedulingRequest
from controller.scheduling.decide.searched_nodes import digest_of_problem
from controller.scheduling.incremental.changes import Shared
from controller.scheduling.incremental.derived_column import LogReader
from controller.scheduling.incremental.digests import digest_of_text
from controller.scheduling.incremental.growth import grown
from controller.scheduling.inventory.emptied import emptied
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import Device
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.resource import DeviceConstraint

_KEPT: Final = 64
"""Problems whose verdicts are cached."""
_SEARCHED: Final = 32
"""Kinds of nodes that one refusal searches; the next refusal continues with others."""
_STEPS: Final = 4_096
"""Limit of the search on one node, in steps; without an answer by then there is none."""
_MOST_KINDS: Final = 1 << 12
"""Kinds of nodes in use; beyond this many, all nodes are judged again."""
_FEW: Final = 512
"""Up to this many changed devices, judge only their nodes again."""
_UNKNOWN: Final = -1
AS_ASKED: Final = "as asked"
"""The form of the request itself, for `fits`."""


class Verdict(Enum):
    """Result of a search on a node with idle devices."""

    COULD = "could"
    NEVER = "never"
    GIVEN_UP = "given up"
    """It took too many steps."""


class IdleNodes:
    """The answers for one refused pod.

    `problems`: its claims without an allocation, managed ones and those of other drivers; `wanted`:
    all their requests.
    """

    def __init__(
        self,
        inventory: Inventory,
        request: SchedulingRequest,
        options: Options,
        problems: Sequence[AllocationInput],
        wanted: Wanted,
    ) -> None:
        self._inventory = inventory
        self.request = replace(request, masked_devices=frozenset())
        self.options = replace(options, search_steps=min(options.search_steps, _STEPS), attempt=None)
        self._problems = problems
        self._wanted = wanted
        self._codes = [column.idle().codes for _, columns in wanted for column in columns]

    @property
    def needs_search(self) -> bool:
        """Whether the numbers of devices alone cannot tell."""
        if len(self._wanted) != 1:
            return bool(self._wanted)
        ((group, columns),) = self._wanted
        return (
            any(view.constraints or view.all_devices for view in group.alternatives)
            or any(map(self._is_divided, columns))
            or (not self.options.first_fit and bool(self._arranging()))
        )

    def could(self, among: Bools) -> Bools:
        """Return those of the nodes that could meet all claims; also those that are not known yet.

        Raises SliceSpent.
        """
        known = self._known
        kinds = self._kinds(among)
        numbers = np.unique(kinds[among]).tolist()
        unknown = [number for number in numbers if (number, AS_ASKED) not in known.verdicts]
        for number in unknown[:_SEARCHED]:
            row = int(np.flatnonzero(among & (kinds == number))[0])
            self.fits(row, self.request, AS_ASKED)
        never = [
            number
            for (number, form), verdict in known.verdicts.items()
            if form == AS_ASKED and verdict is Verdict.NEVER
        ]
        found: Bools = among & ~np.isin(kinds, never)
        return found

    def different(self, among: Bools, most: int) -> list[int]:
        """Return the row of one node of each kind, at most `most`: those with the most devices first."""
        (_, (column, *_)), *_ = self._wanted
        rows = np.flatnonzero(among)
        order = np.lexsort((self._inventory.nodes.rank[rows], -column.idle().per_node[rows]))
        rows = rows[order]
        _, first = np.unique(self._kinds(among)[rows], return_index=True)
        return [int(row) for row in rows[np.sort(first)[:most]]]

    def fits(
        self, row: int, request: SchedulingRequest, form: Hashable, *, vendor_rules: bool = True
    ) -> Verdict | None:
        """Return whether a node could meet a form of the request; None: not known yet.

        `form`: equal for equal changes of the request; the verdict is kept under it. Raises
        SliceSpent.
        """
        known = self._known
        key = int(known.kind[row]), form
        meter = self._inventory.verdicts.meter()
        if key not in known.verdicts and (verdict := self._search(row, request, vendor_rules=vendor_rules)) is not None:
            known.verdicts[key] = verdict
            if meter is not None:
                meter.spend()
        return known.verdicts.get(key)

    # -- one node ----------------------------------------------------------------------------------

    def _search(self, row: int, request: SchedulingRequest, *, vendor_rules: bool) -> Verdict | None:
        """Search the node, emptied. Raises SliceSpent; the next turn continues where this one stopped."""
        budget, meter = self._inventory.verdicts.budget, self._inventory.verdicts.meter()
        begun = self._known.begun
        if row not in begun:
            begun.clear()
            begun[row] = emptied(self._inventory, row)
            if meter is not None:
                meter.spend()
        alone = begun[row]
        if alone is None:
            return None
        options = self.options if vendor_rules else replace(self.options, first_fit=True)
        with alone.verdicts.within(budget):
            try:
                managed, foreign = inputs_of(alone, request, options)
                search = NodeSearch(alone, request, options, managed=managed, foreign=foreign, headroom=None)
                return _searched(search)
            except (AllocatorError, SelectorOverBudget):
                return None

    def _kinds(self, among: Bools) -> Ints:
        """Return the number of the kind of each node, up to date for these. Shape (nodes.size,).

        Raises SliceSpent; the next turn continues where this one stopped.
        """
        known, meter = self._known, self._inventory.verdicts.meter()
        kinds: Ints = known.kind[: len(among)]
        for row in np.flatnonzero(among & (kinds == _UNKNOWN)).tolist():
            kinds[row] = known.numbers.setdefault(self._likeness(row), len(known.numbers))
            if meter is not None:
                meter.spend()
        return kinds

    def _likeness(self, row: int) -> Hashable:
        """Return a key that is equal for nodes whose searches have equal results: layouts and,
        device by device, what selectors, capacities, counters and constraints see of them.
        """
        if any(column.idle().anywhere for _, columns in self._wanted for column in columns):
            return row  # its labels decide which network-attached devices it can use
        layouts = self._inventory.layouts
        numbers = tuple([int(layouts.numbers(driver)[row]) for driver in sorted(layouts.drivers())])
        values = _Values(self._read)
        devices = self._inventory.devices
        of_devices = []
        for at in self._inventory.rows_of(row).tolist():
            device = devices.device(at)
            counters = device.spec.consumes_counters
            of_devices.append(
                (
                    int(devices.kind[at]),
                    device.id if device.taints else device.is_part,  # selectors do not judge what is tainted
                    tuple([int(codes[at]) for codes in self._codes]),
                    tuple(values.of(device)),
                    msgspec.json.encode(counters) if counters else b"",
                )
            )
        return digest_of_text(repr((numbers, of_devices)))

    def _is_divided(self, column: RequestColumns) -> bool:
        """Return whether a device that could be given draws on shared counters, or is a part of a card."""
        idle, divided = column.idle(), self._inventory.devices.divided
        return idle.kept("divided", lambda: bool(divided[idle.possible].any()))

    def _arranging(self) -> frozenset[str]:
        return arranging_of(self._inventory, self.request.policies, self._wanted)

    @cached_property
    def _read(self) -> "list[_Read]":
        """The attributes that constraints read: each once, except where requests see different values."""
        found = {
            (name, id(view) if name in view.derived else None): _Read(name, view, problem.features.list_type_attributes)
            for problem in self._problems
            for view in problem.views
            for number in view.constraints
            for name in (_attribute(view.claim.spec.devices.constraints[number]),)
        }
        return [*found.values()]

    @cached_property
    def _known(self) -> "_Known":
        options = self.options
        key = digest_of_problem(self.request, self._problems), options.managed, options.first_fit, options.gates
        cache = self._inventory.derived(_Cache, _Cache).by_problem
        found = cache.get(key, self._inventory.verdicts.account, lambda: _Known(self._inventory))
        found.refresh()
        return found


def _searched(search: NodeSearch) -> Verdict:
    """Search the one node there is. Raises AllocatorError, SelectorOverBudget, SliceSpent."""
    if search.on(0) is not None:
        return Verdict.COULD
    return Verdict.GIVEN_UP if search.exhausted else Verdict.NEVER


class _Read(NamedTuple):
    """An attribute that constraints read, as this request sees it."""

    name: str
    view: ResolvedRequest
    lists: bool


def _attribute(constraint: DeviceConstraint) -> str:
    return constraint.match_attribute or constraint.distinct_attribute or ""


class _Values:
    """The values of attributes in constraints, numbered by their first appearance on a node: it
    only counts which devices agree.
    """

    def __init__(self, read: Iterable[_Read]) -> None:
        self._numbers: list[tuple[_Read, dict[Hashable, int]]] = [(each, {}) for each in read]

    def of(self, device: Device) -> Iterator[Hashable]:
        for (name, view, lists), numbers in self._numbers:
            try:
                value = value_of(name, view, device, lists=lists)
            except AllocatorError:
                yield device.id
                continue
            if value is None or not value[1]:
                yield value is None
                continue
            kind, elements = value
            yield tuple(sorted([numbers.setdefault((kind, each), len(numbers)) for each in elements]))


class _Known:
    """What is known for one problem.

    `kind`: int64 by row of the node, the number of its kind; `verdicts`: by that number and the
    form of the request.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._published = LogReader(inventory.devices.structure)
        self._relabelled = LogReader(inventory.nodes.changes)
        self._node: Ints = np.zeros(0, dtype=np.int64)
        self.kind: Ints = np.zeros(0, dtype=np.int64)
        self.numbers: dict[Hashable, int] = {}
        self.verdicts: dict[tuple[int, Hashable], Verdict] = {}
        self.begun: dict[int, Inventory | None] = {}
        """Row of the node that was searched last → the node emptied, with what an unfinished search found."""

    def refresh(self) -> None:
        """Forget the kinds of nodes that changed, or whose devices were published again."""
        devices, nodes = self._inventory.devices, self._inventory.nodes
        self.kind = grown(self.kind, nodes.size, _UNKNOWN)
        if self._published.is_current and self._relabelled.is_current:
            return
        self.begun.clear()
        rows, relabelled = self._published.take(), self._relabelled.take()
        if rows is None or relabelled is None or len(rows) > _FEW or len(self.numbers) > _MOST_KINDS:
            self._forget()
        else:
            before = self._node[rows[rows < len(self._node)]]
            touched = np.concatenate((before, devices.node[rows]))
            self.kind[relabelled] = self.kind[touched[touched >= 0]] = _UNKNOWN
            if (touched < 0).any():  # any node may reach these devices
                self._forget()
        self._node = devices.node[: devices.size].copy()

    def _forget(self) -> None:
        self.kind[:] = _UNKNOWN
        if len(self.numbers) > _MOST_KINDS:
            self.numbers.clear()
            self.verdicts.clear()


class _Cache:
    def __init__(self, _inventory: Inventory) -> None:
        self.by_problem: Shared[_Known] = Shared(_KEPT)
