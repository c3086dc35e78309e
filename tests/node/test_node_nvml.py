"""The driver with its real NVIDIA back end on a real node; only the library that it loads is a pretended one (tests/support/nvml)."""

import pytest

from tests.e2e.objects import claim, part, pod, request, template
from tests.node.cards import on_card, use_cards, wait_health, wait_taints
from tests.support.containers import kernel_with_mig
from tests.support.nvml.fake import FakeNvml, machine
from tests.unit.test_discovery_nvml import H100_PROFILES

XID = 8
"""nvmlEventTypeXidCriticalError."""


@pytest.fixture
def start(bench, tmp_path):
    """`start(description)`: a driver on a machine as NVML tells it, whose kernel has MIG; returns (driver, machine)."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)

    def start(description):
        fake = FakeNvml(tmp_path, description)
        wanted = ("LD_LIBRARY_PATH", "FAKE_NVML_CONFIG", "FAKE_NVML_EVENTS")
        environment = {name: fake.environment()[name] for name in wanted}
        kernel = tmp_path / "kernel"
        for path, text in kernel_with_mig().items():
            file = kernel / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        flags = ("--vendor=nvidia", f"--kernel-root={kernel}")
        return bench.start_driver("", *flags, environment=environment), fake

    return start


def test_an_event_of_the_hardware(bench, start):
    """An Xid taints the card, turns its pod's health, keeps new pods away; also after the driver started again, until the next boot."""
    driver, fake = start(machine(2))
    use_cards(bench, ill=1, well=0)
    wait_health(bench, ill="Healthy", well="Healthy")

    with fake.events.open("a") as events:
        events.write(f"event 1 {XID} 79\n")
    wait_taints(bench, ("gpu-1", "hami.io/xid", "NoSchedule"))
    wait_health(bench, ill="Unhealthy", well="Healthy")
    bench.create(claim("more", part("1Gi", selector=on_card(1))), pod("more", claims=["more"]))
    bench.run(template("any", part("1Gi")), pod("elsewhere", templates=["any"]))
    assert bench.allocated("elsewhere") == ["gpu-0"]
    assert "nodeName" not in bench.pod("more")["spec"]

    driver.process.stop()
    fake.events.write_text("")
    driver.process.start()
    bench.wait_driver(driver)
    wait_health(bench, ill="Unhealthy", well="Healthy")
    assert bench.taints() == {("gpu-1", "hami.io/xid", "NoSchedule")}
    assert "nodeName" not in bench.pod("more")["spec"]

    driver.process.stop()
    (bench.node.root / "plugins/nvidia.hami.io/noted-faults.json").unlink()  # as after a reset of the GPU
    driver.process.start()
    bench.wait_driver(driver)
    wait_taints(bench)
    bench.wait_running("more")
    wait_health(bench, ill="Healthy", more="Healthy")
    bench.delete_all()
    bench.wait_nothing_left()


def test_instances_are_made_and_removed_through_nvml(bench, start):
    """And made again by a driver that was killed: here NVML forgets them with the process, as a machine does that was reset."""
    driver, _ = start(machine(1, mig=1) + H100_PROFILES)
    profile = 'device.attributes["nvidia.hami.io"].profile == "{}"'.format
    for name, size in (("small", "1g.10gb"), ("large", "3g.40gb")):
        wanted = request(device_class="nvidia-mig.hami.io", selector=profile(size))
        bench.create(claim(name, wanted), pod(name, claims=[name]))
    bench.wait_running("small", "large")
    visible = {name: bench.got(name)["env"]["NVIDIA_VISIBLE_DEVICES"] for name in ("small", "large")}
    assert len(set(visible.values())) == 2
    assert all(uuid.startswith("MIG-") for uuid in visible.values())

    driver.process.kill()
    driver.process.start()
    bench.wait_driver(driver)
    bench.delete("small")
    bench.run(
        claim("next", request(device_class="nvidia-mig.hami.io", selector=profile("1g.10gb"))),
        pod("next", claims=["next"]),
    )
    assert bench.got("next")["env"]["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
    bench.delete_all()
    bench.wait_nothing_left()


def test_an_instance_that_nvml_refuses(bench, start):
    """The sentence stands in the pod's events."""
    start(machine(1, mig=1) + H100_PROFILES + "fail nvmlDeviceCreateGpuInstanceWithPlacement 0 23\n")
    wanted = request(
        device_class="nvidia-mig.hami.io", selector='device.attributes["nvidia.hami.io"].profile == "1g.10gb"'
    )
    bench.create(claim("refused", wanted), pod("refused", claims=["refused"]))
    told = bench.hami.wait_for(
        "an event that says why", lambda: [line for line in bench.events().splitlines() if "1g.10gb" in line]
    )
    assert any("failed with NVML error 23" in line for line in told), told
    assert bench.cdi_files() == []
    bench.delete_all()
    bench.wait_nothing_left()
