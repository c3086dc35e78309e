"""Cards that a request could take, for the whole cluster at once: columns of reason codes, updated
incrementally.

Called by `decide` before it searches single nodes. For each shape of request (class, selectors,
capacity, tolerations) one `RequestColumns` is cached: per device row the first reason that rules
the card out (0 = it fits), and per node the number of fitting cards. A decision recomputes only the
rows that changed since the previous one, so its cost does not grow with the cluster.

The result is necessary, not sufficient: constraints, counters and several requests on one card are
left to the search (`search.solve`). It never rules out a card that the search would take.
"""

from collections.abc import Collection, Hashable
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np

from controller.allocation.candidates import blocking_taint
from controller.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED, DeviceEquivalence
from controller.allocation.first_reasons import NEVER, REPLACEABLE, earliest, where
from controller.allocation.idle_devices import IdleDevices
from controller.allocation.mutex import of_parts
from controller.allocation.ownership import Scope
from controller.allocation.request import ResolvedRequest
from controller.allocation.selectors import Selector, over_budget
from controller.allocation.use_lists import refused_by_lists
from controller.cluster.incremental.changes import LruCache
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.growth import grown
from controller.inventory.columns import NOWHERE
from controller.inventory.device_states import DeviceStates, Looks
from controller.inventory.inventory import Inventory
from controller.inventory.selector_budget import OverBudget
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import MUTEX_CONFLICT, NUMBER
from hami_dra.vendors.preference_keys import NO_PREFERENCES, RequestPreferences
from hami_dra.vendors.protocol import CardRequest
from hami_dra.vendors.registry import VENDORS

_FEW: Final = 512
"""Up to this many changed rows, update the counts individually."""
_PUBLISHED_KEPT: Final = 32
_IDLE_KEPT: Final = 16
_STATES_KEPT: Final = 1 << 8
"""States of cards cached per shape of request: the code of a card is valid for the next one in the same state."""


def request_columns(
    inventory: Inventory,
    view: ResolvedRequest,
    scope: Scope,
    ignored_taints: frozenset[str],
    request_preferences: RequestPreferences = NO_PREFERENCES,
    *,
    mutex: bool = False,
) -> "RequestColumns":
    """Return the columns, up to date. Raises SelectorOverBudget, SliceSpent.

    `mutex`: the device policy refuses cards in use.
    """
    mutex = mutex and scope.vendor_rules and not view.all_devices
    columns = inventory.of_request(
        RequestColumns,
        (view.shape, scope, ignored_taints, request_preferences, mutex),
        lambda: RequestColumns(inventory, view, scope, ignored_taints, request_preferences, mutex=mutex),
    )
    columns.refresh()
    return columns


class _Published:
    """`codes`: of all devices as if none were in use, UNJUDGED among them. Requests that differ in amounts
    alone share one.
    """

    def __init__(self, codes: Codes) -> None:
        self.codes = codes


class _AllPublished(LruCache[_Published]):
    def __init__(self, _: Inventory) -> None:
        super().__init__(_PUBLISHED_KEPT)


class _AllIdle(LruCache[IdleDevices]):
    """By `_Published` and number of rows of nodes. One takes 30 bytes for each device: few are kept."""

    def __init__(self, _: Inventory) -> None:
        super().__init__(_IDLE_KEPT)


class RequestColumns:
    """The verdicts on all cards for one shape of request.

    `codes`: uint8 per device row; `fitting`: int64 per node row; `network_attached`: fitting cards
    that no single node owns. Cards 0 and 1 are on node 0, card 2 is on node 1, card 3 on none; card
    1 is full:

        codes            [0, CARD_INSUFFICIENT_MEMORY, 0, 0]
        fitting          [1, 1]
        network_attached 1        so `enough(2)` is [True, True] and `enough(3)` [False, False]
    """

    def __init__(
        self,
        inventory: Inventory,
        view: ResolvedRequest,
        scope: Scope,
        ignored_taints: frozenset[str],
        request_preferences: RequestPreferences,
        *,
        mutex: bool = False,
    ) -> None:
        self._inventory = inventory
        self._view = view
        self._scope = scope
        self._ignored = ignored_taints
        self._mutex = mutex
        self._preferences = [(vendor, request_preferences.of(vendor)) for vendor in VENDORS]
        self._rules: tuple[Hashable, ...] = (
            *[
                tuple([(each.expression, each.payer) for each in some])
                for some in (view.class_selectors, view.selectors)
            ],
            *(view.tolerations, view.features, scope, ignored_taints, request_preferences),
        )
        """What decides about devices as they are published, except for the amounts."""
        self._kinds = DeviceEquivalence(view, scope)
        self._taints: list[int] = []
        self._states = inventory.derived(DeviceStates, DeviceStates)
        self._usage = LogReader(inventory.devices.changes)
        self._structure = LogReader(inventory.devices.structure)
        self._published = _Published(np.zeros(0, dtype=np.uint8))
        self._known: dict[tuple[int, int, int], int] = {}
        """(published code, number of the state, numbering) of a card → its code."""
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        self.fitting: Ints = np.zeros(0, dtype=np.int64)
        self.network_attached = 0
        self._idle = inventory.derived(_AllIdle, _AllIdle)

    def enough(self, count: int, rows: Positions | None = None) -> Bools:
        """Return the nodes that may have `count` cards for the request.

        `rows`: only these nodes; None: all, shape (nodes.size,).
        """
        fitting = self.fitting[: self._inventory.nodes.size] if rows is None else self.fitting[rows]
        return fitting + self.network_attached >= count

    def enough_on(self, count: int, row: int) -> bool:
        """Return `enough` of one node."""
        return self.fitting.item(row) + self.network_attached >= count

    def idle(self) -> IdleDevices:
        """Return the verdicts as if no device were in use, made again once a device is published."""
        return self._idle.get((self._published, self._inventory.nodes.size), self._as_idle)

    def _as_idle(self) -> IdleDevices:
        devices, size = self._inventory.devices, self._inventory.devices.size
        kinds = self._kinds.code[devices.kind[:size]]
        return IdleDevices(self._published.codes, kinds, devices.node[:size], self._inventory.nodes.size)

    def rows_on(self, nodes: Bools) -> Positions:
        """Return the rows of the class's cards on some nodes."""
        return self._on(self.idle().owned, nodes)

    def possible_on(self, nodes: Bools) -> Positions:
        """Return the rows of the cards on some nodes that would fit if they were idle."""
        return self._on(self.idle().possible, nodes)

    def _on(self, rows: Positions, nodes: Bools) -> Positions:
        if np.count_nonzero(nodes) == self._inventory.nodes.count:
            return rows  # all nodes: nothing to look up
        return rows[nodes[self._inventory.devices.node[rows]]]

    def reasons(self, rows: Positions, codes: Codes | None = None) -> Codes:
        """Return the codes of some rows for a report, with what only the search knows: `mutex`
        refuses the parts of cards in use. `codes`: by device row, if they differ from `self.codes`.
        """
        found = (self.codes if codes is None else codes)[rows]
        return of_parts(self._inventory, rows, found) if self._mutex else found

    def could(self, rows: Positions) -> Bools:
        """Return whether the cards in some rows would fit if they were idle."""
        possible: Bools = ~NEVER[self.codes[rows]] & (self._kinds.code[self._inventory.devices.kind[rows]] == 0)
        return possible

    def ask_of_kinds(self) -> Ints:
        """Return the amounts that the request takes of each kind of device, as `ask`. Shape (3, kinds)."""
        return np.stack([self._kinds.slots, self._kinds.cores, self._kinds.memory])

    def ask(self, rows: Positions) -> CardRequest:
        """Return the amounts that the request takes of the devices in some rows; 0 if it never could."""
        kind = self._inventory.devices.kind[rows]
        return CardRequest(
            slots=self._kinds.slots[kind], cores=self._kinds.cores[kind], memory=self._kinds.memory[kind]
        )

    # -- incremental update ------------------------------------------------------------------------

    def refresh(self) -> None:
        devices, nodes = self._inventory.devices, self._inventory.nodes
        if len(self.fitting) < nodes.size:
            self.fitting = grown(self.fitting, len(nodes.present))
        if self._usage.is_current:
            return
        changed, republished = self._usage.entries(), self._structure.unread()
        if len(self.codes) < devices.size:
            self.codes = grown(self.codes, len(devices.active), NOT_OF_CLASS)
        if republished is None or republished.size:
            self._kinds.learn(devices.kind_samples)
            key = devices.structure.version, *self._rules, self._kinds.code.tobytes()
            known = self._inventory.derived(_AllPublished, _AllPublished)
            self._published = known.get(key, lambda: self._publish(republished))
            changed = None
        self._states.refresh()
        if changed is None or len(few := {*changed}) > _FEW:
            self._all(devices.size)
        else:
            self._some(few)
        self._usage.done()
        self._structure.done()

    def _publish(self, republished: Positions | None) -> _Published:
        """Return the codes, of which those of all or some rows are judged again."""
        size = self._inventory.devices.size
        rows = np.arange(size) if republished is None else republished
        codes = grown(self._published.codes, size, NOT_OF_CLASS).copy()
        codes[rows] = self._judge_published(rows)
        return _Published(codes)

    def _all(self, size: int) -> None:
        """Update all rows: of the devices that look alike one is judged."""
        looks = self._states.looks(self._published.codes)
        few = len(looks.rows) <= _FEW
        judged = np.array(self._codes(looks.rows.tolist()), dtype=np.uint8) if few else self._judge(looks.rows)
        self.codes[:size] = judged[looks.places]
        self.fitting[: self._inventory.nodes.size] = looks.by_node((judged == 0).astype(np.int64))
        self.network_attached = int(looks.nowhere[judged == 0].sum())

    def looks(self) -> Looks:
        """Return the devices by looks: those of equal looks have one code, and the request takes the same of them."""
        self._states.refresh()
        return self._states.looks(self._published.codes)

    def _some(self, rows: AbstractSet[int]) -> None:
        """Update some rows, of devices that are the same as before."""
        for row, code in zip(rows, self._codes(rows), strict=True):
            fits = code == 0
            if fits is not (self.codes.item(row) == 0):
                self._count(self._inventory.devices.node.item(row), 1 if fits else -1)
            self.codes[row] = code

    def _codes(self, rows: Collection[int]) -> list[int]:
        """Return the `_judge` of some rows; cards in the same state share it."""
        number, numbering, published = self._states.number, self._states.numbering, self._published.codes
        states = {row: (published.item(row), number.item(row), numbering) for row in rows}
        unknown = [row for row, state in states.items() if state not in self._known]
        if unknown:
            if len(self._known) + len(unknown) > _STATES_KEPT:
                self._known.clear()
                unknown = [*states]
            codes = self._judge(np.array(unknown, dtype=np.intp))
            self._known.update(zip([states[row] for row in unknown], codes.tolist(), strict=True))
        return [self._known[state] for state in states.values()]

    def _count(self, node: int, sign: int) -> None:
        if node >= 0:
            self.fitting[node] += sign
        elif node == NOWHERE:
            self.network_attached += sign

    # -- judging rows ------------------------------------------------------------------------------

    def _judge(self, rows: Positions) -> Codes:
        """Return the first failing reason of each row, in HAMi's order.

        The published part of the device was judged before.
        """
        codes = self._published.codes[rows]
        if not self._view.admin_access:
            self._judge_usage(codes, rows, self._inventory.devices.kind[rows])
        codes[codes == UNJUDGED] = 0
        return codes

    def _judge_published(self, rows: Positions) -> Codes:
        """Return the first failing reason as if no card were in use; UNJUDGED where the search must report an error."""
        devices = self._inventory.devices
        kind = devices.kind[rows]
        codes = self._kinds.code[kind]
        codes[~devices.active[rows]] = NOT_OF_CLASS
        for selector in self._view.class_selectors:
            codes[~self._selected(selector, rows, codes != NOT_OF_CLASS)] = NOT_OF_CLASS
        late = codes.copy()  # the reasons of the kind come after health and selectors
        codes[codes != NOT_OF_CLASS] = 0
        where(codes, self._taint_codes()[devices.taint_kind[rows]])
        if self._scope.vendor_rules:
            self._judge_lists(
                codes,
                rows,
                kind,
                # before selectors, which a converted pod has for the same purpose: lists give the
                # better reason
            )
        for selector in self._view.selectors:
            still_open = codes == 0
            refused = still_open & ~self._selected(selector, rows, still_open)
            if refused.any():
                reason = device_codes.CARD_UUID_MISMATCH if selector.asks_for_uuid else device_codes.CARD_TYPE_MISMATCH
                codes[refused] = NUMBER[reason]
        where(codes, late)
        return codes

    def _judge_usage(self, codes: Codes, rows: Positions, kind: Ints) -> None:
        """Give rows without a reason the first one that the usage of their cards makes, in HAMi's
        order: exclusive tenant, slots, mutex, memory, cores, shared counters, vendor's rules.

        A card without a free slot, or in use under mutex, has that reason even if it is too small
        for the request. A request for 4 GiB and 50 cores; all cards have 16 GiB, 100 cores, 2
        slots:

            card  slots used  memory used  cores used  reason
            a     2           14 GiB       60          CardTimeSlicingExhausted: slots are first
            b     1           14 GiB       60          CardInsufficientMemory: 14 + 4 > 16
            c     1           8 GiB        60          CardInsufficientCore: 60 + 50 > 100
        """
        devices, kinds = self._inventory.devices, self._kinds
        cards, ask = devices.cards(rows), self.ask(rows)
        full = kinds.slots_limited[kind] & (cards.slots_used + np.maximum(ask.slots, 1) > cards.slots_total)
        busy = (cards.slots_used > 0) * MUTEX_CONFLICT if self._mutex else 0
        earliest(
            codes, np.where(devices.exclusive[rows] | full, NUMBER[device_codes.CARD_TIME_SLICING_EXHAUSTED], busy)
        )
        limited = kinds.limited[kind]
        for over, reason in (
            (limited & (cards.memory_used + ask.memory > cards.memory_total), device_codes.CARD_INSUFFICIENT_MEMORY),
            (limited & (cards.cores_used + ask.cores > cards.cores_total), device_codes.CARD_INSUFFICIENT_CORE),
            (devices.blocked[rows] & self._view.features.partitionable_devices, device_codes.CARD_MIG_INFEASIBLE),
        ):
            codes[over & (codes == 0)] = NUMBER[reason]
        if self._scope.vendor_rules:
            self._judge_vendors(codes, rows, kind)

    def _judge_lists(self, codes: Codes, rows: Positions, kind: Ints) -> None:
        """Judge cards by use and nouse lists: by name, so one by one, and only if there are such lists."""
        for number, (vendor, preferences) in enumerate(self._preferences):
            if preferences.lists:
                for position in np.flatnonzero((self._kinds.vendor[kind] == number) & (codes == 0)).tolist():
                    codes[position] = refused_by_lists(self._inventory, vendor, preferences, int(rows[position]))

    def _judge_vendors(self, codes: Codes, rows: Positions, kind: Ints) -> None:
        """Judge cards by vendor. The vendors' reasons come before or after amounts, by their numbers."""
        positions = ((codes == 0) | REPLACEABLE[codes]).nonzero()[0]
        vendors = self._kinds.vendor[kind[positions]]
        for number in {*vendors.tolist()}:
            if number < 0:
                continue
            vendor, preferences = self._preferences[number]
            of_vendor = positions[vendors == number]
            found = vendor.refuse(
                self._inventory.devices.cards(rows[of_vendor]), self.ask(rows[of_vendor]), preferences
            )
            judged = codes[of_vendor]
            earliest(judged, found)
            codes[of_vendor] = judged

    def _selected(self, selector: Selector, rows: Positions, among: Bools) -> Bools:
        """Return which of the rows the selector selects. Rows that are not `among` the given ones
        are not evaluated.

        Raises SelectorOverBudget, SliceSpent.
        """
        chosen = np.zeros(len(rows), dtype=np.bool_)
        try:
            chosen[among] = self._inventory.verdicts.matching(selector.expression, rows[among], payer=selector.payer)
        except OverBudget as error:
            raise over_budget((selector,), error) from error
        return chosen

    def _taint_codes(self) -> Codes:
        samples = self._inventory.devices.taint_samples
        for sample in samples[len(self._taints) :]:
            taint = None if sample is None else blocking_taint(self._view, sample, self._ignored)
            code = ""
            if taint is not None:
                code = device_codes.CARD_CORDONED if taint.key == names.CORDON_TAINT else device_codes.CARD_NOT_HEALTH
            self._taints.append(NUMBER[code])
        return np.array(self._taints, dtype=np.uint8)
