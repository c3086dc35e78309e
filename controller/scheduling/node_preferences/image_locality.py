"""Images that a node has already (kube-scheduler's ImageLocality).

An image counts with its size, scaled by the part of all nodes that have it, so that a pod is not
drawn to the one node that happens to have its image. The sum over a pod's images is mapped from 23
MiB .. 1000 MiB per image to 0 .. 100.
"""

from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.node_filter.node_column import NodeColumn
from controller.scheduling.node_filter.nodes import NodeColumns
from controller.scheduling.node_preferences.score import MOST
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Node, Pod

_IMAGES_KEPT: Final = 128
_MIB: Final = 1024 * 1024
_LEAST: Final = 23 * _MIB
_MOST_PER_IMAGE: Final = 1000 * _MIB
_ABSENT: Final = -1
IMAGE_VOLUMES_COUNTED: Final = (1, 37)
"""Since this version of Kubernetes an image volume adds to the number of images, too."""


class ImageLocality:
    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._sizes: Shared[NodeColumn] = Shared(_IMAGES_KEPT)
        self.counts_volumes = True
        """False: as 1.36, where image volumes add to the sum, but not to the number of images."""

    def score_for(self, pod: Pod) -> "ImageScore | None":
        """Return the pod's score; None: no node has any of its images."""
        sizes = [self._size(_with_tag(each), pod.metadata.namespace) for each in images_of(pod)]
        if all(int(each.current().max(initial=_ABSENT)) == _ABSENT for each in sizes):
            return None
        spec = pod.spec
        count = len(sizes) if self.counts_volumes else len(spec.init_containers) + len(spec.containers)
        return ImageScore(self._nodes, sizes, max(count, 1))

    def _size(self, name: str, namespace: str) -> NodeColumn:
        return self._sizes.get(
            name,
            namespace,
            lambda: NodeColumn(self._nodes, lambda node: _size_on(node, name), _ABSENT, self._nodes.image_changes),
        )


class ImageScore:
    """`count`: number of images that the sum is scaled for."""

    def __init__(self, nodes: NodeColumns, sizes: list[NodeColumn], count: int) -> None:
        self._nodes = nodes
        self._count = count
        self._sizes = sizes

    def normalized(self, fitting: Positions) -> Ints:
        total: Ints = np.zeros(len(fitting), dtype=np.int64)
        for each in self._sizes:
            column = each.current()
            there = column != _ABSENT
            spread = int(np.count_nonzero(there)) / max(self._nodes.count, 1)
            total += (np.where(there, column, 0)[fitting] * spread).astype(np.int64)
        most = _MOST_PER_IMAGE * self._count
        scores: Ints = MOST * (np.clip(total, _LEAST, most) - _LEAST) // (most - _LEAST)
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


def _size_on(node: Node, name: str) -> int:
    for image in node.status.images:
        if name in image.names:
            return image.size_bytes
    return _ABSENT
