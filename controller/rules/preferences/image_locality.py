"""Images that a node has already (kube-scheduler's ImageLocality).

An image counts with its size, scaled by the part of all nodes that have it, so that a pod is not
drawn to the one node that happens to have its image. The sum over a pod's images is mapped from 23
MiB .. 1000 MiB per image to 0 .. 100.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.nodes.nodes import NodeColumns
from controller.rules.preferences.score import MOST, PluginScore
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import ContainerImage, Pod

_ROW: Final = "q"
_NONE: Final[dict[int, "_Image"]] = {}


class _Image:
    """One image, and the rows of the nodes that have it."""

    __slots__ = ("image", "rows")

    def __init__(self, image: ContainerImage) -> None:
        self.image = image
        self.rows = array(_ROW)


class ImageIndex(DerivedColumns):
    """The images of all nodes by name; current after `refresh`. A pod may name thousands of images: those
    that no node has cost one look-up each.
    """

    __slots__ = ("_by_name", "_images", "_nodes", "_seen")

    def __init__(self, nodes: NodeColumns) -> None:
        super().__init__(nodes.image_changes)
        self._nodes = nodes
        self._images: dict[int, _Image] = {}
        """By `id`: what nodes have in common is one object mostly (`hami_dra.api.sharing`)."""
        self._by_name: dict[str, dict[int, _Image]] = {}
        self._seen: list[tuple[ContainerImage, ...]] = []
        """By row."""

    def is_anywhere(self, name: str) -> bool:
        return name in self._by_name

    def sizes(self, name: str) -> tuple[Positions, Ints]:
        """Return the rows of the nodes that have the image, each once, and its size there, in bytes."""
        found = self._by_name.get(name, _NONE).values()
        if not found:
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int64)
        rows = np.concatenate([np.array(each.rows, dtype=np.intp) for each in found])
        sizes = np.concatenate([np.full(len(each.rows), each.image.size_bytes, dtype=np.int64) for each in found])
        if len(found) > 1:
            once, first = np.unique(rows, return_index=True)
            if len(once) < len(rows):  # a node lists the name twice: its first entry counts
                images = [next(each for each in self._seen[row] if name in each.names) for row in once.tolist()]
                return once, np.array([each.size_bytes for each in images], dtype=np.int64)
            return once, sizes[first]
        return rows, sizes

    def _grow(self) -> int:
        self._seen += [()] * (self._nodes.size - len(self._seen))
        return self._nodes.size

    def _update(self, rows: Positions, /) -> None:
        for row in rows.tolist():
            node = self._nodes.nodes[row]
            before, now = self._seen[row], node.status.images if node is not None else ()
            self._seen[row] = now
            old, new = {id(each): each for each in before}, {id(each): each for each in now}
            for key in old.keys() - new.keys():
                self._remove(key, row)
            for key in new.keys() - old.keys():
                self._add(key, new[key], row)

    def _add(self, key: int, image: ContainerImage, row: int) -> None:
        found = self._images.get(key)
        if found is None:
            found = self._images[key] = _Image(image)
            for name in image.names:
                self._by_name.setdefault(name, {})[key] = found
        found.rows.append(row)

    def _remove(self, key: int, row: int) -> None:
        found = self._images[key]
        found.rows.remove(row)
        if found.rows:
            return
        del self._images[key]
        for name in {*found.image.names}:
            del self._by_name[name][key]
            if not self._by_name[name]:
                del self._by_name[name]


_MIB: Final = 1024 * 1024
_LEAST: Final = 23 * _MIB
_MOST_PER_IMAGE: Final = 1000 * _MIB
IMAGE_VOLUMES_COUNTED: Final = (1, 37)
"""Since this version of Kubernetes an image volume adds to the number of images, too."""


class ImageLocality:
    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._index = ImageIndex(nodes)
        self.counts_volumes = True
        """False: as 1.36, where image volumes add to the sum, but not to the number of images."""

    def score_for(self, pod: Pod) -> PluginScore | None:
        """Return the pod's score; None: no node has any of its images."""
        images = images_of(pod)
        self._index.refresh()
        there = {
            name: count for name, count in Counter(map(_with_tag, images)).items() if self._index.is_anywhere(name)
        }
        if not there:
            return None
        spec = pod.spec
        count = len(images) if self.counts_volumes else len(spec.init_containers) + len(spec.containers)
        return partial(self._normalized, there, max(count, 1))

    def _normalized(self, images: Mapping[str, int], count: int, fitting: Positions) -> Ints:
        """`images`: how often the pod names each image that some node has. `count`: number of
        images that the sum is scaled for.
        """
        total: Ints = np.zeros(self._nodes.size, dtype=np.int64)
        for name, times in images.items():
            rows, sizes = self._index.sizes(name)
            total[rows] += times * (sizes * (len(rows) / max(self._nodes.count, 1))).astype(np.int64)
        most = _MOST_PER_IMAGE * count
        scores: Ints = MOST * (np.clip(total[fitting], _LEAST, most) - _LEAST) // (most - _LEAST)
        return scores


def images_of(pod: Pod) -> list[str]:
    """Return the images of all containers and image volumes, as often as they are named."""
    spec = pod.spec
    containers = [each.image for each in (*spec.init_containers, *spec.containers)]
    return containers + [each.image.reference for each in spec.volumes if each.image is not None]


def _with_tag(image: str) -> str:
    """Return the name as nodes report it.

    >>> _with_tag("registry:5000/web"), _with_tag("web:2")
    ('registry:5000/web:latest', 'web:2')
    """
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
