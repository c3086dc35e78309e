"""The one reason why a pod is refused, from what the decision evaluated.

Called by `decide` when no node fits. What can never be met comes first, judged on idle devices of
the whole cluster; then what is wrong with the nodes that have such devices; then what is in use
now. Of several reasons the one counts that the last nodes failed for: it is the closest to a
placement. Pure.

    checked, in this order                                  kind of the reason
    the pod as a whole: a volume that no node can have      volume
    each request on idle devices, anywhere                  class, selector, memory, devices, ...
    all requests on idle devices of one node                requests
    all of them together there, by counting                 devices, requests, set
    the nodes where that holds: labels, taints, resources   label, taint, resource, node
    the quota of the namespace                              quota
    free devices                                            memory, whole devices, health, ...
    sets of devices, by the vendors' rules                  set

Where some nodes have the devices free and are refused for something else, and the others have none
free, the reason is that of the former, and its sentence says both.
"""

from collections import Counter
from typing import Final

import numpy as np
from msgspec.structs import replace

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup, ResolvedRequest
from controller.decide.lasting_reasons import lasting_reason
from controller.decide.lasting_sets import DEMANDS, set_text, without_lasting_rules
from controller.decide.listing_annotations import listing_annotations
from controller.decide.node_reasons import NodeReasons
from controller.decide.passing_reasons import passing_reason
from controller.decide.refusal_reason import RefusalReason
from controller.decide.request_words import REQUESTS_NAMED, RequestWords, together_text
from controller.decide.scheduling_request import SchedulingRequest
from controller.decide.trace import Trace, enough
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from hami_dra.api import names
from hami_dra.api.arrays import Bools
from hami_dra.api.printable import counted, listed, printable


def reason_of(inventory: Inventory, request: SchedulingRequest, trace: Trace, drivers: frozenset[str]) -> RefusalReason:
    """Return the reason of a refusal. `trace`: of the decision, before the inventory changes;
    `drivers`: those whose vendors allow only some sets of devices.
    """
    return _Refusal(inventory, request, trace, drivers).why()


def failing_selector(inventory: Inventory, trace: Trace) -> str:
    """Return the error of a selector that fails on every device that its request could get; empty
    if there is none. The search reports it only where it reaches such a device.
    """
    for group, columns in trace.wanted:
        view, column = group.alternatives[-1], columns[-1]
        for selector in view.all_selectors:
            failing = inventory.verdicts.failing(selector.expression, payer=selector.payer)
            if failing.size and group.alternatives:
                could = np.flatnonzero(column.idle().codes == 0)
                if could.size and np.isin(could, failing).all():
                    return selector.error_on(inventory.devices.device(int(could[0])))
    return ""


class _Refusal:
    def __init__(self, inventory: Inventory, request: SchedulingRequest, trace: Trace, drivers: frozenset[str]) -> None:
        self._inventory = inventory
        self._request = request
        self._trace = trace
        self._drivers = drivers
        self._names = Counter(group.name for group, _ in trace.wanted)

    def why(self) -> RefusalReason:
        verdicts = self._trace.verdicts
        if verdicts.refusal is not None:
            return RefusalReason("volume", verdicts.refusal.sentence, code=verdicts.refusal.code)
        if not self._inventory.nodes.present.any():
            return RefusalReason("node", "the cluster has no nodes")
        there = self._there()
        if isinstance(there, RefusalReason):
            return there
        there = self._together_there(there)
        if isinstance(there, RefusalReason):
            return there
        left = there & verdicts.mask
        if not left.any():
            return self._elsewhere(NodeReasons(self._inventory, self._request, verdicts, there).why(), there)
        return self._beside(self._now(left), there & ~left, left)

    def _there(self) -> Bools | RefusalReason:
        """Return the nodes that could meet each of the requests with idle devices, or why there are none."""
        there: Bools = self._inventory.nodes.present[: self._inventory.nodes.size].copy()
        for group, columns in self._trace.wanted:
            could = self._could(group, columns)
            if not could.any():
                return self._lasting(group, columns)
            there &= could
        return there if there.any() else self._together()

    def _could(self, group: RequestGroup, columns: list[RequestColumns]) -> Bools:
        """Return the nodes that could meet some alternative with idle devices."""
        (first, *others) = zip(group.alternatives, columns, strict=True)
        found = first[1].idle().enough(first[0].count)
        for view, column in others:
            found |= column.idle().enough(view.count)
        return found

    def _lasting(self, group: RequestGroup, columns: list[RequestColumns]) -> RefusalReason:
        """Return why a request can never be met: for the last of its alternatives, then for others."""
        *others, last = [
            lasting_reason(self._words_of(group, view, column), column.idle())
            for view, column in zip(group.alternatives, columns, strict=True)
        ]
        best = [last.best, *[f"{each.request}: {each.asked}, {each.best}" for each in others[:_ALTERNATIVES_NAMED]]]
        return replace(last, best="; ".join(filter(None, best)))

    def _words(self, group: RequestGroup, columns: list[RequestColumns]) -> RequestWords:
        """Return the words of the last alternative that idle devices could meet, else of the last."""
        possible = [
            each for each in zip(group.alternatives, columns, strict=True) if each[1].idle().enough(each[0].count).any()
        ]
        view, column = possible[-1] if possible else (group.alternatives[-1], columns[-1])
        return self._words_of(group, view, column)

    def _words_of(self, group: RequestGroup, view: ResolvedRequest, column: RequestColumns) -> RequestWords:
        stated = self._request.policies.stated.get(view.claim_key, ())
        listing = listing_annotations(stated, view.name)
        return RequestWords(self._inventory, view, column, listing, self._name(group, view))

    def _name(self, group: RequestGroup, view: ResolvedRequest | None = None) -> str:
        """Return how to call a request, or one of its alternatives: not at all where the pod has only one."""
        several = len(group.alternatives) > 1
        if len(self._trace.wanted) == 1 and not several:
            return ""
        name = f"request {printable(view.name if view is not None and several else group.name)}"
        return name if self._names[group.name] == 1 else f"{name} of ResourceClaim {group.alternatives[-1].claim_key}"

    # -- several requests ----------------------------------------------------------------------------

    def _together(self) -> RefusalReason:
        """Every request could be met on some node, but no node could meet them all."""
        words = [self._words(group, columns) for group, columns in self._trace.wanted]
        each = [
            f"{words.short_name} on {counted(int(self._could(group, columns).sum()), 'node')}"
            for words, (group, columns) in zip(words, self._trace.wanted, strict=True)
        ]
        best = f"no node has all of them: {listed(each, REQUESTS_NAMED)}"
        return RefusalReason("requests", together_text(words), best, never=True, code=names.NODE_INSUFFICIENT_DEVICE)

    def _together_there(self, there: Bools) -> Bools | RefusalReason:
        """Return the nodes where no rule keeps idle devices from being given together, or the rule that does everywhere."""
        managed, foreign = (
            [self._words(*each) for each in part if not each[0].prioritized and each[0].alternatives[0].count]
            for part in (self._trace.wanted[: self._trace.ours], self._trace.wanted[self._trace.ours :])
        )
        return without_lasting_rules(
            self._inventory, self._request, there, managed=managed, foreign=foreign, drivers=self._drivers
        )

    # -- nodes and devices ---------------------------------------------------------------------------

    def _elsewhere(self, reason: RefusalReason, there: Bools) -> RefusalReason:
        """Return the reason of the nodes that have the requested devices, with the number of those that have others."""
        others = self._inventory.nodes.present[: len(there)] & ~there
        for _, columns in self._trace.wanted:
            others = others & (columns[-1].idle().of_class > 0)
        if not (count := int(np.count_nonzero(others))) or self._request.required_node:
            return reason
        what = f"the devices of {'the other node' if count == 1 else f'{count} other nodes'} could never meet it"
        return replace(reason, best=f"{reason.best}; {what}" if reason.best else what)

    def _beside(self, reason: RefusalReason, refused: Bools, left: Bools) -> RefusalReason:
        """Return what the nodes lack that have the devices free, then why the others have none now.

        `refused`: by a node reason; `left`: not.
        """
        if not refused.any():
            return reason
        for group, columns in self._trace.wanted:
            refused = refused & enough(self._inventory, group, columns)
        if not refused.any() or reason.kind == "quota" or self._request.required_node:
            return reason
        nodes = NodeReasons(self._inventory, self._request, self._trace.verdicts, refused, free=True).why()
        if nodes.code in _NOT_OF_NODES:
            return reason
        count = int(np.count_nonzero(left))
        where = f"on the {'node' if count == 1 else f'{count} nodes'} that the pod may use"
        subject = f"{reason.request}: " if reason.request else ""
        devices = f"{where}: {subject}{reason.asked}, {reason.best}"
        best = f"{nodes.best}; {devices}" if nodes.best else devices
        fix = ". ".join([each for each in (nodes.fix, reason.fix) if each])
        return replace(nodes, best=best, never=False, fix=fix)

    # -- now -----------------------------------------------------------------------------------------

    def _now(self, left: Bools) -> RefusalReason:
        quota = self._trace.quota
        shortage = self._trace.shortage()
        if quota is not None and shortage is not None and shortage.notes:
            return quota.reason(left, shortage)
        for group, columns in self._trace.wanted:
            lacking = left & ~enough(self._inventory, group, columns)
            left = left & ~lacking
            if not left.any():
                words = self._words(group, columns)
                return passing_reason(words, words.column.idle(), lacking)
        for code, refused in self._trace.estimates.refused.items():
            if (refused & left).any():
                return self._no_set(code, refused & left)
        return self._no_choice(left)

    def _no_set(self, code: str, nodes: Bools) -> RefusalReason:
        """Return which sets of devices are lacking among those that are free."""
        (group, _), *_ = self._trace.wanted
        view = group.alternatives[-1]
        stated = [each for each in self._request.policies.stated.get(view.claim_key, ()) if each.annotation in DEMANDS]
        demands = [f"{each.annotation}={printable(each.value)}" for each in stated]
        what = _SET_TEXTS.get(code) or set_text([each.annotation for each in stated])
        asked = f"needs {counted(view.count, 'device')} {what}"
        if demands:
            asked += f" ({', '.join(demands)})"
        best = f"{_have(nodes)} enough free devices, {self._free(nodes)}, and no such set is free"
        return RefusalReason("set", asked, best, code=code)

    def _no_choice(self, nodes: Bools) -> RefusalReason:
        """Return that only the search found no devices: of constraints, shared counters, or
        requests that compete for the same devices.
        """
        claims = (entry.claim for entry in self._request.claims if entry.claim.status.allocation is None)
        constraints = [each for claim in claims for each in claim.spec.devices.constraints]
        texts = [
            f"the same {printable(each.match_attribute)} (matchAttribute)"
            if each.match_attribute is not None
            else f"different {printable(each.distinct_attribute or '')} (distinctAttribute)"
            for each in constraints[:_CONSTRAINTS_NAMED]
        ]
        total = sum(max(group.alternatives[-1].count, 1) for group, _ in self._trace.wanted)
        asked = f"needs {counted(total, 'device')} on one node{f' with {_AND.join(texts)}' if texts else ''}"
        best = f"{_have(nodes)} free devices for each request, {self._free(nodes)}, and no such set is free"
        return RefusalReason("search", asked, best)

    def _free(self, nodes: Bools) -> str:
        """Return the largest numbers of free devices on one node, whatever set they make."""
        words = [self._words(group, columns) for group, columns in self._trace.wanted]
        fitting = sum(each.column.fitting[: len(nodes)] for each in words)
        row = int(np.where(nodes, fitting, -1).argmax())
        counts = [int(each.column.fitting[row]) + each.column.network_attached for each in words]
        where = f"({self._inventory.nodes.names[row]})"
        if len(words) == 1:
            return f"the most {counts[0]} {where}"
        parts = [f"{count} for {each.short_name}" for count, each in zip(counts, words, strict=True)]
        return f"the most {listed(parts, REQUESTS_NAMED)} {where}"


def _have(nodes: Bools) -> str:
    count = int(np.count_nonzero(nodes))
    return f"{counted(count, 'node')} {'has' if count == 1 else 'have'}"


_NOT_OF_NODES: Final = (catalogue.NODE_CLAIM_ELSEWHERE, catalogue.NODE_OUTSIDE_DOMAIN)
"""Reasons by which other nodes are out that are the pod's own: its devices are what matters."""
_AND: Final = " and "
_CONSTRAINTS_NAMED: Final = 3
_ALTERNATIVES_NAMED: Final = 3
_SET_TEXTS: Final = {names.NODE_HANDLES_EXHAUSTED: "in slices, for each of which the driver needs a handle"}
