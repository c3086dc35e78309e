"""hack/real_card.py on the library that pretends to be NVML: once as the GPU, and once as what it is compared with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml.fake import FakeNvml, lanes, machine

SCRIPT = Path(__file__).resolve().parents[3] / "hack/real_card.py"
WORK = "work 0 used=40000 busy=93 membusy=51 temp=64 memtemp=71 power=512000 fan=40 corrected=3 uncorrected=1\n"
PROFILE = 'profile 1 0 id=19 name="MIG 1g.10gb" slices=1 count=7 memory=9728 sm=16 ce=1 dec=1 enc=0 jpeg=1 ofa=0 at=0,1,2 size=1\n'


def run(fake, *arguments, library=True):
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(
        command, env=fake.environment(library=library), capture_output=True, text=True, timeout=120, check=False
    )


def test_what_a_gpu_tells_is_printed_and_what_differs_is_named(tmp_path):
    """Two GPUs joined by NVLink, one at work, one in MIG mode; then a driver that lacks a function and says another name."""
    fake = FakeNvml(tmp_path, machine(1) + machine(2, mig=1).splitlines()[-1] + "\n" + WORK + PROFILE + lanes(0, 1, 4))
    done = run(fake, "--output", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["differences"] == []
    assert done.stdout.rstrip().endswith("no difference to the pretended library")
    for words in (
        "driver 550.90.07, CUDA 12.4",
        "GPU 0: NVIDIA H100 80GB HBM3, 81559 MiB, 0000:1b:00.0, without MIG, healthy",
        "MIG on",
        "links {'1': 4}",
        "power",
        "gpu-1-mig-1g-10gb-0",
        "violations of limits: none",
    ):
        assert words in done.stdout
    assert report["real"]["calls"]["nvmlDeviceGetPowerUsage"] == ["answered", "error 3"]


def test_a_driver_that_answers_otherwise(tmp_path):
    fake = FakeNvml(tmp_path, machine(1) + WORK + "fail nvmlDeviceGetFanSpeed * 999\nremapped 0 1\n")
    done = run(fake)
    assert done.returncode == 0, done.stderr
    assert "nvmlDeviceGetFanSpeed: the GPU error 999; pretended error 3" in done.stdout
    assert "health: the GPU {'GPU-00000000-aaaa-bbbb-cccc-000000000000': ['" in done.stdout
    assert "a problem that only the GPU has: " in done.stdout


@pytest.mark.parametrize(("description", "library"), [("driver 550.90.07\ncuda 12040\n", True), ("", False)])
def test_without_a_gpu_there_is_nothing_to_read(tmp_path, description, library):
    done = run(FakeNvml(tmp_path, description), library=library)
    assert done.returncode == 2
    assert done.stderr.startswith("no GPU was read: ")
