"""VolumeBinding: nodes that reach the bound volumes of a pod, and where the unbound ones could be.

Claims of classes with WaitForFirstConsumer are bound by kube-scheduler after the node is chosen: to
a free volume that the node reaches, or to one that the class makes there. Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pod_groups import Meter
from controller.cluster.volumes.csi_nodes import CsiNodeColumns
from controller.cluster.volumes.csi_translation import Untranslatable, plugin_of, translated_affinity
from controller.cluster.volumes.free_volumes import FreeVolumes
from controller.cluster.volumes.static_volumes import Place, nothing
from controller.cluster.volumes.storage_capacity import StorageCapacities
from controller.cluster.volumes.storage_objects import StorageObjects
from hami_dra.api import kinds
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from hami_dra.api.quantity import Quantity
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

_MOST_TRIED: Final = 2_048
"""Claims times places of volumes that are tried to be matched for one pod."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"


class ClaimsToPlace(Struct, frozen=True):
    """The claims of a pod that none of kube-scheduler's PreFilter plugins refuses."""

    bound: tuple[PersistentVolume, ...]
    waiting: tuple[PersistentVolumeClaim, ...]
    """Not bound yet, of classes that wait for a pod."""


class Binding(Struct, frozen=True):
    """What kube-scheduler is expected to do about the claims of a pod on one node."""

    volumes: Mapping[str, str]
    """Key of a claim → name of the free volume that it gets."""
    provisioned: tuple[str, ...]
    """Keys of the claims for which a volume is made."""


@dataclass(eq=False)
class VolumeBinding:
    nodes: NodeColumns
    objects: StorageObjects
    labels: NodeLabels
    csi_nodes: CsiNodeColumns
    free: FreeVolumes
    capacities: StorageCapacities
    selected: Mapping[str, str]
    """Key of a claim → node for which a decision will have a volume made."""
    meter: Callable[[], Meter | None] = lambda: None
    """As of `PodGroups`."""

    def refused(self, claims: ClaimsToPlace) -> Bools:
        """Return the nodes that cannot have the volumes. Shape (size,)."""
        fits = np.ones(self.nodes.size, dtype=np.bool_)
        for volume in claims.bound:
            fits &= self.reachable(volume)
        if claims.waiting:
            fits &= self._bindable(claims.waiting)
        return ~fits

    def reachable(self, volume: PersistentVolume) -> Bools:
        """Return the nodes that the affinity of a bound volume admits. Shape (size,).

        On nodes whose CSINode says that a CSI driver serves an in-tree plugin, the affinity is in
        the driver's terms.
        """
        plain = self._admitted(volume.required_nodes)
        plugin = plugin_of(volume.spec)
        migrated = self.csi_nodes.migrated(plugin.name) if plugin is not None else None
        if plugin is None or migrated is None:
            return plain
        try:
            there = self._admitted(translated_affinity(volume, plugin))
        except Untranslatable:
            there = np.zeros(self.nodes.size, dtype=np.bool_)
        return np.where(migrated, there, plain)

    def bind(self, claims: Sequence[PersistentVolumeClaim], row: int) -> Binding | None:
        """Return how the waiting claims would be bound on a node; None: they cannot be."""
        volumes, rest = self._matched(claims, row)
        for claim in rest:
            if not self._makeable(claim)[row] or not self._is_selected(claim, row):
                return None
        return Binding(volumes, tuple(claim.key for claim in rest))

    # -- reasons -----------------------------------------------------------------------------------

    def reason(self, claims: ClaimsToPlace, row: int) -> str:
        """Return why the node is refused, or an empty text."""
        for volume in claims.bound:
            if not self.reachable(volume)[row]:
                return self._where(volume)
        if not claims.waiting:
            return ""
        _, rest = self._matched(claims.waiting, row)
        for claim in rest:
            if not self._is_selected(claim, row):
                return f"the volume of PersistentVolumeClaim {claim.key} is being made for node {self.chosen(claim)}"
            if note := self._not_made(claim, row):
                return note
        return ""

    def _where(self, volume: PersistentVolume) -> str:
        """Return where a volume is: the node if it is a single one, else what its affinity asks for."""
        name = volume.metadata.name
        rows = (self.reachable(volume) & self.nodes.present[: self.nodes.size]).nonzero()[0]
        if len(rows) == 1:
            return f"volume {name} is on {self.nodes.names[int(rows[0])]}"
        selector = volume.required_nodes
        if selector is None or not len(rows):
            return f"volume {name} is on no node that is here"
        return f"volume {name} is on nodes with {in_words(selector)}"

    def _not_made(self, claim: PersistentVolumeClaim, row: int) -> str:
        storage_class = self.objects.class_of(claim)
        if storage_class is None or storage_class.provisioner in {"", NO_PROVISIONER}:
            return (
                f"no free PersistentVolume of StorageClass {claim.storage_class} fits PersistentVolumeClaim {claim.key} "
                f"({claim.requested or 0}) there"
            )
        topologies = _topologies(storage_class)
        if topologies is not None and not self.labels.matching(topologies)[row]:
            return f"StorageClass {claim.storage_class} makes volumes only on nodes with {in_words(topologies)}"
        if not self._makeable(claim)[row]:
            largest = max(int(self.capacities.largest(claim.storage_class)[row]), 0)
            return (
                f"StorageClass {claim.storage_class} can make volumes of at most {largest} bytes there, and "
                f"PersistentVolumeClaim {claim.key} asks for {claim.requested}"
            )
        return ""

    # -- waiting claims ----------------------------------------------------------------------------

    def _bindable(self, claims: Sequence[PersistentVolumeClaim]) -> Bools:
        """Return the nodes where every claim gets a volume, all different ones."""
        meter = self.meter()
        spend = meter.spend if meter is not None else nothing
        fits = np.ones(self.nodes.size, dtype=np.bool_)
        contested: defaultdict[str, list[tuple[Ints, Bools]]] = defaultdict(list)
        for claim in claims:
            made = self._makeable(claim)
            if (chosen := self.chosen(claim)) is not None:
                fits &= made & self.nodes.named((chosen,))
            elif (reserved := self.free.reserved_for(claim)) is not None:
                fits &= made | self._admitted(reserved.required_nodes)
            else:
                free = self.free.free(claim.storage_class)
                if free is None:
                    fits &= made
                else:
                    offered = free.offered(self.free.request_of(claim), claim.metadata.namespace, spend)
                    fits &= made | (offered > 0)
                    contested[claim.storage_class].append((offered, made))
        for several in contested.values():
            # each reaches a volume, but perhaps the same one; not where there is one for each
            short = [(offered < len(several)) & ~made for offered, made in several]
            wanted = np.sum([offered > 0 for offered, _ in several], axis=0) > 1
            doubtful = fits & wanted & np.logical_or.reduce(short) & self.nodes.present[: self.nodes.size]
            if len(several) > 1:
                self._try(claims, fits, doubtful.nonzero()[0].tolist())
        return fits

    def _try(self, claims: Sequence[PersistentVolumeClaim], fits: Bools, rows: Iterable[int]) -> None:
        """Find out whether each claim gets a volume of its own on some nodes; once for all nodes
        that reach the same volumes. What is left after `_MOST_TRIED` is up to kube-scheduler.
        """
        free = [self.free.free(name) for name in dict.fromkeys(each.storage_class for each in claims)]
        made = [self._makeable(each) for each in claims]
        is_chosen = any(self.chosen(each) is not None or self.free.reserved_for(each) is not None for each in claims)
        known: dict[Hashable, bool] = {}
        tried = 0
        for row in rows:
            places = tuple([each.places_at(row) for each in free if each is not None])
            key: Hashable = places, tuple([bool(each[row]) for each in made]), row if is_chosen else -1
            found = known.get(key)
            if found is None:
                if tried >= _MOST_TRIED:
                    return
                tried += len(claims) * max(1, sum(map(len, places)))
                found = known[key] = self.bind(claims, row) is not None
            fits[row] = found

    def _matched(
        self, claims: Sequence[PersistentVolumeClaim], row: int
    ) -> tuple[dict[str, str], list[PersistentVolumeClaim]]:
        """Return the volumes that the claims get on the node, smallest claim first, and the claims
        without one, for which a volume must be made.
        """
        volumes: dict[str, str] = {}
        taken: dict[str, str] = {}
        rest = [claim for claim in claims if self.chosen(claim) is not None]
        places: dict[str, tuple[Place, ...]] = {}
        open_claims = [claim for claim in claims if self.chosen(claim) is None]
        for claim in sorted(open_claims, key=lambda each: Quantity.or_zero(each.requested).nanos):
            found = self._volume_for(claim, row, taken, places)
            if found is None:
                rest.append(claim)
            else:
                volumes[claim.key] = found
                taken[found] = claim.key
        return volumes, rest

    def _volume_for(
        self, claim: PersistentVolumeClaim, row: int, taken: Mapping[str, str], places: dict[str, tuple[Place, ...]]
    ) -> str | None:
        """`places`: by StorageClass what the node reaches, found once."""
        reserved = self.free.reserved_for(claim)
        if reserved is not None and reserved.metadata.name not in taken:
            return reserved.metadata.name if self._admitted(reserved.required_nodes)[row] else None
        free = self.free.free(claim.storage_class)
        if free is None:
            return None
        if claim.storage_class not in places:
            places[claim.storage_class] = free.places_at(row)
        return free.smallest(self.free.request_of(claim), claim.metadata.namespace, places[claim.storage_class], taken)

    def chosen(self, claim: PersistentVolumeClaim) -> str | None:
        """Return the node for which the claim's volume is being made, or None."""
        found = claim.selected_node
        return found if found is not None else self.selected.get(claim.key)

    def _is_selected(self, claim: PersistentVolumeClaim, row: int) -> bool:
        return self.chosen(claim) in {None, self.nodes.names[row]}

    def _makeable(self, claim: PersistentVolumeClaim) -> Bools:
        """Return the nodes for which the class makes a volume of this size. Shape (size,)."""
        storage_class = self.objects.class_of(claim)
        if storage_class is None or storage_class.provisioner in {"", NO_PROVISIONER}:
            return np.zeros(self.nodes.size, dtype=np.bool_)
        topologies = _topologies(storage_class)
        made = np.ones(self.nodes.size, dtype=np.bool_)
        if topologies is not None:
            made = self.labels.matching(topologies)
        driver = self.objects.drivers.get(storage_class.provisioner)
        if claim.requested is None or driver is None or not driver.spec.storage_capacity:
            return made
        if not self.objects.can_read(kinds.CSI_STORAGE_CAPACITY):
            return made
        size = Quantity.or_zero(claim.requested).value()
        return made & self.capacities.sufficient(storage_class.metadata.name, size)

    # -- nodes -------------------------------------------------------------------------------------

    def _admitted(self, selector: NodeSelector | None) -> Bools:
        if selector is None:
            return np.ones(self.nodes.size, dtype=np.bool_)
        return self.labels.matching(selector)


def _topologies(storage_class: StorageClass) -> NodeSelector | None:
    """Return `allowedTopologies` as a node selector; None: any node."""
    if not storage_class.allowed_topologies:
        return None
    return NodeSelector(
        node_selector_terms=tuple(
            NodeSelectorTerm(
                match_expressions=tuple(
                    NodeSelectorRequirement(key=each.key, operator="In", values=each.values)
                    for each in term.match_label_expressions
                )
            )
            for term in storage_class.allowed_topologies
        )
    )


def in_words(selector: NodeSelector) -> str:
    """Return what the selector asks for: `zone in (a, b)`."""
    return " or ".join(_all_of(term.match_expressions) for term in selector.node_selector_terms)


def _all_of(requirements: Iterable[NodeSelectorRequirement]) -> str:
    return " and ".join(
        f"{each.key} {each.operator}" + (f" ({', '.join(each.values)})" if each.values else "") for each in requirements
    )
