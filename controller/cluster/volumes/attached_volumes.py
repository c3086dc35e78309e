"""CSI volumes that count against the limits of the nodes: those of pods, and those still attached.

Updated node by node: a change marks the nodes whose pods or attachments it concerns, and they are
counted again when read. Source: NodeVolumeLimits (filterAttachableVolumes). Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.volumes.csi_translation import (
    CsiVolumeId,
    Untranslatable,
    driver_of_provisioner,
    inline_volume,
    persistent_volume,
    plugin_of,
)
from controller.cluster.volumes.storage_objects import StorageObjects, is_for_pod
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import volume_claim_refs
from hami_dra.api.storage import PersistentVolumeClaim
from hami_dra.kube.store import Index

_PLANNED: Final = "(to be made) "
"""Prefix of the handles of volumes that do not exist yet."""
_NONE: Final[Mapping[str, Pod]] = {}
_MOST_STALE: Final = 64
"""Nodes that wait to be counted again; beyond that they are counted at once."""


class Unowned(ValueError):
    """A claim of an ephemeral volume was made for another pod; the message says which."""


class PodVolumes:
    """The CSI volumes of one pod: (driver, handle) each, `native` ones on every node, `migrated`
    ones only on nodes with a CSINode, for in-tree plugins.
    """

    def __init__(self, objects: StorageObjects, pod: Pod) -> None:
        """Raises Unowned, Untranslatable (on nodes with a CSINode kube-scheduler fails)."""
        self.native: set[CsiVolumeId] = set()
        self.migrated: set[CsiVolumeId] = set()
        for volume in pod.spec.volumes:
            if plugin_of(volume) is not None:
                self.migrated.add(inline_volume(volume))
        for ref in volume_claim_refs(pod):
            claim = objects.claims.get(ref.key)
            if claim is None:
                continue
            if ref.is_ephemeral and not is_for_pod(claim, pod):
                raise Unowned(f"PersistentVolumeClaim {ref.key} was not made for Pod {pod.key}")
            self._add(objects, claim)

    def on(self, *, has_csi_node: bool) -> set[CsiVolumeId]:
        return self.native | self.migrated if has_csi_node and self.migrated else self.native

    def _add(self, objects: StorageObjects, claim: PersistentVolumeClaim) -> None:
        volume = objects.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is None:
            storage_class = objects.class_of(claim) if claim.storage_class else None
            if storage_class is not None:
                driver, is_migrated = driver_of_provisioner(storage_class.provisioner)
                self._put(CsiVolumeId(driver, _PLANNED + claim.key), is_migrated=is_migrated)
        elif volume.spec.csi is not None:
            self._put(CsiVolumeId(volume.spec.csi.driver, volume.spec.csi.volume_handle), is_migrated=False)
        elif plugin_of(volume.spec) is not None:
            try:
                self._put(persistent_volume(volume), is_migrated=True)
            except Untranslatable:
                return  # kube-scheduler does not count it

    def _put(self, found: CsiVolumeId, *, is_migrated: bool) -> None:
        if found.driver and found.handle:
            (self.migrated if is_migrated else self.native).add(found)


class AttachedVolumes:
    """The volumes on all nodes."""

    def __init__(self, nodes: NodeColumns, objects: StorageObjects) -> None:
        self._nodes = nodes
        self._objects = objects
        self._pods: dict[str, dict[str, Pod]] = {}
        """By name of the node and uid: pods there that have volumes."""
        self._is_followed = False
        """A limit was asked for once: a cluster without limits counts nothing."""
        self._stale: set[str] = set()
        self._mounted: dict[str, set[CsiVolumeId]] = {}
        """By name of the node: the volumes of its pods."""
        self._others: dict[str, set[CsiVolumeId]] = {}
        """By name of the node: volumes that are attached without a pod that uses them."""
        self._mounted_on = Index()
        """Volume → names of the nodes."""
        self._failing: set[str] = set()
        """Nodes with a pod whose volumes kube-scheduler fails on."""
        self._columns: dict[str, Ints] = {}
        """By driver: the number of volumes, by row."""
        self._arrivals = -1

    # -- feeds -------------------------------------------------------------------------------------

    def add(self, uid: str, pod: Pod, node: str) -> None:
        self._pods.setdefault(node, {})[uid] = pod
        self.touch((node,))

    def remove(self, uid: str, node: str) -> None:
        there = self._pods.get(node, {})
        there.pop(uid, None)
        if not there:
            self._pods.pop(node, None)
        self.touch((node,))

    def touch(self, nodes: Iterable[str]) -> None:
        """Count these nodes again: something that decides about their volumes changed."""
        if self._is_followed:
            self._stale.update(nodes)
            if len(self._stale) > _MOST_STALE:
                self._refresh()

    def touch_all(self) -> None:
        self.touch(self._pods)

    # -- reading -----------------------------------------------------------------------------------

    def count(self, driver: str) -> Ints:
        """Return how many volumes of the driver the nodes have. Shape (size,)."""
        self._refresh()
        column = self._columns.get(driver)
        if column is None:
            column = self._columns[driver] = np.zeros(self._nodes.size, dtype=np.int64)
            for name in self._mounted.keys() | self._others.keys():
                if (row := self._nodes.index_of(name)) >= 0:
                    column[row] = self._count_on(name, driver)
        return column

    def mounted_on(self, volume: CsiVolumeId) -> Iterable[str]:
        self._refresh()
        return self._mounted_on.keys(volume)

    def failing(self) -> Bools:
        """Return the nodes where kube-scheduler fails to count. Shape (size,)."""
        self._refresh()
        return self._nodes.named(self._failing)

    def without(self, node: str, uid: str) -> tuple[set[CsiVolumeId], set[CsiVolumeId]]:
        """Return what is mounted on the node, and what else is attached, as if the pod were not there."""
        pods = self._pods.get(node, _NONE)
        return self._counted(node, {other: pod for other, pod in pods.items() if other != uid})[:2]

    # -- inside ------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self._is_followed:
            self._is_followed = True
            self._stale.update(self._pods, self._objects.nodes_with_attachments())
        if self._arrivals != self._nodes.arrivals:
            self._arrivals = self._nodes.arrivals
            self._columns.clear()
        for name in self._stale:
            self._recount(name)
        self._stale.clear()

    def _recount(self, name: str) -> None:
        before = self._mounted.pop(name, set())
        drivers = {volume.driver for volume in before | self._others.pop(name, set())}
        for volume in before:
            self._mounted_on.discard(volume, name)
        mounted, others, fails = self._counted(name, self._pods.get(name, _NONE))
        if mounted:
            self._mounted[name] = mounted
        if others:
            self._others[name] = others
        for volume in mounted:
            self._mounted_on.add(volume, name)
        (self._failing.add if fails else self._failing.discard)(name)
        row = self._nodes.index_of(name)
        if row >= 0:
            for driver in drivers.union(volume.driver for volume in mounted | others) & self._columns.keys():
                self._columns[driver][row] = self._count_on(name, driver)

    def _counted(self, name: str, pods: Mapping[str, Pod]) -> tuple[set[CsiVolumeId], set[CsiVolumeId], bool]:
        objects = self._objects
        mounted: set[CsiVolumeId] = set()
        fails = False
        has_csi_node = name in objects.csi_nodes
        for pod in pods.values():
            try:
                mounted |= PodVolumes(objects, pod).on(has_csi_node=has_csi_node)
            except Unowned:
                fails = True
            except Untranslatable:
                fails = fails or has_csi_node
        attached: set[CsiVolumeId] = set()
        for attachment in objects.attached_to(name):
            spec = attachment.spec
            volume = objects.volumes.get(spec.source.persistent_volume_name or "")
            if spec.attacher and volume is not None and volume.spec.csi is not None:
                attached.add(CsiVolumeId(spec.attacher, volume.spec.csi.volume_handle))
        return mounted, attached - mounted, fails

    def _count_on(self, name: str, driver: str) -> int:
        return sum(
            volume.driver == driver for volumes in (self._mounted, self._others) for volume in volumes.get(name, ())
        )
