"""The pretended NVML of fake_nvml.c: building it, describing machines to it, asking the back end behind it.

nvidia-ml-py loads `libnvidia-ml.so.1` and nothing else, once in a process; so each question runs in a process of its own, with
the folder of the fake in LD_LIBRARY_PATH. In that process `nvml_answers.py` runs one of its functions and prints JSON; answering.py
makes these processes.
"""

import json
import os
import subprocess
from pathlib import Path

from tests.support.compiling import built, compiler
from tests.support.nvml.answering import answering_with

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
SOURCE = HERE / "fake_nvml.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1"]
LIBRARY = "libnvidia-ml.so.1"
LIMIT = 60
"""Seconds for one question, so that a hang that should have been given up fails the test."""


def library_folder() -> Path:
    """Built once for each state of the source, kept among the temporary files. Without a C compiler: no test."""
    return built(SOURCE, LIBRARY, [*FLAGS, f"-Wl,-soname,{LIBRARY}"], "fake-nvml").parent


def empty_library(path: Path, soname: str) -> None:
    """Make a library without functions."""
    command = [compiler(), "-shared", f"-Wl,-soname,{soname}", "-o", path, "-x", "c", os.devnull]
    subprocess.run(command, check=True)


class FakeNvml:
    """One pretended machine; `sys` is an empty /sys, unless the test fills it."""

    def __init__(self, folder: Path, description: str = "") -> None:
        self.config = folder / "nvml.conf"
        self.events = folder / "nvml.events"
        self.sys = folder / "sys"
        self.sys.mkdir()
        self.events.touch()
        self.describe(description)

    def describe(self, description: str) -> None:
        """Statements as in the head of fake_nvml.c."""
        self.config.write_text(description, encoding="utf-8")

    def environment(self, *, library: bool = True) -> dict[str, str]:
        nowhere = self.config.parent / "nowhere"
        return os.environ | {
            "LD_LIBRARY_PATH": str(library_folder() if library else nowhere),
            "FAKE_NVML_CONFIG": str(self.config),
            "FAKE_NVML_EVENTS": str(self.events),
            "PYTHONPATH": str(ROOT),
        }

    def ask(self, function: str, *arguments, library: bool = True):
        """The answer of a function of nvml_answers.py; its arguments and answer are JSON."""
        environment = self.environment(library=library)
        process = answering_with(environment["LD_LIBRARY_PATH"] if library else "/nowhere")
        words = [function, json.dumps(arguments), str(self.sys), str(self.events)]
        return json.loads(process.ask(words, environment, self.config.parent, seconds=LIMIT))


def gpu(index: int, **values) -> str:
    """An H100, but for what the test says."""
    known = {
        "uuid": f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000",
        "name": '"NVIDIA H100 80GB HBM3"',
        "memory": 81559,
        "bus": f"00000000:{0x1B + index * 16:02X}:00.0",
        "minor": index,
        "serial": 1650000000 + index,
        "brand": 14,
        "arch": 9,
        "cc": "9.0",
        "numa": index // 4,
    }
    words = " ".join(f"{key}={value}" for key, value in (known | values).items() if value is not None)
    return f"gpu {words}\n"


def machine(count: int, **values) -> str:
    return "driver 550.90.07\ncuda 12040\n" + "".join(gpu(index, **values) for index in range(count))


def switched(count: int, lanes: int = 18) -> str:
    """Lanes from each GPU to NVSwitches."""
    return "".join(
        f"lane {index} {lane} switch 00000000:{0xC0 + lane % 4:02X}:00.0\n"
        for index in range(count)
        for lane in range(lanes)
    )


def lanes(one: int, other: int, count: int, *, first: int = 0) -> str:
    """Lanes between two GPUs, both ways; `first`: number of the first lane on both."""
    return "".join(f"lane {a} {first + k} gpu {b}\n" for a, b in ((one, other), (other, one)) for k in range(count))
