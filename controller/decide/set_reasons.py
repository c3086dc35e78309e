"""Why no node can give the requested devices together, though each has enough of them: they are not
linked, on several NUMA nodes, do not agree in an attribute, or leave no room for each other.

Called by `why_refused`. Nothing is searched: whether idle nodes could is judged by the vendors,
equal nodes once, and the rest is counted. What only a search can tell is left open, and counts as
in use now. Pure.

    rule                    the most devices that an idle node could give
    several requests        the devices, where no two of the requests fit on one
    matchAttribute          devices with equal values
    distinctAttribute       different values
    of the vendor           the largest set that it allows
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation.constraints import value_of
from controller.allocation.errors import AllocatorError
from controller.allocation.request import ResolvedRequest
from controller.decide.pre_score import without_legal_set
from controller.decide.request_words import (
    REQUESTS_NAMED,
    ROLES,
    RequestWords,
    Role,
    given_together,
    most_of_a_node,
    together_text,
)
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.reasons.reason import Reason
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.printable import counted, listed, printable
from hami_dra.api.resource import DeviceConstraint
from hami_dra.vendors import device_codes

_READ: Final = 50_000
"""Attributes of devices that one refusal reads, in some 100 ms; constraints beyond that are left open."""
_DIFFERENT: Final = 64
"""Nodes, those with the most devices, whose largest smaller set is looked for."""
_CONSTRAINTS_NAMED: Final = 3
_SETS: Final = {names.GPU_TOPOLOGY: "linked to each other", names.NUMA_BIND: "on one NUMA node"}
"""Annotations that ask for devices of a set."""
_ANY_SET: Final = "in a set that the vendor's rules allow"
_SETS_OF_CODES: Final = {device_codes.NODE_HANDLES_EXHAUSTED: "in slices, for each of which the driver needs a handle"}


class Rule(Struct, frozen=True):
    """Something that devices of one node must have in common, or have room for."""

    count: int
    """Number of devices."""
    most: Ints
    """The most that each node could give. Shape (nodes.size,)."""
    reason: Callable[[int, str], Reason]
    """Makes the reason if no node gives enough, of the most that one gives and its name."""


def without_lasting_rules(
    inventory: Inventory,
    request: SchedulingRequest,
    there: Bools,
    *,
    managed: Sequence[RequestWords],
    foreign: Sequence[RequestWords],
    drivers: frozenset[str],
) -> Bools | Reason:
    """Return those of the nodes `there` that no rule excludes, or the reason of the rule that excludes the last.

    `managed`, `foreign`: the requests that have one alternative and a number of devices, by who
    allocates these. `drivers`: those whose vendors allow only some sets.
    """
    words = [each for each in (*managed, *foreign) if not each.column.idle().anywhere]
    arranged = [each for each in managed if drivers and not each.view.admin_access]
    for rule in _Rules(inventory, request, words, arranged, drivers).each():
        left = there & (rule.most >= rule.count)
        if not left.any():
            best = int(_largest_first(inventory, np.flatnonzero(there), rule.most)[0])
            return rule.reason(int(rule.most[best]), inventory.nodes.names[best])
        there = left
    return there


def no_free_set(request: SchedulingRequest, view: ResolvedRequest, code: str, free: str) -> Reason:
    """Return that no set is free that the vendor's rules allow. `free`: what is; `code`: of the rule."""
    asked, _ = _asked_set(request, view, _SETS_OF_CODES.get(code, ""))
    return Reason("set", asked, free, code=code)


def no_free_choice(request: SchedulingRequest, count: int, free: str) -> Reason:
    """Return that only the search found no devices: of constraints, shared counters, or requests that
    compete for the same devices. `count`: of devices, for all requests; `free`: what is.
    """
    claims = [entry.claim for entry in request.claims if entry.claim.status.allocation is None]
    constraints = [each for claim in claims for each in claim.spec.devices.constraints]
    relations = " and ".join(map(_relation, constraints[:_CONSTRAINTS_NAMED]))
    asked = f"needs {counted(count, 'device')} on one node{f' with {relations}' if relations else ''}"
    return Reason("search", asked, free)


def _asked_set(request: SchedulingRequest, view: ResolvedRequest, kind: str = "") -> tuple[str, list[str]]:
    """Return what a request for a set asks for, and the annotations that demand it. `kind`: default by these."""
    stated = [each for each in request.policies.stated.get(view.claim_key, ()) if each.annotation in _SETS]
    annotations = [each.annotation for each in stated]
    kind = kind or " and ".join([text for name, text in _SETS.items() if name in annotations]) or _ANY_SET
    values = ", ".join([f"{each.annotation}={printable(each.value)}" for each in stated])
    asked = f"needs {counted(view.count, 'device')} {kind}"
    return f"{asked} ({values})" if values else asked, annotations


def _relation(constraint: DeviceConstraint) -> str:
    if constraint.match_attribute is not None:
        return f"the same {printable(constraint.match_attribute)} (matchAttribute)"
    return f"different {printable(constraint.distinct_attribute or '')} (distinctAttribute)"


@dataclass(slots=True)
class _Rules:
    inventory: Inventory
    request: SchedulingRequest
    words: list[RequestWords]
    """Of all requests whose devices belong to nodes; others are left to the search."""
    arranged: list[RequestWords]
    """Of the requests that vendors give only in some sets."""
    drivers: frozenset[str]
    _attributes_read: int = 0
    _read: set[Hashable] = field(default_factory=set)

    def each(self) -> Iterator[Rule]:
        for role in ROLES[:2]:
            rivals = self.words
            if not _keep_each_other_off(rivals, role):
                rivals = [each for each in self.words if each.takes_most(role)]
            if len(rivals) > 1:
                yield self._room(rivals)
        for entry in self.request.claims:
            for constraint in entry.claim.spec.devices.constraints:
                yield from self._constraint(constraint, entry.claim.key)
        for words in self.arranged:
            yield self._set(words)

    # -- several requests ------------------------------------------------------------------------------

    def _room(self, rivals: Sequence[RequestWords]) -> Rule:
        """Return that requests of which no two fit on one device need a device for each."""
        total = sum(each.count for each in rivals)
        most = np.bincount(self.inventory.devices.node[_possible(rivals)], minlength=self.inventory.nodes.size)
        code = device_codes.NODE_INSUFFICIENT_DEVICE

        def reason(best: int, node: str) -> Reason:
            if all(each.is_whole(int(each.column.idle().possible[0])) for each in rivals) and best == int(most.max()):
                asked = f"needs {counted(total, 'whole device')} on one node, all requests together"
                return Reason("devices", asked, most_of_a_node(best, node), never=True, code=code)
            return Reason("requests", together_text(rivals), given_together(best, node), never=True, code=code)

        return Rule(total, most, reason)

    # -- constraints -----------------------------------------------------------------------------------

    def _constraint(self, constraint: DeviceConstraint, claim: str) -> Iterator[Rule]:
        """Yield the rule for each request that it covers, then for all of them, where no two fit on one device."""
        requests = {each.partition("/")[0] for each in constraint.requests}
        covered = [
            each
            for each in self.words
            if each.view.claim_key == claim and (not requests or each.view.parent_name in requests)
        ]
        for each in covered:
            yield from self._agreeing(constraint, [each])
        if len(covered) > 1 and any(_keep_each_other_off(covered, role) for role in ROLES[:2]):
            yield from self._agreeing(constraint, covered)

    def _agreeing(self, constraint: DeviceConstraint, covered: Sequence[RequestWords]) -> Iterator[Rule]:
        matches = constraint.match_attribute is not None
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        rows, first = _possible(covered), covered[0]
        key = name, matches, tuple([each.view.shape for each in covered])
        if key not in self._read:
            self._attributes_read += len(rows)
            self._read.add(key)
        if self._attributes_read > _READ or (covered[1:] and any(name in each.view.derived for each in covered)):
            return
        most = first.column.idle().kept(key, lambda: self._values(name, first, rows, matches=matches))
        if most is None:
            return
        field = "matchAttribute" if matches else "distinctAttribute"
        total = sum(each.count for each in covered)

        def reason(best: int, node: str) -> Reason:
            several = (
                f" for requests {listed([each.called for each in covered], REQUESTS_NAMED)}" if covered[1:] else ""
            )
            asked = f"needs {counted(total, 'device')}{several} with {_relation(constraint)} on one node"
            fix = "Ask for fewer devices, or drop the constraint"
            if not most.any():
                text, fix = "no device has this attribute", f"Correct {field} in the claim's constraints"
            elif best <= 1:
                text = f"no two devices of a node {'agree' if matches else 'differ'} in it"
            elif covered[1:]:
                text = given_together(best, node)
            else:
                text = most_of_a_node(best, node)
            request = "" if covered[1:] else first.name
            return Reason("set", asked, text, never=True, request=request, fix=fix)

        yield Rule(total, most, reason)

    def _values(self, name: str, words: RequestWords, rows: Positions, *, matches: bool) -> Ints | None:
        """Return per node how many of the devices agree in the attribute, or how many different
        values they have. None: the search will report an error.

        A device with a list counts for each element. Without the feature gate for lists, one is a
        value that agrees with no other.
        """
        lists = words.view.features.list_type_attributes
        values: dict[tuple[int, str, object], int] = {}
        for row, node in zip(rows.tolist(), self.inventory.devices.node[rows].tolist(), strict=True):
            try:
                value = value_of(name, words.view, self.inventory.devices.device(row), lists=lists)
            except AllocatorError:
                return None
            if value is not None:
                for element in value[1] or ((None,) if not lists else ()):
                    key = node, value[0], element
                    values[key] = values.get(key, 0) + 1 if value[1] else 1
        most: Ints = np.zeros(self.inventory.nodes.size, dtype=np.int64)
        for (node, *_), count in values.items():
            most[node] = max(most[node], count) if matches else most[node] + 1
        return most

    # -- the vendors' rules ----------------------------------------------------------------------------

    def _set(self, words: RequestWords) -> Rule:
        """Return the size of the largest set that each node could give; of nodes that could not give
        one of the requested size, only that of the largest.
        """
        most: Ints = np.full(self.inventory.nodes.size, words.count, dtype=np.int64)
        idle = words.column.idle()
        nodes = np.flatnonzero(idle.enough(words.count))
        for count in range(words.count, 0, -1):
            refused = without_legal_set(
                self.inventory,
                self.request.policies,
                words.view,
                words.column,
                nodes=nodes,
                drivers=self.drivers,
                count=count,
            )
            nodes = nodes[refused]
            most[nodes] = count - 1
            if not nodes.size or not refused.all():
                break
            nodes = _largest_first(self.inventory, nodes, idle.per_node)[:_DIFFERENT]
        return Rule(words.count, most, lambda best, node: self._no_set(words, best, node))

    def _no_set(self, words: RequestWords, best: int, node: str) -> Reason:
        asked, keys = _asked_set(self.request, words.view)
        if {*keys} == {names.GPU_TOPOLOGY}:
            text = f"the largest island has {best} ({node})" if best > 1 else "no two devices of a node are linked"
        elif {*keys} == {names.NUMA_BIND}:
            text = f"the most on one NUMA node is {best} ({node})"
        else:
            text = f"the largest such set of fewer has {best} ({node})" if best else "no node has such a set"
        fix = "Relax the annotation, or ask for fewer devices" if keys else "Ask for another number of devices"
        code = device_codes.TOPOLOGY_NOT_FIT if names.GPU_TOPOLOGY in keys else device_codes.NUMA_NOT_FIT
        return words.reason("set", asked, text, never=True, fix=fix, code=code)


def _keep_each_other_off(requests: Sequence[RequestWords], role: Role) -> bool:
    """Return whether no two of the requests fit on one device: each takes more than half of an
    amount, or, of a few requests, any two take more than all of it.
    """
    if all(each.takes_most(role) for each in requests):
        return True
    return len(requests) <= REQUESTS_NAMED and all(
        one.keeps_off(other, role) for one, other in combinations(requests, 2)
    )


def _largest_first(inventory: Inventory, nodes: Positions, sizes: Ints) -> Positions:
    """Return the rows of nodes by size, equal ones by name."""
    return nodes[np.lexsort((inventory.nodes.rank[nodes], -sizes[nodes]))]


def _possible(requests: Iterable[RequestWords]) -> Positions:
    """Return the rows of the devices that could be given to any of the requests."""
    rows = [each.column.idle().possible for each in requests]
    return rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
