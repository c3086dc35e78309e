"""Reports to owners of pods that want devices by hami-dra and name a scheduler that it does not
serve.

Subscribed by the controller in exclusive mode. Such a pod gets no devices: hami-dra leaves it to
its scheduler, and the fence keeps the devices from every other allocator. Pods without a mark of
their own are found by `hami-dra doctor`: here their claims' selectors would be evaluated without a
limit.
"""

from controller.reconcile.runtime import Events, SchedulingSettings, messages
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import is_pending, is_probe
from hami_dra.api.served_pods import asks_for_hami_dra, unserved_scheduler


class UnservedPodWatch:
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
