"""The devices of a node that a request may use at all, before anything else is chosen.

Called by the search, once per shape of request and node; the answer is cached. In: the pools of the
node, the ledger. Out: `Candidate`s in upstream's order. Everything that changes during a search
(shares, counters, constraints) is tested elsewhere.

The order of checks is upstream's, because it decides which devices can fail with an error: in use,
selectors of the class, selectors of the request, capacity, then the checks that can only refuse:
gates, taints.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from msgspec import Struct

from controller.allocation.errors import AllocatorError
from controller.allocation.resolved import AllocationInput, Consumption, ResolvedRequest
from controller.allocation.selectors import FAILURES, Selector, Test
from controller.inventory.model import Device, Pool, Usage
from hami_dra.api.core import Node, Toleration
from hami_dra.api.resource import DeviceTaint

OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


class Candidate(Struct, frozen=True, eq=False):
    """A device that the request may use, or one that cannot be judged (`error`, raised when the search reaches it)."""

    device: Device
    pool: Pool
    consumption: Consumption | None
    error: AllocatorError | None = None


class _Test:
    """A selector, compiled when the first device reaches it."""

    __slots__ = ("run", "selector")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.run: Test | None = None

    def prepared(self) -> Test:
        """Compile the selector. Raises as the test does."""
        self.run = self.selector.judge.test(self.selector.expression, self.selector.payer)
        return self.run


class Candidates:
    """The candidates of one problem on one node."""

    def __init__(self, problem: AllocationInput, node: Node, pools: Sequence[Pool], usage: Usage) -> None:
        self._problem = problem
        self._node = node
        self._pools = pools
        self._usage = usage
        self._by_shape: dict[int, tuple[Candidate, ...]] = {}
        self._all: dict[int, tuple[Candidate, ...]] = {}
        self._tests: dict[int, list[_Test]] = {}
        """By shape."""
        self._candidate_by_device: dict[int, dict[Device, Candidate]] = {}

    def of(self, view: ResolvedRequest) -> tuple[Candidate, ...]:
        """Return the candidates of a request by count. Devices of incomplete or invalid pools are left out."""
        found = self._by_shape.get(view.shape_index)
        if found is None:
            found = self._by_shape[view.shape_index] = tuple(self._scan(view))
        return found

    def all_of(self, view: ResolvedRequest) -> tuple[Candidate, ...]:
        """Return every device that a request for all devices includes, in use or not.

        Raises AllocatorError: a pool is incomplete or invalid, or a device cannot be judged.
        """
        found = self._all.get(view.shape_index)
        if found is None:
            found = self._all[view.shape_index] = tuple(self._scan_all(view))
        return found

    def equivalence_key(self, view: ResolvedRequest, device: Device) -> Hashable:
        """Return a value that is equal for devices that the request cannot tell apart. Raises AllocatorError."""
        by_device = self._candidate_by_device.get(view.shape_index)
        if by_device is None:
            candidates = self.all_of(view) if view.all_devices else self.of(view)
            by_device = self._candidate_by_device[view.shape_index] = {
                candidate.device: candidate for candidate in candidates
            }
        candidate = by_device.get(device)
        if candidate is None or candidate.consumption is None:
            if candidate is not None and candidate.error is not None:
                raise candidate.error
            return None
        return candidate.consumption.amounts, self.usable(view, device)

    def usable(self, view: ResolvedRequest, device: Device) -> bool:
        """Return whether taints and feature gates allow the device."""
        spec = device.spec  # conditions before calls: this is the hot path of a decision
        if (spec.consumes_counters or device.slice.spec.skip_node_operations) and not self._supported(device):
            return False
        return not (spec.taints or device.extra_taints) or (
            blocking_taint(view, device, self._problem.ignored_taints) is None
        )

    def _scan(self, view: ResolvedRequest) -> Iterator[Candidate]:
        tests, in_use, admin_access = self._tests_of(view), self._usage.in_use, view.admin_access
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                continue
            usable = frozenset(pool.devices) if pool.among else None
            for device in pool.among or pool.devices:
                if not admin_access and in_use(device.id):
                    continue
                try:
                    selected = _selected(view, tests, device) and (usable is None or device in usable)
                    consumption = view.consumption(device) if selected else None
                except AllocatorError as error:
                    yield Candidate(device, pool, None, error)
                    continue
                if consumption is not None and self.usable(view, device):
                    yield Candidate(device, pool, consumption)

    def _scan_all(self, view: ResolvedRequest) -> Iterator[Candidate]:
        tests = self._tests_of(view)
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = f"invalid: {pool.invalid}" if pool.invalid else "being updated (slices are missing)"
                raise AllocatorError(
                    f"ResourceClaim {view.claim_key}: request {view.name}: asks for all devices, but the resource pool "
                    f"{pool.driver}/{pool.name} is {state}"
                )
            usable = frozenset(pool.devices) if pool.among else None
            for device in pool.among or pool.devices:
                selected = _selected(view, tests, device) and (usable is None or device in usable)
                consumption = view.consumption(device) if selected else None
                if consumption is not None:
                    yield Candidate(device, pool, consumption)

    def _tests_of(self, view: ResolvedRequest) -> list[_Test]:
        tests = self._tests.get(view.shape_index)
        if tests is None:
            tests = self._tests[view.shape_index] = [_Test(selector) for selector in view.all_selectors]
        return tests

    def _supported(self, device: Device) -> bool:
        features = self._problem.features
        if device.spec.consumes_counters and not features.partitionable_devices:
            return False
        # else upstream does not know the field
        if device.slice.spec.skip_node_operations and features.experimental:
            return features.optional_node_operations and OPTIONAL_NODE_OPERATIONS in self._node.status.declared_features
        return True


def _selected(view: ResolvedRequest, tests: Iterable[_Test], device: Device) -> bool:
    if device.spec.binding_conditions and not view.features.binding_conditions:
        return False
    for test in tests:  # a loop, not all(): this is the hot path of a decision
        try:
            if not (test.run or test.prepared())(device):
                return False
        except FAILURES as error:
            raise test.selector.failure(error, device) from error
    return True


def blocking_taint(view: ResolvedRequest, device: Device, ignored: frozenset[str]) -> DeviceTaint | None:
    """Return the first taint that the request does not tolerate. Keys in `ignored` do not count."""
    if view.features.device_taints and (device.spec.taints or device.extra_taints):
        for taint in device.taints:
            if (
                taint.effect in _BLOCKING_EFFECTS
                and taint.key not in ignored
                and not _tolerated(taint, view.tolerations)
            ):
                return taint
    return None


def _tolerated(taint: DeviceTaint, tolerations: Sequence[Toleration]) -> bool:
    """Return whether a toleration matches the taint (resourceclaim.ToleratesTaint).

    An empty effect and an empty key match any; without an operator the value must be equal.
    """
    for toleration in tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.operator in {"", "Equal"} and toleration.value == taint.value:
            return True
    return False
