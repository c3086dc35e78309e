"""Free PersistentVolumes of one StorageClass, by the nodes that reach them, and which of them a
claim gets.

kube-scheduler gives a claim the smallest free volume that fits it and is reachable from the node
(k8s.io/component-helpers/storage/volume, FindMatchingVolume). Thousands of local disks are pinned
to one label value each; they are found by that value, all others by their selector. Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Hashable, Iterable
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.digests import digest_of
from controller.cluster.incremental.growth import Interned, grown
from controller.cluster.nodes.node_labels import NodeLabels, pinned
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pod_shapes import PodShapes
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.core import NodeSelector
from hami_dra.api.quantity import Quantity
from hami_dra.api.selectors import ParsedSelector, parsed
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim

_FEW: Final = 32
"""Volumes of one place, up to which each is tested by itself."""
_SPARE_PLACES: Final = 1_024
"""Places without volumes are forgotten once there are this many more than those with volumes."""
_GIGA: Final = 10**9
_LARGEST: Final = 2**63 - 1
_EVERYWHERE: Final = None
_NOWHERE: Final = "", ""
_FILESYSTEM: Final = "Filesystem"

Place = tuple[str, str] | NodeSelector | None
"""Where a volume can be reached: (label, value), what a selector matches, or everywhere."""


class VolumeRequest(Struct, frozen=True, dict=True):
    """What a claim asks of a volume."""

    size: int
    """In units of 10^-9 bytes, so exact."""
    mode: str
    attributes_class: str
    access_modes: frozenset[str]
    selector: ParsedSelector | None

    @cached_property
    def key(self) -> bytes:
        """A digest: a tenant chooses how long the selector is."""
        selector = self.selector.source if self.selector is not None else None
        return digest_of((self.size, self.mode, self.attributes_class, sorted(self.access_modes), selector))

    def suits(self, volume: PersistentVolume) -> bool:
        """Return whether the volume has the size, mode and attributes: all that it requests of one
        that is reserved for the claim.
        """
        return _size_of(volume) >= self.size and self.takes(_kind_of(volume))

    def takes(self, kind: "_VolumeKind") -> bool:
        return kind.mode == self.mode and kind.attributes_class == self.attributes_class and not kind.is_leaving

    def offers(self, kind: "_VolumeKind") -> bool:
        """Return whether the claim may get a free volume of this kind."""
        return self.takes(kind) and self.access_modes <= kind.access_modes


class _VolumeKind(Struct, frozen=True):
    """What many volumes have in common."""

    mode: str
    attributes_class: str
    access_modes: frozenset[str]
    is_leaving: bool


def _kind_of(volume: PersistentVolume) -> _VolumeKind:
    spec = volume.spec
    return _VolumeKind(
        spec.volume_mode or _FILESYSTEM,
        spec.volume_attributes_class_name or "",
        frozenset(spec.access_modes),
        volume.metadata.deletion_timestamp is not None,
    )


def _size_of(volume: PersistentVolume) -> int:
    """Return units of 10^-9 bytes."""
    return Quantity.or_zero(volume.spec.capacity.storage).nanos


def request_of(claim: PersistentVolumeClaim) -> VolumeRequest:
    return VolumeRequest(
        size=Quantity.or_zero(claim.requested).nanos,
        mode=claim.spec.volume_mode or _FILESYSTEM,
        attributes_class=claim.spec.volume_attributes_class_name or "",
        access_modes=frozenset(claim.spec.access_modes),
        selector=parsed(claim.spec.selector),
    )


class StaticVolumes:
    """The free volumes of one class: available, and not reserved for a claim. Each has a row."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels, shapes: PodShapes) -> None:
        self._nodes = nodes
        self._labels = labels
        self._shapes = shapes
        self.log = ChangeLog()
        """Rows that changed."""
        self.volumes: list[PersistentVolume | None] = []
        """By row."""
        self.bytes: Ints = np.zeros(0, dtype=np.int64)
        self.nanos: Ints = np.zeros(0, dtype=np.int64)
        """The size in whole bytes, and the rest in units of 10^-9 bytes."""
        self.kind: Ints = np.zeros(0, dtype=np.int64)
        self.is_there: Bools = np.zeros(0, dtype=np.bool_)
        self.kinds = Interned[_VolumeKind]()
        self._rows: dict[str, int] = {}
        self._vacant: list[int] = []
        self._places: dict[Place, _PlaceVolumes] = {}
        """Places that have volumes."""
        self._place_of: Ints = np.zeros(0, dtype=np.int64)
        """Number of the volume's first place."""
        self._further: dict[int, tuple[int, ...]] = {}
        """Row of a volume that is reachable at several values → numbers of its further places."""
        self._keys: dict[str, int] = {}
        """Label → number of places that are a value of it."""
        self._wide: dict[NodeSelector | None, None] = {}
        """Places that are no value of a label."""
        self._wide_masks: tuple[object, Bools] = None, np.zeros((0, 0), dtype=np.bool_)
        self._place_numbers = Interned[Place]()
        """Every place that was ever there."""
        self._values: dict[str, _ValueNumbers] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, volume: PersistentVolume) -> None:
        row = self._vacant.pop() if self._vacant else len(self.volumes)
        if row == len(self.volumes):
            self.volumes.append(None)
            length = 2 * row + 16
            self.bytes, self.nanos = grown(self.bytes, length), grown(self.nanos, length)
            self.kind, self._place_of = grown(self.kind, length), grown(self._place_of, length)
            self.is_there = grown(self.is_there, length)
        size = _size_of(volume)
        self.volumes[row], self.is_there[row] = volume, True
        self._rows[volume.metadata.name] = row
        self.bytes[row], self.nanos[row] = _split(size)
        self.kind[row] = self.kinds.number(_kind_of(volume))
        if len(self._place_numbers) > 2 * len(self._places) + _SPARE_PLACES:
            self._number_again()
        self._number(row, volume)
        for place in _places(volume):
            if place not in self._places:
                self._places[place] = _PlaceVolumes()
                if isinstance(place, tuple):
                    self._keys[place[0]] = self._keys.get(place[0], 0) + 1
                else:
                    self._wide[place] = None
            self._places[place].add(size, volume.metadata.name, row)
        self.log.add(row)

    def remove(self, volume: PersistentVolume) -> None:
        row = self._rows.pop(volume.metadata.name)
        self.volumes[row], self.is_there[row] = None, False
        self._vacant.append(row)
        self._further.pop(row, None)
        size = _size_of(volume)
        for place in _places(volume):
            there = self._places[place]
            there.remove(size, volume.metadata.name, row)
            if not there.entries:
                del self._places[place]
                if isinstance(place, tuple):
                    self._keys[place[0]] -= 1
                    if not self._keys[place[0]]:
                        del self._keys[place[0]]
                else:
                    del self._wide[place]
        self.log.add(row)

    def offered(self, request: VolumeRequest, namespace: str, spend: Callable[[], None]) -> Ints:
        """Return how many free volumes that fit each node reaches. Shape (size,). `namespace`: of
        the claim. `spend`: called after a request that was not read before; what it raises, this
        raises, and the next call continues.
        """
        fits = self._fitting(request, namespace, spend)
        rows = fits.nonzero()[0]
        counts = np.bincount(self._place_of[rows], minlength=len(self._place_numbers))
        for row, numbers in self._further.items():
            if fits[row]:
                counts[list(numbers)] += 1
        found = np.zeros(self._nodes.size, dtype=np.int64)
        for key in self._keys:
            found += self._values[key].by_node(counts)
        for place in self._wide:
            if count := int(counts[self._place_numbers.number(place)]):
                found += count if place is _EVERYWHERE else count * self._labels.matching(place)
        return found

    def smallest(
        self, request: VolumeRequest, namespace: str, places: Iterable[Place], taken: Container[str]
    ) -> str | None:
        """Return the name of the volume that kube-scheduler gives the claim, or None.

        The smallest; of equal ones the first by name. `places`: those that the node reaches.
        `taken`: names of volumes that other claims of the pod get.
        """
        fits = self._fitting(request, namespace, nothing)
        firsts = (self._places[place].first(fits, taken) for place in places if place in self._places)
        return min(filter(None, firsts), default=(0, None))[1]

    def places_at(self, row: int) -> tuple[Place, ...]:
        """Return the places of free volumes that the node reaches; equal for nodes that reach the same."""
        node_labels = self._nodes.node(row).metadata.labels
        labels = [(key, node_labels[key]) for key in self._keys if key in node_labels]
        pinned_places: list[Place] = [each for each in labels if each in self._places]
        if not self._wide:
            return tuple(pinned_places)
        wide = [*self._wide]
        return (*pinned_places, *[wide[number] for number in self._reached()[:, row].nonzero()[0].tolist()])

    def _reached(self) -> Bools:
        """Return which nodes reach the wide places. Shape (places, size)."""
        version = self._nodes.changes.version, self._nodes.size, tuple(self._wide)
        if self._wide_masks[0] != version:
            everywhere = np.ones(self._nodes.size, dtype=np.bool_)
            masks = [everywhere if each is _EVERYWHERE else self._labels.matching(each) for each in self._wide]
            self._wide_masks = version, np.array(masks)
        return self._wide_masks[1]

    def _number(self, row: int, volume: PersistentVolume) -> None:
        """Note the numbers of the places of a volume."""
        numbers = tuple([self._number_of(place) for place in _places(volume)])
        self._place_of[row] = numbers[0] if numbers else self._number_of(_NOWHERE)
        if len(numbers) > 1:
            self._further[row] = numbers[1:]

    def _number_again(self) -> None:
        """Forget the numbers of places that are long gone."""
        self._place_numbers = Interned()
        self._values.clear()
        self._further.clear()
        for row, volume in enumerate(self.volumes):
            if volume is not None:
                self._number(row, volume)

    def _number_of(self, place: Place) -> int:
        next_number = len(self._place_numbers)
        number = self._place_numbers.number(place)
        if number == next_number and isinstance(place, tuple):
            key, value = place
            if key not in self._values:
                self._values[key] = _ValueNumbers(self._labels, key)
            self._values[key].add(value, number)
        return number

    def _fitting(self, request: VolumeRequest, namespace: str, spend: Callable[[], None]) -> Bools:
        """Return by row which volumes fit the request."""
        key = self, request.key
        fitting = self._shapes.of_namespace(namespace, "free volumes", key, lambda: _Fitting(self, request))
        if fitting.refresh_if_changed():
            spend()
        return fitting.fits[: len(self.volumes)]


def nothing() -> None:
    """Do nothing: for calls that must not be interrupted."""


def _split(size: int) -> tuple[int, int]:
    whole, rest = divmod(size, _GIGA)
    return max(-_LARGEST, min(whole, _LARGEST)), rest


class _PlaceVolumes:
    """The volumes of one place, by size and name."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, int]] = []
        """Size, name, row."""
        self._rows: Positions | None = None

    def add(self, size: int, name: str, row: int) -> None:
        insort(self.entries, (size, name, row))
        self._rows = None

    def remove(self, size: int, name: str, row: int) -> None:
        del self.entries[bisect_left(self.entries, (size, name, row))]
        self._rows = None

    def first(self, fits: Bools, taken: Container[str]) -> tuple[int, str] | None:
        """Return size and name of the smallest volume that fits and is not taken, or None."""
        if len(self.entries) <= _FEW:
            return next(((size, name) for size, name, row in self.entries if fits[row] and name not in taken), None)
        if self._rows is None:
            self._rows = np.array([row for _, _, row in self.entries], dtype=np.intp)
        fitting = (self.entries[position] for position in fits[self._rows].nonzero()[0])
        return next(((size, name) for size, name, _ in fitting if name not in taken), None)


class _ValueNumbers:
    """The places that are values of one label."""

    def __init__(self, labels: NodeLabels, key: str) -> None:
        self._labels = labels
        self._key = key
        self._values: list[str] = []
        self._places: list[int] = []
        """By value, the number of the place."""
        self._seen: Hashable = None
        self._of_place: tuple[Positions, Positions] = np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)

    def add(self, value: str, place: int) -> None:
        self._values.append(value)
        self._places.append(place)

    def by_node(self, counts: Ints) -> Ints:
        """Return the count of each node's value. `counts`: by number of a place. Shape (size,)."""
        column = self._labels.column(self._key)
        rows = column.current()
        numbers = column.numbers
        seen = id(column), column.epoch, len(numbers), len(self._values)
        if seen != self._seen:
            there = [
                (place, numbers[value])
                for value, place in zip(self._values, self._places, strict=True)
                if value in numbers
            ]
            places, values = np.array(there, dtype=np.intp).reshape(-1, 2).T
            self._of_place = places, values
            self._seen = seen
        table = np.zeros(len(numbers) + 1, dtype=np.int64)
        places, values = self._of_place
        table[values] = counts[places]
        return table[rows]


class _Fitting(DerivedColumns):
    """Which free volumes fit one request."""

    def __init__(self, free: StaticVolumes, request: VolumeRequest) -> None:
        super().__init__(free.log)
        self._free = free
        self._request = request
        self._size = _split(request.size)
        self.fits: Bools = np.zeros(0, dtype=np.bool_)
        """By row."""

    def refresh_if_changed(self) -> bool:
        """Bring `fits` up to date. Return whether that took reading many volumes."""
        unread = self._reader.unread_count
        self.refresh()
        return unread > _FEW

    def _grow(self) -> int:
        self.fits = grown(self.fits, len(self._free.bytes))
        return len(self._free.volumes)

    def _update(self, rows: Positions, /) -> None:
        free, request = self._free, self._request
        whole, rest = self._size
        offering = np.array([request.offers(kind) for kind in free.kinds.values], dtype=np.bool_)
        enough = (free.bytes[rows] > whole) | ((free.bytes[rows] == whole) & (free.nanos[rows] >= rest))
        self.fits[rows] = fits = free.is_there[rows] & enough & offering[free.kind[rows]]
        if request.selector is None:
            return
        for row in rows[fits].tolist():
            volume = free.volumes[row]
            self.fits[row] = volume is not None and request.selector.matches(volume.metadata.labels)


def _places(volume: PersistentVolume) -> Iterable[Place]:
    selector = volume.required_nodes
    if selector is None:
        return (_EVERYWHERE,)
    found = pinned(selector)
    if found is None:
        return (selector,)
    key, values = found
    return [(key, value) for value in dict.fromkeys(values)]
