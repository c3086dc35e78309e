"""Maps changes of volumes to the pods to evaluate again.

Subscribed by the term while it leads, next to `triggers`. A change of a claim concerns the pods
that name it; one of a volume, the pods whose claims name the volume or are named by it; a claim
that no pod uses any more, the others that name it (ReadWriteOncePod). All else (a class, the
capacity of a driver, an attachment that ended) is news for the pods that a volume plugin of
kube-scheduler refused (`queueing_hints`).
"""

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from controller.reasons import Change
from controller.reconcile.queueing.triggers import Triggers
from controller.reconcile.runtime import Context
from hami_dra.api import kinds
from hami_dra.api.meta import Object
from hami_dra.api.podstate import is_pending
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass


class VolumeTriggers:
    def __init__(self, context: Context, triggers: Triggers) -> None:
        self._informers = context.informers
        self._volumes = context.inventory.volumes
        self._triggers = triggers

    def subscribe(self, ends: ExitStack) -> None:
        """Subscribe to all kinds of `kinds.STORAGE` until `ends` is closed."""
        listeners: dict[str, Any] = {
            kinds.PERSISTENT_VOLUME_CLAIM.name: self._claim_changed,
            kinds.PERSISTENT_VOLUME.name: self._volume_changed,
            kinds.STORAGE_CLASS.name: self._class_changed,
        }
        for name, informer in self._informers.storage.items():
            ends.callback(informer.subscribe(listeners.get(name, self._other_changed)))
        self._volumes.on_unused = self._claim_unused
        ends.callback(partial(setattr, self._volumes, "on_unused", None))

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if _differ(old, new):
            key = (new or old or PersistentVolumeClaim()).key
            self._evaluate_users([key])
            self._triggers.made_room(Change.VOLUMES, key.partition("/")[0])

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if not _differ(old, new):
            return
        keys: set[str] = set()
        for each in (old, new):
            if each is not None:
                keys.update(self._volumes.objects.claims_of_volume(each.metadata.name))
                if each.spec.claim_ref is not None:
                    keys.add(each.spec.claim_ref.key)
        self._evaluate_users(keys)
        self._triggers.made_room(Change.VOLUMES)

    def _class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """A pod whose claim names a class that did not exist waits for it."""
        if _differ(old, new):
            self._triggers.evaluate_waiting(lambda pod: bool(pod.spec.volumes))
            self._triggers.made_room(Change.VOLUMES)

    def _other_changed(self, old: Object | None, new: Object | None) -> None:
        if _differ(old, new):
            self._triggers.made_room(Change.VOLUMES)

    def _claim_unused(self, key: str) -> None:
        self._evaluate_users([key])

    def _evaluate_users(self, claim_keys: Iterable[str]) -> None:
        for key in claim_keys:
            for pod in self._informers.pods_with_volume_claim(key):
                if is_pending(pod):
                    self._triggers.evaluate(pod)


def _differ(old: Object | None, new: Object | None) -> bool:
    """Return whether something that is read differs: finalizers and versions of objects are not."""
    return old is None or new is None or _content(old) != _content(new)


def _content(found: Any) -> object:
    meta = found.metadata
    fields = [getattr(found, name) for name in found.__struct_fields__ if name != "metadata"]
    deleted = meta.deletion_timestamp is not None
    return meta.uid, deleted, meta.labels, meta.annotations, meta.owner_references, fields
