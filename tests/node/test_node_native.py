"""Native mode: nothing of hami-dra but the driver; an unmodified kube-scheduler follows the order that it publishes."""

import pytest

from hack.installation import Installation
from tests.e2e.objects import claim, legacy_pod, part, pod

T4 = "g4dn.12xlarge"
INDEX = 'device.attributes["hami.io"].index'


@pytest.fixture(scope="module")
def hami(plane):
    """No controller and no webhook: native mode needs none."""
    installation = Installation(plane)
    installation.install(mode="native", webhook=False)
    yield installation
    installation.remove()


def wait_order(bench, *expected):
    bench.hami.wait_for(f"the order {expected}", lambda: tuple(bench.devices()) == expected)


def index_of(bench, seen):
    """Index of the one card that a container sees."""
    (found,) = [card.index for card in bench.cards(T4) if card.uuid == seen["env"]["NVIDIA_VISIBLE_DEVICES"]]
    return found


def test_pods_follow_the_order_of_the_driver(bench):
    """Two plain pods and a part of a card under binpack, the same under spread: what differs is the policy of the driver."""
    uses = claim("part", part("2Gi", selector=f"{INDEX} == 2")), pod("part", claims=["part"], gated=False)

    driver = bench.start_driver(T4, "--mode=native", "--device-policy=binpack", name="driver-binpack")
    bench.run(*uses)
    wait_order(bench, "gpu-2", "gpu-0", "gpu-1", "gpu-3")
    seen = bench.run(claim("next", part("2Gi")), pod("next", claims=["next"], gated=False))
    assert (bench.allocated("next"), index_of(bench, seen)) == (["gpu-2"], 2)
    seen = bench.run(legacy_pod("plain", gpu=1))  # an idle card, and the first of them
    assert index_of(bench, seen) == 0
    assert not any(name.startswith("CUDA_DEVICE") for name in seen["env"])
    wait_order(bench, "gpu-0", "gpu-2", "gpu-1", "gpu-3")
    bench.delete("plain")
    wait_order(bench, "gpu-2", "gpu-0", "gpu-1", "gpu-3")
    driver.process.stop()
    bench.delete("part", "next")  # while no driver is there
    bench.start_driver(T4, "--mode=native", "--device-policy=spread", name="driver-spread")
    bench.delete_all()
    wait_order(bench, "gpu-0", "gpu-1", "gpu-2", "gpu-3")

    bench.run(*uses)
    wait_order(bench, "gpu-0", "gpu-1", "gpu-3", "gpu-2")
    seen = bench.run(claim("next", part("2Gi")), pod("next", claims=["next"], gated=False))
    assert (bench.allocated("next"), index_of(bench, seen)) == (["gpu-0"], 0)
    wait_order(bench, "gpu-1", "gpu-3", "gpu-0", "gpu-2")
    assert index_of(bench, bench.run(legacy_pod("plain", gpu=1))) == 1
    bench.delete_all()
    bench.wait_nothing_left()


def test_containers_with_plain_cards_have_one_each(bench):
    """The claim is kube-scheduler's own (KEP-5004), and no container names it."""
    bench.start_driver(T4, "--mode=native", "--device-policy=binpack")
    item = legacy_pod("two", gpu=1)
    (main,) = item["spec"]["containers"]
    item["spec"]["containers"] = [{**main, "name": name} for name in ("left", "right")]
    bench.run(item)
    indexes = {index_of(bench, bench.got("two", name)) for name in ("left", "right")}
    assert {f"gpu-{index}" for index in indexes} == set(bench.allocated("two")) == {"gpu-0", "gpu-1"}
    bench.delete_all()
    bench.wait_nothing_left()
