"""VolumeRestrictions for disks that a pod names itself (GCE, AWS, iSCSI, RBD): two pods of one node
cannot use the same disk, unless both only read it. Pure.
"""

from collections.abc import Hashable, Iterator

from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pod_names import PodNames
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod
from hami_dra.api.podvolumes import Volume

Disk = tuple[str, Hashable]


class DiskUsers:
    """The pods on nodes that use such disks."""

    def __init__(self, nodes: NodeColumns, pod_names: PodNames) -> None:
        self._nodes = nodes
        self._pod_names = pod_names
        self._users: dict[Disk, dict[str, tuple[str, str, bool]]] = {}
        """By disk and uid: (node, key of the pod, only reads)."""

    def add(self, uid: str, pod: Pod, node: str) -> None:
        for disk, reads in disks_of(pod):
            users = self._users.setdefault(disk, {})
            before = users.get(uid)
            users[uid] = node, pod.key, reads and (before is None or before[2])

    def remove(self, uid: str, pod: Pod) -> None:
        for disk, _ in disks_of(pod):
            users = self._users.get(disk)
            if users is not None:
                users.pop(uid, None)
                if not users:
                    del self._users[disk]

    def refused(self, pod: Pod) -> Bools | None:
        """Return the nodes where another pod uses a disk of this one; None: it names no disk."""
        mask = None
        for disk, reads in disks_of(pod):
            there = self._nodes.named(node for node, _ in self._conflicts(disk, pod.metadata.uid, reads=reads))
            mask = there if mask is None else mask | there
        return mask

    def reason(self, pod: Pod, row: int) -> str:
        """Return which pod uses which disk on the node, or an empty text."""
        name = self._nodes.names[row]
        for disk, reads in disks_of(pod):
            for node, other in self._conflicts(disk, pod.metadata.uid, reads=reads):
                if node == name:
                    return f"{disk[0]} {_name(disk)} is in use there by {self._pod_names.of(other, pod)}"
        return ""

    def _conflicts(self, disk: Disk, uid: str, *, reads: bool) -> Iterator[tuple[str, str]]:
        for other, (node, key, also_reads) in self._users.get(disk, {}).items():
            if other != uid and not (reads and also_reads):
                yield node, key


def disks_of(pod: Pod) -> Iterator[tuple[Disk, bool]]:
    """Return the disks that the pod names, and whether it only reads them.

    An RBD image is one disk for each of its monitors: two images are the same if they share one.
    """
    for volume in pod.spec.volumes:
        yield from _disks(volume)


def _disks(volume: Volume) -> Iterator[tuple[Disk, bool]]:
    if (gce := volume.gce_persistent_disk) is not None:
        yield ("GCE disk", gce.pd_name), gce.read_only
    if (aws := volume.aws_elastic_block_store) is not None:
        yield ("AWS volume", aws.volume_id), False
    if (iscsi := volume.iscsi) is not None:
        yield ("iSCSI target", iscsi.iqn), iscsi.read_only
    if (rbd := volume.rbd) is not None:
        for monitor in dict.fromkeys(rbd.monitors):
            yield ("RBD image", (rbd.image, rbd.pool, monitor)), rbd.read_only


def _name(disk: Disk) -> str:
    return disk[1][0] if isinstance(disk[1], tuple) else str(disk[1])
