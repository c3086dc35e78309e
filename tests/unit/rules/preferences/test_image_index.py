"""The index of images says what a look at every node says, also after changes."""

import random

import msgspec

from controller.cluster.nodes.nodes import NodeColumns
from controller.rules.preferences.image_locality import ImageIndex
from hami_dra.api.core import ContainerImage, Node

IMAGES = [ContainerImage(names=names, size_bytes=size) for size, names in enumerate([("a",), ("b", "b:1"), ("a", "c")])]


def node(name, images):
    found = msgspec.convert({"metadata": {"name": name}}, Node)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, images=tuple(images)))


def size_on(each, name):
    return next((image.size_bytes for image in each.status.images if name in image.names), None)


def test_the_index_is_what_a_look_at_every_node_finds():
    chance, nodes = random.Random(3), NodeColumns()
    index = ImageIndex(nodes)
    for _ in range(300):
        name = f"n{chance.randrange(6)}"
        if chance.random() < 0.2:
            nodes.remove(name)
        else:
            nodes.put(node(name, chance.sample(IMAGES, chance.randrange(4))))
        if chance.random() < 0.5:
            continue
        index.refresh()
        for image in ("a", "b", "b:1", "c", "none"):
            rows, sizes = index.sizes(image)
            there = {row: size_on(each, image) for row, each in enumerate(nodes.nodes) if each is not None}
            assert dict(zip(rows.tolist(), sizes.tolist(), strict=True)) == {
                row: size for row, size in there.items() if size is not None
            }
            assert index.is_anywhere(image) == bool(len(rows))
