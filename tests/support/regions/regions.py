"""Shared regions written by region.c, which has HAMi-core's structs: built, and told what to write."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.compiling import built

SOURCE = Path(__file__).parent / "region.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"]


def program() -> Path:
    return built(SOURCE, "region", FLAGS, "region")


def offsets(version: int) -> dict[str, int]:
    done = subprocess.run([program(), "offsets", str(version)], capture_output=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Use:
    """What a process has of a card: bytes, percent."""

    context: int = 0
    module: int = 0
    data: int = 0
    offset: int = 0
    total: int = 0
    busy: int = 0


@dataclass
class Region:
    """`processes`: the status of each, and what it has of each card by its number."""

    uuids: list[str]
    processes: list[tuple[int, dict[int, Use]]] = field(default_factory=list)
    recent: int = 0
    switch: int = 1
    priority: int = 1
    last_kernel: int = 0
    version: int = 1
    more: list[str] = field(default_factory=list)
    """Commands that are carried out last."""

    def write(self, path: Path) -> None:
        commands = [f"cards {len(self.uuids)}", f"processes {len(self.processes)}"]
        commands += [f"uuid {number} {uuid}" for number, uuid in enumerate(self.uuids)]
        for slot, (status, uses) in enumerate(self.processes):
            commands.append(f"process {slot} {status}")
            commands += [
                f"use {slot} {card} {it.context} {it.module} {it.data} {it.offset} {it.total} {it.busy}"
                for card, it in uses.items()
            ]
        commands.append(f"kernel {self.recent} {self.switch} {self.priority} {self.last_kernel}")
        text = "\n".join([*commands, *self.more, ""])
        subprocess.run([program(), "write", str(self.version), path], input=text, text=True, check=True)
