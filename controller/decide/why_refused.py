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

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup, ResolvedRequest
from controller.decide.node_reasons import NodeReasons
from controller.decide.request_reasons import lasting_reason, passing_reason
from controller.decide.request_words import REQUESTS_NAMED, RequestWords, listing_annotations, together_text
from controller.decide.scheduling_request import SchedulingRequest
from controller.decide.set_reasons import no_free_choice, no_free_set, without_lasting_rules
from controller.decide.trace import Trace, enough
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.reason import Reason
from hami_dra.api.arrays import Bools
from hami_dra.api.printable import counted, listed, printable
from hami_dra.vendors import device_codes


def reason_of(inventory: Inventory, request: SchedulingRequest, trace: Trace, drivers: frozenset[str]) -> Reason:
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


@dataclass(frozen=True, slots=True)
class _Refusal:
    inventory: Inventory
    request: SchedulingRequest
    trace: Trace
    drivers: frozenset[str]

    def why(self) -> Reason:
        verdicts = self.trace.verdicts
        if verdicts.refusal is not None:
            return Reason("volume", verdicts.refusal.sentence, code=verdicts.refusal.code)
        if not self.inventory.nodes.present.any():
            return Reason("node", "the cluster has no nodes")
        there = self._there()
        if isinstance(there, Reason):
            return there
        there = self._together_there(there)
        if isinstance(there, Reason):
            return there
        left = there & verdicts.mask
        if not left.any():
            return self._elsewhere(NodeReasons(self.inventory, self.request, verdicts, there).why(), there)
        return self._beside(self._now(left), there & ~left, left)

    def _there(self) -> Bools | Reason:
        """Return the nodes that could meet each of the requests with idle devices, or why there are none."""
        there: Bools = self.inventory.nodes.present[: self.inventory.nodes.size].copy()
        for group, columns in self.trace.wanted:
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

    def _lasting(self, group: RequestGroup, columns: list[RequestColumns]) -> Reason:
        """Return why a request can never be met: for the last of its alternatives, then for others."""
        *others, last = [
            lasting_reason(self._words_of(group, view, column), column.idle())
            for view, column in zip(group.alternatives, columns, strict=True)
        ]
        return last.also(*[f"{each.request}: {each.asked}, {each.best}" for each in others[:_ALTERNATIVES_NAMED]])

    def _words(self, group: RequestGroup, columns: list[RequestColumns]) -> RequestWords:
        """Return the words of the last alternative that idle devices could meet, else of the last."""
        possible = [
            each for each in zip(group.alternatives, columns, strict=True) if each[1].idle().enough(each[0].count).any()
        ]
        view, column = possible[-1] if possible else (group.alternatives[-1], columns[-1])
        return self._words_of(group, view, column)

    def _words_of(self, group: RequestGroup, view: ResolvedRequest, column: RequestColumns) -> RequestWords:
        stated = self.request.policies.stated.get(view.claim_key, ())
        listing = listing_annotations(stated, view.name)
        return RequestWords(self.inventory, view, column, listing, self._name(group, view))

    def _name(self, group: RequestGroup, view: ResolvedRequest) -> str:
        """Return how to call a request, or one of its alternatives: not at all where the pod has only one."""
        several = len(group.alternatives) > 1
        if len(self.trace.wanted) == 1 and not several:
            return ""
        name = printable(view.name if several else group.name)
        namesakes = [each for each, _ in self.trace.wanted if each.name == group.name]
        return f"{name} of ResourceClaim {view.claim_key}" if namesakes[1:] else name

    # -- several requests ----------------------------------------------------------------------------

    def _together(self) -> Reason:
        """Every request could be met on some node, but no node could meet them all."""
        words = [self._words(group, columns) for group, columns in self.trace.wanted]
        each = [
            f"{words.called} on {counted(int(self._could(group, columns).sum()), 'node')}"
            for words, (group, columns) in zip(words, self.trace.wanted, strict=True)
        ]
        best = f"no node has all of them: {listed(each, REQUESTS_NAMED)}"
        return Reason("requests", together_text(words), best, never=True, code=device_codes.NODE_INSUFFICIENT_DEVICE)

    def _together_there(self, there: Bools) -> Bools | Reason:
        """Return the nodes where no rule keeps idle devices from being given together, or the rule that does everywhere."""
        managed, foreign = (
            [self._words(*each) for each in part if not each[0].prioritized and each[0].alternatives[0].count]
            for part in (self.trace.wanted[: self.trace.ours], self.trace.wanted[self.trace.ours :])
        )
        return without_lasting_rules(
            self.inventory, self.request, there, managed=managed, foreign=foreign, drivers=self.drivers
        )

    # -- nodes and devices ---------------------------------------------------------------------------

    def _elsewhere(self, reason: Reason, there: Bools) -> Reason:
        """Return the reason of the nodes that have the requested devices, with the number of those that have others."""
        others = self.inventory.nodes.present[: len(there)] & ~there
        for _, columns in self.trace.wanted:
            others = others & (columns[-1].idle().of_class > 0)
        if not (count := int(np.count_nonzero(others))) or self.request.required_node:
            return reason
        nodes = "the other node" if count == 1 else f"{count} other nodes"
        return reason.also(f"the devices of {nodes} could never meet it")

    def _beside(self, reason: Reason, refused: Bools, left: Bools) -> Reason:
        """Return what the nodes lack that have the devices free, then why the others have none now.

        `refused`: by a node reason; `left`: not.
        """
        if not refused.any():
            return reason
        for group, columns in self.trace.wanted:
            refused = refused & enough(self.inventory, group, columns)
        if not refused.any() or reason.kind == "quota" or self.request.required_node:
            return reason
        nodes = NodeReasons(self.inventory, self.request, self.trace.verdicts, refused, free=True).why()
        if nodes.code in _NOT_OF_NODES:
            return reason
        count = int(np.count_nonzero(left))
        where = f"on the {'node' if count == 1 else f'{count} nodes'} that the pod may use"
        subject = f"{reason.request}: " if reason.request else ""
        fix = ". ".join(filter(None, (nodes.fix, reason.fix)))
        return nodes.also(f"{where}: {subject}{reason.asked}, {reason.best}", never=False, fix=fix)

    # -- now -----------------------------------------------------------------------------------------

    def _now(self, left: Bools) -> Reason:
        quota = self.trace.quota
        shortage = self.trace.shortage()
        if quota is not None and shortage is not None and shortage.notes:
            return quota.reason(left, shortage)
        for group, columns in self.trace.wanted:
            lacking = left & ~enough(self.inventory, group, columns)
            left = left & ~lacking
            if not left.any():
                words = self._words(group, columns)
                return passing_reason(words, words.column.idle(), lacking)
        for code, refused in self.trace.estimates.refused.items():
            if (refused & left).any():
                view = self.trace.wanted[0][0].alternatives[-1]
                return no_free_set(self.request, view, code, self._free(refused & left, "enough free devices"))
        total = sum(max(group.alternatives[-1].count, 1) for group, _ in self.trace.wanted)
        return no_free_choice(self.request, total, self._free(left, "free devices for each request"))

    def _free(self, nodes: Bools, what: str) -> str:
        """Return how many nodes have `what`, and the largest numbers of free devices on one, whatever set they make."""
        words = [self._words(group, columns) for group, columns in self.trace.wanted]
        fitting = sum(each.column.fitting[: len(nodes)] for each in words)
        row = int(np.where(nodes, fitting, -1).argmax())
        counts = [int(each.column.fitting[row]) + each.column.network_attached for each in words]
        parts = [f"{count} for {each.called}" for count, each in zip(counts, words, strict=True)]
        most = listed(parts, REQUESTS_NAMED) if words[1:] else counts[0]
        number = int(np.count_nonzero(nodes))
        have = f"{counted(number, 'node')} {'has' if number == 1 else 'have'} {what}"
        return f"{have}, the most {most} ({self.inventory.nodes.names[row]}), and no such set is free"


_NOT_OF_NODES: Final = (catalogue.NODE_CLAIM_ELSEWHERE, catalogue.NODE_OUTSIDE_DOMAIN)
"""Reasons by which other nodes are out that are the pod's own: its devices are what matters."""
_ALTERNATIVES_NAMED: Final = 3
