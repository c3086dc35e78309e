"""What containers use, from the text of a driver's /metrics, whatever it is."""

import pytest

from controller.views.overview import ContainerUse, container_uses
from tests.support import expositions

LABELS = 'namespace="n",pod="p",container="c",device_uuid="u",vdevice_index="0",node="x"'
MEMORY = f"hami_dra_container_memory_used_bytes{{{LABELS}}} "
BUSY = f"hami_dra_container_utilization_ratio{{{LABELS}}} "
LIMIT = f"hami_vgpu_memory_limit_bytes{{{LABELS}}} "


def test_the_drivers_own_metrics_are_understood():
    ((uuid, uses),) = container_uses(expositions.of_driver()).items()
    assert uuid.startswith("GPU-")
    assert uses == (
        ContainerUse(
            namespace="default",
            pod="small",
            container="main",
            memory_used=1 << 30,
            memory_limit=4 << 30,
            utilization=35.0,
        ),
    )


def test_what_is_not_known_is_none_and_limits_alone_are_no_use():
    only = ContainerUse(namespace="n", pod="p", container="c", memory_used=5)
    assert container_uses(MEMORY + "5\n") == {"u": (only,)}
    assert container_uses(LIMIT + "5\n") == {}


@pytest.mark.parametrize(
    "text",
    ["", "\0\n", "{", MEMORY, MEMORY + "x\n", MEMORY + "NaN\n", MEMORY + "+Inf\n", MEMORY + "-1\n", BUSY + "1.01\n", "<html>" * 1000,
     MEMORY.replace('"u"', '""') + "1\n", "hami_dra_container_memory_used_bytes 1\n", "hami_dra_container_memory_used_bytes{\n"],
)  # fmt: skip
def test_garbage_is_no_use(text):
    assert container_uses(text) == {}


def test_there_is_an_end_to_containers():
    text = "".join(MEMORY.replace('pod="p"', f'pod="{number}"') + "1\n" for number in range(5_000))
    assert len(container_uses(text)["u"]) == 4_096
