"""Images that a node has already (kube-scheduler's ImageLocality).

An image counts with its size, scaled by the part of all nodes that have it, so that a pod is not
drawn to the one node that happens to have its image. The sum over a pod's images is mapped from 23
MiB .. 1000 MiB per image to 0 .. 100.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns
from controller.rules.preferences.image_index import ImageIndex
from controller.rules.preferences.score import MOST, PluginScore
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Pod

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
