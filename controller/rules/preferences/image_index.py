"""Which nodes have an image, and how large it is there. Pure.

5,000 nodes have 50 images each, mostly the same ones, so each image has the rows of its nodes. A
pod may name thousands of images: those that no node has cost one look-up each.
"""

from array import array
from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.nodes.nodes import NodeColumns
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import ContainerImage

_ROW: Final = "q"
_NONE: Final[dict[int, "_Image"]] = {}


class _Image:
    """One image, and the rows of the nodes that have it."""

    __slots__ = ("image", "rows")

    def __init__(self, image: ContainerImage) -> None:
        self.image = image
        self.rows = array(_ROW)


class ImageIndex(DerivedColumns):
    """The images of all nodes by name; current after `refresh`."""

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
