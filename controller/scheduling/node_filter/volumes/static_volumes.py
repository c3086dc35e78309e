"""Free PersistentVolumes of one StorageClass, by the nodes that reach them, and which of them a
claim gets.

kube-scheduler gives a claim the smallest free volume that fits it and is reachable from the node
(k8s.io/component-helpers/storage/volume, FindMatchingVolume). Thousands of local disks are pinned
to one label value each; they are found by that value, all others by their selector. Pure.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.incremental.digests import digest_of
from controller.scheduling.node_filter.node_labels import NodeLabels, ValueCounts, pinned
from controller.scheduling.node_filter.nodes import NodeColumns
from controller.scheduling.node_filter.volumes.amounts import nanos
from hami_dra.api.arrays import Ints
from hami_dra.api.core import NodeSelector
from hami_dra.api.meta import LabelSelector
from hami_dra.api.selectors import label_selector_matches
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim

_SHAPES_KEPT: Final = 64
_EVERYWHERE: Final = None
_FILESYSTEM: Final = "Filesystem"

Place = tuple[str, str] | NodeSelector | None
"""Where a volume can be reached: (label, value), what a selector matches, or everywhere."""


@dataclass(frozen=True)
class VolumeRequest:
    """What a claim asks of a volume."""

    size: int
    """In units of 10^-9 bytes, so exact."""
    mode: str
    attributes_class: str
    access_modes: frozenset[str]
    selector: LabelSelector | None

    @cached_property
    def key(self) -> bytes:
        """A digest: a tenant chooses how long the selector is."""
        asked = self.size, self.mode, self.attributes_class, sorted(self.access_modes), self.selector
        return digest_of(asked)

    def suits(self, volume: PersistentVolume, size: int | None = None) -> bool:
        """Return whether the volume has the size, mode and attributes: all that it requests of one
        that is reserved for the claim. `size`: of the volume, where it is known.
        """
        spec = volume.spec
        return (
            (nanos(spec.capacity.storage) if size is None else size) >= self.size
            and (spec.volume_mode or _FILESYSTEM) == self.mode
            and (spec.volume_attributes_class_name or "") == self.attributes_class
            and volume.metadata.deletion_timestamp is None
        )

    def fits(self, free: "FreeVolume") -> bool:
        """Return whether the claim may get the free volume."""
        volume = free.volume
        return (
            self.suits(volume, free.size)
            and (self.selector is None or label_selector_matches(self.selector, volume.metadata.labels))
            and self.access_modes.issubset(volume.spec.access_modes)
        )


def request_of(claim: PersistentVolumeClaim) -> VolumeRequest:
    return VolumeRequest(
        size=nanos(claim.requested),
        mode=claim.spec.volume_mode or _FILESYSTEM,
        attributes_class=claim.spec.volume_attributes_class_name or "",
        access_modes=frozenset(claim.spec.access_modes),
        selector=claim.spec.selector,
    )


@dataclass(frozen=True, slots=True)
class FreeVolume:
    """A volume with what every request reads of it."""

    volume: PersistentVolume
    size: int
    """In units of 10^-9 bytes."""
    places: tuple[Place, ...]
    """One that is reachable at two values of a label has two."""


class StaticVolumes:
    """The free volumes of one class: available, and not reserved for a claim."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels) -> None:
        self._nodes = nodes
        self._labels = labels
        self._volumes: dict[str, FreeVolume] = {}
        self._places: dict[Place, int] = {}
        """Place → number of volumes there."""
        self._keys: dict[str, int] = {}
        """Label → number of places that are a value of it."""
        self._wide: dict[NodeSelector | None, None] = {}
        """Places that are no value of a label."""
        self._coverages: Shared[_Coverage] = Shared(_SHAPES_KEPT)

    def __bool__(self) -> bool:
        return bool(self._volumes)

    def add(self, volume: PersistentVolume) -> None:
        free = FreeVolume(volume, nanos(volume.spec.capacity.storage), tuple(_places(volume)))
        self._volumes[volume.metadata.name] = free
        for place in free.places:
            if place not in self._places:
                if isinstance(place, tuple):
                    self._keys[place[0]] = self._keys.get(place[0], 0) + 1
                else:
                    self._wide[place] = None
            self._places[place] = self._places.get(place, 0) + 1
        for coverage in self._coverages.values():
            coverage.count(free, +1)

    def remove(self, volume: PersistentVolume) -> None:
        free = self._volumes.pop(volume.metadata.name)
        for place in free.places:
            self._places[place] -= 1
            if not self._places[place]:
                del self._places[place]
                if isinstance(place, tuple):
                    self._keys[place[0]] -= 1
                    if not self._keys[place[0]]:
                        del self._keys[place[0]]
                else:
                    del self._wide[place]
        for coverage in self._coverages.values():
            coverage.count(free, -1)

    def offered(self, request: VolumeRequest, namespace: str) -> Ints:
        """Return how many free volumes that fit each node reaches. Shape (size,). `namespace`: of
        the claim.
        """
        return self._coverage(request, namespace).by_node(self._nodes.size)

    def smallest(
        self, request: VolumeRequest, namespace: str, places: Iterable[Place], taken: Container[str]
    ) -> str | None:
        """Return the name of the volume that kube-scheduler gives the claim, or None.

        The smallest; of equal ones the first by name. `places`: those that the node reaches.
        `taken`: names of volumes that other claims of the pod get.
        """
        coverage = self._coverage(request, namespace)
        return min(filter(None, [coverage.first(place, taken) for place in places]), default=(0, None))[1]

    def places_at(self, row: int) -> tuple[Place, ...]:
        """Return the places of free volumes that the node reaches; equal for nodes that reach the
        same.
        """
        node_labels = self._nodes.node(row).metadata.labels
        labels = [(key, node_labels[key]) for key in self._keys if key in node_labels]
        wide = [each for each in self._wide if each is _EVERYWHERE or self._labels.matching(each)[row]]
        return (*[each for each in labels if each in self._places], *wide)

    def _coverage(self, request: VolumeRequest, namespace: str) -> "_Coverage":
        return self._coverages.get(
            request.key, namespace, lambda: _Coverage(request, self._labels, self._volumes.values())
        )


class _Coverage:
    """Where the free volumes that fit one request can be reached."""

    def __init__(self, request: VolumeRequest, labels: NodeLabels, volumes: Iterable[FreeVolume]) -> None:
        self._request = request
        self._labels = labels
        self._pinned: dict[str, ValueCounts] = {}
        """By label: the values of places that are one value of it."""
        self._wide: Counter[NodeSelector | None] = Counter()
        self._by_size: dict[Place, list[tuple[int, str]]] = {}
        """The volumes of each place by size and name."""
        for volume in volumes:
            self.count(volume, +1)

    def count(self, free: FreeVolume, sign: int) -> None:
        """Add (+1) or subtract (-1) a volume."""
        if not self._request.fits(free):
            return
        entry = free.size, free.volume.metadata.name
        for place in free.places:
            self._sort(place, entry, sign)
            if isinstance(place, tuple):
                key, value = place
                counts = self._pinned.get(key)
                if counts is None:
                    counts = self._pinned[key] = ValueCounts(self._labels.column(key))
                counts.add(value, sign)
            else:
                self._wide[place] += sign
                if not self._wide[place]:
                    del self._wide[place]

    def first(self, place: Place, taken: Container[str]) -> tuple[int, str] | None:
        """Return size and name of the smallest volume of a place that is not taken, or None."""
        return next((each for each in self._by_size.get(place, ()) if each[1] not in taken), None)

    def _sort(self, place: Place, entry: tuple[int, str], sign: int) -> None:
        there = self._by_size.setdefault(place, [])
        if sign > 0:
            insort(there, entry)
            return
        del there[bisect_left(there, entry)]
        if not there:
            del self._by_size[place]

    def by_node(self, size: int) -> Ints:
        """Return how many there are for each node. Shape (size,)."""
        found = np.zeros(size, dtype=np.int64)
        for place, count in self._wide.items():
            found += count if place is _EVERYWHERE else count * self._labels.matching(place)
        for counts in self._pinned.values():
            found += counts.by_node()
        return found


def _places(volume: PersistentVolume) -> Iterable[Place]:
    selector = volume.required_nodes
    if selector is None:
        return (_EVERYWHERE,)
    found = pinned(selector)
    if found is None:
        return (selector,)
    key, values = found
    return [(key, value) for value in dict.fromkeys(values)]
