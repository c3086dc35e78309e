"""Shared regions of any content are read without an error, and give numbers that can be or none."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_dra.api.options import VendorSettings
from hami_dra.monitor.usage import GrantedContainer
from hami_dra.vendors.nvidia.hami_core import CACHE
from hami_dra.vendors.nvidia.shared_region import MAGIC, V0, V1
from hami_dra.vendors.nvidia.usage_reader import RegionReader

MOST = 1 << 35
UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
NUMBERS = st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@st.composite
def contents(draw):
    """A region with numbers, uuids and bytes where they do not belong, or that ends too early."""
    layout = draw(st.sampled_from([V0, V1]))
    content = bytearray(layout.size + 1)
    struct.pack_into("=iii", content, 0, MAGIC, layout.version, draw(st.integers(-5, 5)))
    struct.pack_into("=Q", content, layout.card_count, draw(NUMBERS))
    for number in range(16):
        text = draw(st.just(UUID.encode()) | st.binary(max_size=96))
        content[layout.uuids + 96 * number : layout.uuids + 96 * number + len(text)] = text
    for place in draw(st.lists(st.integers(layout.slots, layout.slots + 5 * layout.slot_size), max_size=20)):
        struct.pack_into("=Q", content, place, draw(NUMBERS))
    for slot in range(5):
        struct.pack_into("=i", content, layout.slots + slot * layout.slot_size + layout.status, draw(st.integers(0, 1)))
    counters = [draw(st.integers(-(2**31), 2**31 - 1)) for _ in range(4)]
    struct.pack_into("=iiii", content, layout.counters, *counters)
    if layout.last_kernel is not None:
        struct.pack_into("=Q", content, layout.last_kernel, draw(NUMBERS))
    return bytes(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("region")


@given(contents() | st.binary(max_size=200))
def test_whatever_a_container_writes(folder, content):
    (folder / "a.cache").write_bytes(content)
    container = GrantedContainer(
        view="v", label="n/p, container c", env={CACHE: "/in/a.cache"}, mounts={"/in": str(folder)}, cards={UUID: MOST}
    )
    reader = RegionReader(VendorSettings(), lambda: 1_000_000_000.0)
    for _ in range(2):
        sample = reader.sample([container])
        assert len(sample.readings) + len(sample.problems) == 1
        for usage in sample.readings.values():
            assert usage.cards.keys() <= {UUID}
            assert usage.last_kernel is None or 0 < usage.last_kernel < 1_000_100_000
            for card in usage.cards.values():
                amounts = (card.memory_used, card.memory_context, card.memory_module, card.memory_buffer)
                assert all(each is None or 0 <= each <= MOST for each in amounts)
                assert card.utilization is None or 0 <= card.utilization <= 100
    assert len((folder / "a.cache").read_bytes()) == len(content)
    reader.close()
