"""VolumeZone: the zone and region labels of bound PersistentVolumes against those of the nodes.

Source: pkg/scheduler/framework/plugins/volumezone. Pure.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from controller.cluster.nodes.node_labels import NO_DOMAIN, NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.volumes.csi_translation import BETA_REGION, BETA_ZONE, GA_REGION, GA_ZONE, ZONE_DELIMITER
from hami_dra.api.arrays import Bools
from hami_dra.api.storage import PersistentVolume

_TOPOLOGY_LABELS: Final = (BETA_ZONE, BETA_REGION, GA_ZONE, GA_REGION)
_TODAY: Final = {BETA_ZONE: GA_ZONE, BETA_REGION: GA_REGION}


class VolumePlace(NamedTuple):
    volume: str
    label: str
    values: frozenset[str]


def places(volume: PersistentVolume) -> list[VolumePlace]:
    """Return the zones and regions that the volume's labels name. A malformed label is ignored."""
    found = []
    for label in _TOPOLOGY_LABELS:
        if label in volume.metadata.labels:
            values = frozenset(each.strip() for each in volume.metadata.labels[label].split(ZONE_DELIMITER))
            if "" not in values:
                found.append(VolumePlace(volume.metadata.name, label, values))
    return found


def refused(volumes: Iterable[PersistentVolume], nodes: NodeColumns, labels: NodeLabels) -> Bools | None:
    """Return the nodes in another zone or region; None: no volume names one.

    A node without any such label is never refused: a cluster of one zone need not label its nodes.
    """
    wanted = [place for volume in volumes for place in places(volume)]
    if not wanted:
        return None
    labelled = np.logical_or.reduce([labels.column(label).current() != NO_DOMAIN for label in _TOPOLOGY_LABELS])
    fits = np.ones(nodes.size, dtype=np.bool_)
    for place in wanted:
        column = labels.column(place.label)
        there = column.rows_with(place.values)
        if (today := _TODAY.get(place.label)) is not None:
            there = np.where(column.current() != NO_DOMAIN, there, labels.column(today).rows_with(place.values))
        fits &= there
    refusing: Bools = labelled & ~fits
    return refusing


def reason(volumes: Iterable[PersistentVolume], nodes: NodeColumns, row: int) -> str:
    """Return which volume is in which other zone, or an empty text."""
    node_labels = nodes.node(row).metadata.labels
    if not any(label in node_labels for label in _TOPOLOGY_LABELS):
        return ""
    for volume in volumes:
        for place in places(volume):
            value = node_labels.get(place.label, node_labels.get(_TODAY.get(place.label, place.label)))
            if value not in place.values:
                where = f"is in {place.label} {value}" if value is not None else f"has no {place.label}"
                return (
                    f"volume {place.volume} is in {place.label} {', '.join(sorted(place.values))}, and the node {where}"
                )
    return ""
