"""The driver with its real NVIDIA back end on a real node; only the library that it loads is a pretended one (tests/support/nvml)."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.e2e.objects import claim, part, pod, request, template
from tests.node.cards import on_card, use_cards, wait_health, wait_taints
from tests.support.containers import kernel_with_mig
from tests.support.nvml.fake import FakeNvml, library_folder, machine
from tests.unit.discovery.test_nvml import H100_PROFILES

VERSION = "550.90.07"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
XID = 8
"""nvmlEventTypeXidCriticalError."""


@pytest.fixture
def start(bench, tmp_path):
    """`start(description)`: a driver on a machine as NVML tells it, whose kernel has MIG; returns (driver, machine)."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)

    def start(description, *more, library=True):
        """`library`: NVML is where the dynamic linker looks for it."""
        fake = FakeNvml(tmp_path, description)
        wanted = ("LD_LIBRARY_PATH", "FAKE_NVML_CONFIG", "FAKE_NVML_EVENTS")
        environment = {name: fake.environment(library=library)[name] for name in wanted}
        kernel = tmp_path / "kernel"
        for path, text in (kernel_with_mig() | {"/sys/module/nvidia/version": f"{VERSION}\n"}).items():
            file = kernel / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        flags = ("--vendor=nvidia", f"--kernel-root={kernel}", *more)
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


def doctor(bench):
    """What it says of containers on this node: severity and problem."""
    command = [sys.executable, "-m", "controller.cli.main", "doctor", "-o", "json", "--kubeconfig"]
    command.append(str(bench.plane.admin_kubeconfig))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    findings = json.loads(ended.stdout)["findings"]
    return [
        (each["severity"], each["problem"])
        for each in findings
        if (each["check"], each["object"]) == ("containers", f"Node {bench.node.name}")
    ]


def test_a_node_without_nvidias_runtime(bench, start, tmp_path):
    """B7: NVML, libraries and hooks come from the driver root; as long as they are not there, MIG pods wait and doctor says why."""
    root, reported = tmp_path / "driver", tmp_path / "hooks"
    folder = root / LIBRARIES
    folder.mkdir(parents=True)
    nvml = library_folder() / "libnvidia-ml.so.1"
    shutil.copy(nvml, folder)
    hook = tmp_path / "nvidia-cdi-hook"
    hook.write_text(f'#!/bin/sh\necho "$@" >> {reported}\n')
    hook.chmod(0o755)
    flags = (f"--driver-root={root}", f"--cdi-hook={hook}", "--discover-every=1s")
    start(machine(1, mig=1) + H100_PROFILES, *flags, library=False)

    def lacking():
        return [text for item in bench.slices() for text in item["metadata"].get("annotations", {}).values()]

    missing = f"there is no libcuda.so.{VERSION} below the driver root {root}"
    bench.hami.wait_for("the slice says so", lambda: any(missing in text for text in lacking()))
    (libraries, core) = doctor(bench)
    assert (libraries[0], core[0]) == ("error", "warning")
    assert missing in libraries[1]
    assert "HAMi-core is not installed" in core[1]
    wanted = request(
        device_class="nvidia-mig.hami.io", selector='device.attributes["nvidia.hami.io"].profile == "1g.10gb"'
    )
    bench.create(claim("small", wanted), pod("small", claims=["small"]))
    bench.hami.wait_for("an event that says why", lambda: missing in bench.events())
    bench.delete("small")  # kubelet asks again for its pod only after a while

    for name in ("libcuda.so", "libnvidia-ml.so"):
        shutil.copy(nvml, folder / f"{name}.{VERSION}")
        (folder / f"{name}.1").unlink(missing_ok=True)
        (folder / f"{name}.1").symlink_to(f"{name}.{VERSION}")
    bench.create(claim("next", wanted), pod("next", claims=["next"]))
    bench.wait_running("next")
    got = bench.got("next")
    assert got["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {f"/{LIBRARIES}/libcuda.so.{VERSION}", f"/{LIBRARIES}/libnvidia-ml.so.{VERSION}"} <= set(got["mounts"])
    links, compat, cache, _ = reported.read_text().splitlines()
    assert f"--link libcuda.so.1::/{LIBRARIES}/libcuda.so" in links
    assert (compat, cache) == (
        f"enable-cuda-compat --host-driver-version={VERSION}",
        f"update-ldcache --folder /{LIBRARIES}",
    )
    bench.hami.wait_for("the slice says so no more", lambda: not any("libcuda" in text for text in lacking()))
    bench.delete_all()
    bench.wait_nothing_left()


def test_an_instance_that_nvml_refuses(bench, start):
    """The sentence stands in the pod's events."""
    start(machine(1, mig=1) + H100_PROFILES + "fail nvmlDeviceCreateGpuInstanceWithPlacement 0 23\n")
    wanted = request(
        device_class="nvidia-mig.hami.io", selector='device.attributes["nvidia.hami.io"].profile == "1g.10gb"'
    )
    bench.create(claim("refused", wanted), pod("refused", claims=["refused"]))
    reported = bench.hami.wait_for(
        "an event that says why", lambda: [line for line in bench.events().splitlines() if "1g.10gb" in line]
    )
    assert any("failed with NVML error 23" in line for line in reported), reported
    assert bench.cdi_files() == []
    bench.delete_all()
    bench.wait_nothing_left()
