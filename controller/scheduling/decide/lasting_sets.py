"""Why no node could give the requested devices together, though each has enough of them: they are
not linked, on several NUMA nodes, or do not agree in an attribute.

Called by `why_refused` when no node could meet the claims even with idle devices (`IdleNodes`).
What is in the way is what the pod would fit without; the best there is, is the largest number that
a node could give. Pure.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from controller.scheduling.decide.idle_nodes import IdleNodes, Verdict
from controller.scheduling.decide.refusal_reason import RefusalReason
from controller.scheduling.decide.request_words import REQUESTS_NAMED, Key, RequestWords, together_text
from controller.scheduling.decide.scheduling_request import PodClaim, SchedulingRequest
from hami_dra.api import names
from hami_dra.api.arrays import Bools
from hami_dra.api.printable import counted, listed, printable
from hami_dra.api.resource import DeviceConstraint, DeviceRequest, ResourceClaim

_SEARCHED: Final = 8
"""Different nodes on which smaller numbers and relaxed forms are tried."""
DEMANDS: Final = frozenset({names.GPU_TOPOLOGY, names.NUMA_BIND})
"""Annotations that ask for devices of a set."""


class _Best(Struct, frozen=True):
    count: int
    node: str
    several: bool
    """Of several requests together."""

    def text(self, template: str) -> str:
        where = f" ({self.node})" if self.node else ""
        if self.several:
            return f"{self.count} of them could be given together{where}"
        return f"{template.format(self.count)}{where}"


class LastingSets:
    """`words`: each request of the pod in words. `there`: the nodes that have devices for each."""

    def __init__(self, idle: IdleNodes, words: Sequence[RequestWords], there: Bools) -> None:
        self._idle = idle
        self._words = words
        self._nodes = int(np.count_nonzero(there))
        self._different = idle.different(there, _SEARCHED)
        self._request = idle.request
        self._tired = False
        """A search had no answer: no further one is made."""

    def why(self) -> RefusalReason:
        """Return what the pod would fit without: a constraint, the vendor's rules about sets; else
        that the requests do not fit together. Raises SliceSpent.
        """
        for index, entry in enumerate(self._claims()):
            for number, constraint in enumerate(entry.claim.spec.devices.constraints):
                form = "without", index, number
                if self._somewhere(_changed(self._request, entry, _without(number)), form):
                    return self._constraint(entry, constraint)
        if not self._idle.options.first_fit and self._somewhere(self._request, "any set", vendor_rules=False):
            return self._set()
        return self._together()

    # -- searching -----------------------------------------------------------------------------------

    def _claims(self) -> list[PodClaim]:
        return [entry for entry in self._request.claims if entry.claim.status.allocation is None]

    def _somewhere(self, request: SchedulingRequest, form: Hashable, *, vendor_rules: bool = True) -> str:
        """Return a node that could meet this form of the request, or an empty text."""
        for row in self._different:
            if self._tired:
                break
            verdict = self._idle.fits(row, request, form, vendor_rules=vendor_rules)
            if verdict is Verdict.COULD:
                return self._words[0].inventory.nodes.names[row]
            self._tired = verdict is not Verdict.NEVER
        return ""

    def _most(self, among: Sequence[RequestWords]) -> _Best | None:
        """Return the largest number of devices that a node could give to these requests, after all
        that the others ask for; None where one of them names no number.

        Of one request each number is tried, because 4 linked devices may be there and no 3. Of
        several, the requests get theirs one after the other, beginning with each of the first ones.
        """
        if any(words.view.all_devices or words.view.name != words.view.parent_name for words in self._words):
            return None
        total, several = sum(each.count for each in among), len(among) > 1
        if not several:
            found = (self._given(among, count) for count in range(total - 1, 0, -1))
            return next(filter(None, found), _Best(0, "", several=False))
        most = _Best(0, "", several=True)
        for first in range(min(len(among), REQUESTS_NAMED)):
            order = (*among[first:], *among[:first])
            low, high = most.count, total
            while high - low > 1:  # `low` could be given, `high` could not
                middle = (low + high) // 2
                if (best := self._given(order, middle)) is not None:
                    most, low = best, middle
                else:
                    high = middle
        return most

    def _given(self, among: Sequence[RequestWords], count: int) -> _Best | None:
        """Return the node that could give the first `count` devices of these requests, if there is one."""
        counts = {each.key: each.count for each in self._words}
        left = count
        for each in among:
            counts[each.key] = min(each.count, left)
            left -= counts[each.key]
        node = self._somewhere(_with_counts(self._request, counts), ("counts", *counts.values()))
        return _Best(count, node, several=len(among) > 1) if node else None

    # -- sentences -----------------------------------------------------------------------------------

    def _constraint(self, entry: PodClaim, constraint: DeviceConstraint) -> RefusalReason:
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        matches = constraint.match_attribute is not None
        field = "matchAttribute" if matches else "distinctAttribute"
        relation = f"{'the same' if matches else 'different'} {printable(name)} ({field})"
        covered = [each for each in self._words if self._covers(constraint, entry, each)]
        missing = next((each for each in covered if not _published(each, name)), None)
        devices = counted(sum(each.count for each in covered), "device")
        several = (
            f" for requests {listed([each.short_name for each in covered], REQUESTS_NAMED)}" if covered[1:] else ""
        )
        asked = f"needs {devices}{several} with {relation} on one node"
        if missing is not None:
            best = f"no device{f' for request {missing.short_name}' if several else ''} has this attribute"
            return _reason("set", asked, best, fix=f"Correct {field} in the claim's constraints")
        if (most := self._most(covered)) is None:
            best = f"{self._have()} devices for each of them, and no such set"
        elif most.count > 1:
            best = most.text("the most that a node has is {}")
        else:
            best = f"no two devices of a node {'agree' if matches else 'differ'} in it"
        return _reason("set", asked, best, fix="Ask for fewer devices, or drop the constraint" if most else "")

    def _covers(self, constraint: DeviceConstraint, entry: PodClaim, words: RequestWords) -> bool:
        requests = {each.partition("/")[0] for each in constraint.requests}
        return words.view.claim_key == entry.claim.key and (not requests or words.view.parent_name in requests)

    def _set(self) -> RefusalReason:
        total = sum(each.count for each in self._words)
        stated = [
            each
            for words in self._words
            for each in self._request.policies.stated.get(words.view.claim_key, ())
            if each.annotation in DEMANDS
        ]
        texts = list(dict.fromkeys(f"{each.annotation}={printable(each.value)}" for each in stated))
        asked = f"needs {counted(total, 'device')} {set_text([each.annotation for each in stated])}"
        asked += f" ({', '.join(texts)})" if texts else ""
        most = self._most(self._words)
        keys = {each.annotation for each in stated}
        code = names.TOPOLOGY_NOT_FIT if names.GPU_TOPOLOGY in keys else names.NUMA_NOT_FIT
        if most is None:
            best = f"{self._have()} enough devices, and no such set"
        elif keys == {names.GPU_TOPOLOGY}:
            best = most.text("the largest island has {}") if most.count > 1 else "no two devices of a node are linked"
        elif keys == {names.NUMA_BIND}:
            best = most.text("the most on one NUMA node is {}")
        else:
            best = most.text("the largest such set of fewer has {}") if most.count else "no node has such a set"
        fix = "Relax the annotation, or ask for fewer devices" if stated else "Ask for another number of devices"
        return _reason("set", asked, best, fix=fix, code=code)

    def _together(self) -> RefusalReason:
        if len(self._words) == 1:
            (words,) = self._words
            most = self._most(self._words)
            row = words.column.idle().possible
            asked = f"needs {words.devices(int(row[0]))}" if row.size else f"needs {counted(words.count, 'device')}"
            best = (
                "no node could give them together"
                if most is None
                else most.text("the most that a node could give is {}")
            )
            return _reason("devices", asked, best, code=names.NODE_INSUFFICIENT_DEVICE)
        most = self._most(self._words)
        best = f"{self._have()} devices for each request, and none has them all together"
        return _reason(
            "requests",
            together_text(self._words),
            best if most is None else most.text("{}"),
            code=names.NODE_INSUFFICIENT_DEVICE,
        )

    def _have(self) -> str:
        return f"{counted(self._nodes, 'node')} {'has' if self._nodes == 1 else 'have'}"


def set_text(annotations: Sequence[str]) -> str:
    """Return which sets of devices these annotations allow: `linked to each other`."""
    found = [text for name, text in _SETS.items() if name in annotations]
    return " and ".join(found) or "in a set that the vendor's rules allow"


_SETS: Final = {names.GPU_TOPOLOGY: "linked to each other", names.NUMA_BIND: "on one NUMA node"}


def _published(words: RequestWords, attribute: str) -> bool:
    devices = words.inventory.devices
    rows = np.flatnonzero(words.column.idle().codes == 0)
    return attribute in words.view.derived or any(
        devices.device(row).attribute(attribute) is not None for row in rows.tolist()
    )


def _reason(kind: str, asked: str, best: str, *, fix: str = "", code: str = "") -> RefusalReason:
    return RefusalReason(kind, asked, best, never=True, fix=fix, code=code)


# -- other forms of a request --------------------------------------------------------------------------


def _changed(
    request: SchedulingRequest, entry: PodClaim, change: Callable[[ResourceClaim], ResourceClaim]
) -> SchedulingRequest:
    changed = replace(entry, claim=change(entry.claim))
    return replace(request, claims=tuple(changed if each is entry else each for each in request.claims))


def _without(number: int) -> Callable[[ResourceClaim], ResourceClaim]:
    """Return a function that drops one constraint of a claim."""

    def change(claim: ResourceClaim) -> ResourceClaim:
        constraints = claim.spec.devices.constraints
        devices = msgspec.structs.replace(
            claim.spec.devices, constraints=constraints[:number] + constraints[number + 1 :]
        )
        return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))

    return change


def _with_counts(request: SchedulingRequest, counts: Mapping[Key, int]) -> SchedulingRequest:
    """Return the request with other numbers of devices, without those that ask for none."""

    def change(claim: ResourceClaim) -> ResourceClaim:
        devices = claim.spec.devices
        requests = tuple(
            each if each.exactly is None else _counting(each, counts[claim.key, each.name])
            for each in devices.requests
            if counts.get((claim.key, each.name), 1)
        )
        left = {each.name for each in requests}
        constraints = tuple(filter(None, (_within(each, left) for each in devices.constraints)))
        devices = msgspec.structs.replace(devices, requests_or_null=requests, constraints=constraints)
        return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))

    for entry in request.claims:
        if entry.claim.status.allocation is None:
            request = _changed(request, entry, change)
    return request


def _counting(request: DeviceRequest, count: int) -> DeviceRequest:
    assert request.exactly is not None
    return msgspec.structs.replace(request, exactly=msgspec.structs.replace(request.exactly, count=count))


def _within(constraint: DeviceConstraint, requests: Collection[str]) -> DeviceConstraint | None:
    """Return the constraint on those of its requests that are left."""
    left = tuple(each for each in constraint.requests if each.partition("/")[0] in requests)
    if not constraint.requests:
        return constraint
    return msgspec.structs.replace(constraint, requests=left) if left else None
