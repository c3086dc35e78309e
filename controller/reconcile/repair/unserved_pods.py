"""Reports to owners of pods that get no devices as they are what to do. Subscribed by the controller."""

from collections import Counter

from controller.reconcile.runtime import Events, SchedulingSettings, messages
from controller.webhook import LegacyConversion
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import is_pending, is_probe, is_unschedulable
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.served_pods import asks_for_hami_dra, unserved_scheduler


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
    """Of pods that the webhook should have converted, but did not. The conversion knows the legacy resources."""

    def __init__(self, conversion: LegacyConversion, events: Events) -> None:
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


class UnservedPodWatch:
    """Of pods that want devices by hami-dra and name a scheduler that it does not serve, in exclusive mode.

    Such a pod gets no devices: hami-dra leaves it to its scheduler, and the fence keeps the devices
    from every other allocator. Pods without a mark of their own are found by `hami-dra doctor`: here
    their claims' selectors would be evaluated without a limit.
    """

    def __init__(self, settings: SchedulingSettings, events: Events) -> None:
        self._served = settings.scheduler_names
        self._events = events

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Report a new pod. The scheduler and the claims of a pod never change."""
        if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
            return
        if not new.spec.resource_claims or not is_pending(new) or is_probe(new):
            return
        note = unserved_scheduler(new.spec.scheduler_name, self._served)
        if note and asks_for_hami_dra(new.metadata.labels, new.metadata.annotations):
            self._events.report(POD, new, messages.warning(messages.SCHEDULER_NOT_SERVED, note), "Schedule")


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
