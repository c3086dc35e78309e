"""NodeVolumeLimits: how many volumes of a CSI driver a node takes, and whether the driver is there.

Limits come from the CSINodes. From Kubernetes 1.37 on (VolumeLimitScaling) a node whose CSINode
lacks a driver is refused where its CSIDriver has `preventPodSchedulingIfMissing`. Pure.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.volumes.attached_volumes import AttachedVolumes, PodVolumes, Unowned
from controller.cluster.volumes.csi_nodes import CsiNodeColumns
from controller.cluster.volumes.csi_translation import Untranslatable
from controller.cluster.volumes.storage_objects import StorageObjects
from hami_dra.api import kinds
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod

VOLUME_LIMIT_SCALING: Final = (1, 37)
"""Since this version of Kubernetes the feature is on by default."""


@dataclass(eq=False)
class VolumeLimits:
    nodes: NodeColumns
    objects: StorageObjects
    csi_nodes: CsiNodeColumns
    attached: AttachedVolumes
    scaling: bool = True
    """The feature VolumeLimitScaling is on."""

    def refused(self, pod: Pod, own: Placed | None) -> Bools | None:
        """Return the nodes that take no more of the pod's volumes; None: the pod has none that
        count.

        `own`: where the pod counts already.
        """
        if not self.objects.can_read(kinds.CSI_NODE):
            return None
        try:
            volumes = PodVolumes(self.objects, pod)
        except Untranslatable:
            return self.csi_nodes.present.copy()
        except Unowned:
            return None  # VolumeBinding refuses the pod
        if not volumes.native and not volumes.migrated:
            return None
        mask = self._missing(volumes)
        limited = False
        for driver in {each.driver for each in volumes.native | volumes.migrated}:
            limit = self.csi_nodes.limit(driver)
            if limit is not None:
                limited = True
                mask |= self._wanted(volumes, driver) > limit
        if limited or self.csi_nodes.limited.any():
            mask |= self.csi_nodes.limited & self.attached.failing()
        if own is not None and (row := self.nodes.index_of(own.node)) >= 0:
            mask[row] = bool(self.reason(pod, row, own))
        return mask

    def reason(self, pod: Pod, row: int, own: Placed | None = None) -> str:
        """Return why the node refuses the pod's volumes, or an empty text."""
        try:
            volumes = PodVolumes(self.objects, pod)
        except (Untranslatable, Unowned) as error:
            return str(error)
        name = self.nodes.names[row]
        node = self.objects.csi_nodes.get(name)
        new = volumes.on(has_csi_node=node is not None)
        installed = {each.name for each in node.spec.drivers} if node is not None else set()
        for driver in sorted({each.driver for each in new} - installed):
            if self._must_be_installed(driver):
                return f"CSI driver {driver} is not installed on the node"
        limits = {each.name: each.limit for each in node.spec.drivers if each.limit is not None} if node else {}
        if not limits:
            return ""
        uid = pod.metadata.uid if own is not None and own.node == name else ""
        mounted, others = self.attached.without(name, uid)
        counts = Counter(each.driver for each in mounted | others)
        wanted = Counter(each.driver for each in new - mounted)
        for driver, more in sorted(wanted.items()):
            if driver in limits and counts[driver] + more > limits[driver]:
                return (
                    f"CSI driver {driver} attaches at most {limits[driver]} volumes to the node: it has "
                    f"{counts[driver]}, and the pod needs {more} more"
                )
        if not uid and self.attached.failing()[row]:
            return "a pod there has an ephemeral volume whose claim was made for another pod"
        return ""

    def _missing(self, volumes: PodVolumes) -> Bools:
        """Return the nodes without a driver that must be there."""
        mask = np.zeros(self.nodes.size, dtype=np.bool_)
        native = {each.driver for each in volumes.native}
        for driver in native | {each.driver for each in volumes.migrated}:
            if self._must_be_installed(driver):
                lacking = ~self.csi_nodes.installed(driver)
                mask |= lacking if driver in native else lacking & self.csi_nodes.present
        return mask

    def _must_be_installed(self, driver: str) -> bool:
        found = self.objects.drivers.get(driver)
        return self.scaling and found is not None and found.spec.prevent_pod_scheduling_if_missing

    def _wanted(self, volumes: PodVolumes, driver: str) -> Ints:
        """Return how many volumes of the driver the nodes would have; 0 where the pod brings none."""
        migrated = [each for each in volumes.migrated if each.driver == driver]
        native = [each for each in volumes.native if each.driver == driver]
        new = np.full(self.nodes.size, len(native), dtype=np.int64) + len(migrated) * self.csi_nodes.present
        for volume in (*native, *migrated):
            new[self.nodes.rows_of(self.attached.mounted_on(volume))] -= 1
        return np.where(new > 0, self.attached.count(driver) + new, 0)
