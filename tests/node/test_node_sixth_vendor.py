"""A vendor of another project on a real node: its tool is read, its cards are published, a pod is placed, prepared, runs and goes.

Nothing of hami-dra is changed for it: its distribution is installed (an entry point), and what `make generate` writes with it there.
"""

import pytest

from tests.e2e.objects import pod
from tests.support.sixth_installation import DRIVER, installation_with_sixth, write_tool


@pytest.fixture(scope="module")
def hami(plane, tmp_path_factory):
    installation = installation_with_sixth(plane, tmp_path_factory.mktemp("sixth"))
    yield installation
    installation.remove()


def test_from_discovery_to_a_container_with_a_part_of_a_card(bench, tmp_path):
    for name in ("acme0", "acme1"):
        bench.node.add_device(name)
    bench.start_driver("", "--vendor=acme", environment={"PATH": write_tool(tmp_path)})
    assert bench.devices() == ["card-0", "card-1"]

    limits = {"acme.example.com/card": "1", "acme.example.com/memory": "4096"}
    seen = bench.run(pod("p", resources={"limits": limits}))
    (device,) = bench.allocated("p")
    number = device.removeprefix("card-")
    assert {key: value for key, value in seen["env"].items() if key.startswith("ACME_")} == {
        "ACME_VISIBLE_DEVICES": number,
        "ACME_MEMORY_LIMIT": str(4 << 30),
    }
    assert [path for path in seen["devices"] if "acme" in path] == [f"/dev/acme{number}"]
    assert len(bench.prepared(DRIVER)) == 1
    assert any(DRIVER in name for name in bench.cdi_files())

    bench.delete_all()
    bench.wait_nothing_left(DRIVER)
