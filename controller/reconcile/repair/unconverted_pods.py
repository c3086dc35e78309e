"""Reports to owners of pods that the webhook should have converted, but did not, what to do.

Subscribed by the controller. Needs the conversion, which knows the legacy resources.
"""

from collections import Counter

from controller.reconcile.queueing import Conversion
from controller.reconcile.runtime import Events, messages
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import is_pending, is_unschedulable
from hami_dra.api.quantity import InvalidQuantity, Quantity


class NodeResources:
    """The extended resources that device plugins offer."""

    def __init__(self) -> None:
        self._offered: Counter[str] = Counter()
        """Extended resource → number of nodes whose device plugin offers it."""

    def names(self) -> set[str]:
        return {name for name, nodes in self._offered.items() if nodes > 0}

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None:
            self._offered.subtract(_offered(old))
        if new is not None:
            self._offered.update(_offered(new))


class UnconvertedPodWatch:
    def __init__(self, conversion: Conversion, events: Events) -> None:
        self._conversion = conversion
        self._events = events
        self._resources = NodeResources()
        self.node_changed = self._resources.node_changed

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.spec.resource_claims or not is_pending(new) or not is_unschedulable(new):
            return
        if old is not None and is_unschedulable(old):
            return
        if note := self._conversion.bypassed(new, self._resources.names()):
            self._events.report(POD, new, messages.warning(messages.WEBHOOK_BYPASSED, note), "Convert")


def _offered(node: Node) -> list[str]:
    names = []
    for name, amount in node.status.allocatable.items():
        if "/" in name:
            try:
                if Quantity.parse(str(amount)).sign() > 0:
                    names.append(name)
            except InvalidQuantity:
                continue
    return names
