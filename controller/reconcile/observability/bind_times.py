"""How long pods that fitted at once took from their creation to a node (`hami_dra_bind_seconds`)."""

from collections.abc import Iterable
from datetime import timedelta

from controller.reconcile.runtime import Context
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_bound
from hami_dra.api.times import elapsed


class BindTimes:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._began = context.clock.wall()
        """Of pods that are older, an earlier leader may have refused some."""
        self._waited: set[str] = set()
        self._placed: set[str] = set()
        """By UID, until they are bound."""

    def refused(self, pods: Iterable[Pod]) -> None:
        self._waited.update([pod.metadata.uid for pod in pods])

    def placed(self, pods: Iterable[Pod]) -> None:
        self._placed.update({pod.metadata.uid for pod in pods} - self._waited)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscribed by the term."""
        pod = new or old
        if pod is None or (new is not None and not is_bound(new)):
            return
        uid, now = pod.metadata.uid, self._context.clock.wall()
        age = elapsed(pod.metadata.creation_timestamp, now)
        if new is not None and uid in self._placed and age is not None and age <= now - self._began:
            self._context.metrics.bind_seconds.observe(age / timedelta(seconds=1))
        self._waited.discard(uid)
        self._placed.discard(uid)
