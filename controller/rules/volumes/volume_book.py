"""What the cluster's volumes allow: fed by the inventory, read by `volume_plugins`.

Besides the objects of the cluster it counts the pods on nodes, and what decisions hold until
kube-scheduler carries them out: the free volume that a pod about to be bound will get, and the node
for which a volume will be provisioned. kube-scheduler's own assume caches do the same. Pure.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from msgspec import Struct

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pods.pod_names import PodNames
from controller.cluster.pods.pod_shapes import PodShapes
from controller.cluster.volumes.attached_volumes import AttachedVolumes
from controller.cluster.volumes.csi_nodes import CsiNodeColumns
from controller.cluster.volumes.disk_conflicts import DiskUsers
from controller.cluster.volumes.free_volumes import FreeVolumes
from controller.cluster.volumes.storage_capacity import StorageCapacities
from controller.cluster.volumes.storage_objects import StorageObjects
from controller.cluster.volumes.volume_binding import Binding, VolumeBinding
from controller.cluster.volumes.volume_limits import VolumeLimits
from controller.rules.plugin import PodRefusal
from controller.rules.volumes.pod_claims import claims_of, is_exclusive
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podclaims import volume_claim_refs
from hami_dra.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass

_NOBODY: Final[dict[str, Placed]] = {}


class _Reservation(Struct, frozen=True):
    node: str
    binding: Binding


class VolumeBook:
    def __init__(self, nodes: NodeColumns, labels: NodeLabels, pod_names: PodNames, shapes: PodShapes) -> None:
        self.objects = StorageObjects()
        self.labels = labels
        self.disks = DiskUsers(nodes, pod_names)
        self.version = 0
        """Increases with each change of what is in the book."""
        self.on_unused: Callable[[str], None] | None = None
        """Called with the key of a ReadWriteOncePod claim that no pod on a node uses any more."""
        self.on_trial: set[str] = set()
        """Uids of pods that a trial places, or lifts from their node: none of that frees a claim for others."""
        self._nodes = nodes
        self._csi_nodes = CsiNodeColumns(nodes, self.objects)
        self._attached = AttachedVolumes(nodes, self.objects)
        self._free = FreeVolumes(nodes, self.labels, shapes)
        self._capacities = StorageCapacities(nodes, self.labels)
        self._selected: dict[str, str] = {}
        """Key of a claim → node for which its volume will be made, by a decision."""
        self._reservations: dict[str, _Reservation] = {}
        """By uid of the pod."""
        self._lost: dict[str, Placed] = {}
        """By uid: pods that are not bound yet and cannot have their volumes any more: one went, or went to others."""
        self._users: dict[str, dict[str, Placed]] = {}
        """By key of the claim and uid: the pods on nodes that use it."""
        self.limits = VolumeLimits(nodes, self.objects, self._csi_nodes, self._attached)
        self.binding = VolumeBinding(
            nodes, self.objects, self.labels, self._csi_nodes, self._free, self._capacities, self._selected
        )
        self._feeds: dict[str, Callable[[str, Any], None]] = {
            kinds.STORAGE_CLASS.name: self._class_changed,
            kinds.CSI_NODE.name: self._csi_node_changed,
            kinds.CSI_DRIVER.name: partial(_put, self.objects.drivers),
            kinds.CSI_STORAGE_CAPACITY.name: self._capacities.put,
            kinds.PERSISTENT_VOLUME.name: self._volume_changed,
            kinds.PERSISTENT_VOLUME_CLAIM.name: self._claim_changed,
            kinds.VOLUME_ATTACHMENT.name: self._attachment_changed,
        }

    # -- objects -----------------------------------------------------------------------------------

    def set_readable(self, kind: Kind[Any], readable: bool) -> None:
        """Note whether the objects of a kind of `kinds.STORAGE` are known."""
        self.version += 1
        (self.objects.unreadable.discard if readable else self.objects.unreadable.add)(kind.name)

    def changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        """Update an object of one of `kinds.STORAGE`."""
        feed = self._feeds[kind]
        self.version += 1
        for key in {each.key for each in (old, new) if each is not None}:
            feed(key, new if new is not None and new.key == key else None)

    def _class_changed(self, name: str, storage_class: StorageClass | None) -> None:
        _put(self.objects.classes, name, storage_class)
        self._attached.touch_all()

    def _csi_node_changed(self, name: str, node: CSINode | None) -> None:
        _put(self.objects.csi_nodes, name, node)
        self._csi_nodes.changed(name)
        self._attached.touch((name,))

    def _volume_changed(self, name: str, volume: PersistentVolume | None) -> None:
        _put(self.objects.volumes, name, volume)
        before = self._free.holder(name)
        self._free.changed(name, volume)
        if before and self._free.holder(name) != before:
            users = self._users.get(before, _NOBODY).items()
            lost = [(uid, placed) for uid, placed in users if self._end_reservation(uid, before)]
            for uid, placed in lost:
                self._reserve(uid, placed)
        self._reserve_for_lost()
        for key in self.objects.claims_of_volume(name):
            self._attached.touch(placed.node for placed in self._users.get(key, _NOBODY).values())
        self._attached.touch(self.objects.nodes_of_volume(name))

    def _claim_changed(self, key: str, claim: PersistentVolumeClaim | None) -> None:
        self.objects.put_claim(key, claim)
        self._free.claim_changed(key)
        users = self._users.get(key, _NOBODY)
        self._attached.touch(placed.node for placed in users.values())
        if claim is None or claim.spec.volume_name or claim.selected_node is not None:
            for uid in users:
                self._end_reservation(uid, key)
        for uid, placed in users.items():
            if uid not in self._reservations:  # such as a pod one of whose claims did not exist when it was placed
                self._reserve(uid, placed)
        self._reserve_for_lost()

    def _attachment_changed(self, key: str, attachment: Any) -> None:
        before = self.objects.attachments.get(key)
        self.objects.put_attachment(key, attachment)
        self._attached.touch({each.spec.node_name for each in (before, attachment) if each is not None})

    # -- pods on nodes -----------------------------------------------------------------------------

    def add(self, uid: str, placed: Placed) -> None:
        """Count a pod on its node, bound or chosen, with what it will get there."""
        pod = placed.pod
        if not pod.spec.volumes:
            return
        self.version += 1
        self.disks.add(uid, pod, placed.node)
        self._attached.add(uid, pod, placed.node)
        for ref in volume_claim_refs(pod):
            self._users.setdefault(ref.key, {})[uid] = placed
        self._reserve(uid, placed)

    def remove(self, uid: str, placed: Placed) -> None:
        pod = placed.pod
        if not pod.spec.volumes:
            return
        self.version += 1
        unused = []
        self._lost.pop(uid, None)
        self.disks.remove(uid, pod)
        self._attached.remove(uid, placed.node)
        for ref in volume_claim_refs(pod):
            if (users := self._users.get(ref.key)) is not None:
                users.pop(uid, None)
                if (
                    uid not in self.on_trial
                    and users.keys() <= self.on_trial
                    and is_exclusive(self.objects.claims.get(ref.key))
                ):
                    unused.append(ref.key)
                if not users:
                    del self._users[ref.key]
            self._end_reservation(uid, ref.key)
        if uid not in self.on_trial:
            self._reserve_for_lost()
        if self.on_unused is not None:
            for key in unused:
                self.on_unused(key)

    def user_of(self, key: str, but: str) -> str:
        """Return the key of a pod on a node that uses the claim by name, or an empty text. As for
        kube-scheduler, a pod whose node is gone uses nothing.

        `but`: uid of a pod that does not count.
        """
        for uid, placed in self._users.get(key, _NOBODY).items():
            if uid == but or self._nodes.index_of(placed.node) < 0:
                continue
            if any(ref.key == key and not ref.is_ephemeral for ref in volume_claim_refs(placed.pod)):
                return placed.pod.key
        return ""

    def is_binding(self, pod: Pod, node: str) -> bool:
        """Return whether a volume of the pod is being made for the node, or bound to its claim."""
        for ref in volume_claim_refs(pod) if pod.spec.volumes else ():
            claim = self.objects.claim_of(ref, pod)
            if claim is not None and not claim.is_fully_bound:
                volume = self._free.reserved_for(claim)
                if claim.selected_node == node or (volume is not None and volume.spec.claim_ref is not None):
                    return True
        return False

    # -- reservations ------------------------------------------------------------------------------

    def _reserve(self, uid: str, placed: Placed) -> None:
        row = self._nodes.index_of(placed.node)
        if row < 0 or not self.objects.are_claims_readable:
            return
        self._lost.pop(uid, None)
        claims = claims_of(placed.pod, self.objects)
        if isinstance(claims, PodRefusal) or not claims.to_place.waiting:
            return
        binding = self.binding.bind(claims.to_place.waiting, row)
        if binding is None:
            if not placed.pod.spec.node_name:  # kube-scheduler gives volumes to no pod that is bound
                self._lost[uid] = placed
            return
        self._reservations[uid] = _Reservation(placed.node, binding)
        for key in (*binding.volumes, *binding.provisioned):
            self._hold(self._reservations[uid], key)

    def _reserve_for_lost(self) -> None:
        for uid, placed in tuple(self._lost.items()):
            self._reserve(uid, placed)

    def _hold(self, reservation: _Reservation, key: str) -> None:
        """Keep what a reservation has for one claim from other pods."""
        if (volume := reservation.binding.volumes.get(key)) is not None:
            self._free.reserve(volume, key)
        elif key in reservation.binding.provisioned:
            self._selected[key] = reservation.node

    def _let_go(self, reservation: _Reservation, uid: str, key: str) -> None:
        """Give back what a pod's reservation has for one claim; another pod may hold it too."""
        if (volume := reservation.binding.volumes.get(key)) is not None:
            self._free.release(volume, key)
        elif self._selected.get(key) == reservation.node:
            del self._selected[key]
        for other in self._users.get(key, _NOBODY):
            if other != uid and (found := self._reservations.get(other)) is not None:
                self._hold(found, key)

    @contextmanager
    def without_reservation(self, uid: str) -> Iterator[None]:
        """Ignore the pod's own reservation within the block. The book must not change in the meantime."""
        reservation = self._reservations.pop(uid, None)
        if reservation is None:
            yield
            return
        keys = (*reservation.binding.volumes, *reservation.binding.provisioned)
        for key in keys:
            self._let_go(reservation, uid, key)
        try:
            yield
        finally:
            self._reservations[uid] = reservation
            for key in keys:
                self._hold(reservation, key)

    def _end_reservation(self, uid: str, key: str) -> bool:
        """Take back what the pod reserved for one claim. Return whether it had anything."""
        reservation = self._reservations.get(uid)
        if reservation is None:
            return False
        binding = reservation.binding
        if key not in binding.volumes and key not in binding.provisioned:
            return False
        self._let_go(reservation, uid, key)
        volumes = {other: name for other, name in binding.volumes.items() if other != key}
        provisioned = tuple(other for other in binding.provisioned if other != key)
        if volumes or provisioned:
            self._reservations[uid] = _Reservation(reservation.node, Binding(volumes, provisioned))
        else:
            del self._reservations[uid]
        return True


def _put(where: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value
