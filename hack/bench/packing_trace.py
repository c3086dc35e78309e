"""Traces in the format of openb (Weng et al., "Beware of Fragmentation", USENIX ATC'23): machines and jobs, two CSV files.

Read by `packing.py`. Nodes: sn,cpu_milli,memory_mib,gpu,model. Jobs: name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,...;
`gpu_spec` is a list of models separated by `|`, empty = any. Amounts are integers; a card is 1000 `gpu_milli`.
"""

from __future__ import annotations

import csv
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CARD: Final = 1000
"""gpu_milli of one card."""
WIDE: Final = 8
"""Cards of the jobs that need a whole large node."""
_NODES: Final = frozenset({"sn", "cpu_milli", "memory_mib", "gpu", "model"})
_JOBS: Final = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"})


class BadTrace(ValueError):
    """A file of the trace cannot be used; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    cpu: int
    """Millicores."""
    memory: int
    """MiB."""
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class Job:
    """What a pod asks for; jobs of one shape are equal."""

    cpu: int
    memory: int
    cards: int
    milli: int
    """Of each card; 0 for jobs without cards."""
    models: tuple[str, ...]
    """Empty: any."""

    @property
    def demand(self) -> int:
        """gpu_milli of all its cards."""
        return self.cards * self.milli


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    machines: tuple[Machine, ...]
    jobs: tuple[Job, ...]
    """In order of their names."""

    @property
    def capacity(self) -> int:
        return CARD * sum(machine.cards for machine in self.machines)

    @property
    def wide_cpu(self) -> int:
        """Millicores that the median job of eight cards asks for; 0 without such jobs."""
        found = [job.cpu for job in self.jobs if job.cards >= WIDE]
        return int(statistics.median(found)) if found else 0

    def arrivals(self, seed: int, load: float) -> Iterator[Job]:
        """All jobs once, shuffled; then jobs drawn with replacement, until the next one could pass `load` times the capacity.

        As the artefact of the paper does it, that test counts one card of the next job.
        """
        chance = random.Random(seed)
        jobs = list(self.jobs)
        chance.shuffle(jobs)
        offered = sum(job.demand for job in jobs)
        yield from jobs
        while True:
            job = chance.choice(self.jobs)
            if offered + job.milli > load * self.capacity:
                return
            offered += job.demand
            yield job


def read_trace(folder: Path, jobs: str = "") -> Trace:
    """`jobs`: name of the job file, where the folder has several. Raises BadTrace."""
    if not folder.is_dir():
        raise BadTrace(f"{folder}: is no folder")
    nodes, lists = [], []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            header = set(next(csv.reader(stream), []))
        if header >= _NODES:
            nodes.append(path)
        elif header >= _JOBS:
            lists.append(path)
    machines = _one(folder, nodes, "list of nodes", sorted(_NODES))
    if jobs:
        chosen = folder / jobs
        if chosen not in lists:
            names = ", ".join(path.name for path in lists) or "none"
            raise BadTrace(f"{chosen}: is no list of jobs; the folder has {names}")
    else:
        chosen = _one(folder, lists, "list of jobs (--jobs names the one to replay)", sorted(_JOBS))
    return Trace(chosen.stem, tuple(_machines(machines)), tuple(_jobs(chosen)))


def _one(folder: Path, found: list[Path], what: str, columns: list[str]) -> Path:
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise BadTrace(f"{folder}: one {what} is needed, a .csv with the columns {', '.join(columns)}; found {names}")
    return found[0]


def _machines(path: Path) -> Iterator[Machine]:
    for line, row in _rows(path):
        yield Machine(
            row["sn"],
            _number(path, line, row, "cpu_milli"),
            _number(path, line, row, "memory_mib"),
            _number(path, line, row, "gpu"),
            row["model"],
        )


def _jobs(path: Path) -> Iterator[Job]:
    found = []
    for line, row in _rows(path):
        cards, milli = _number(path, line, row, "num_gpu"), _number(path, line, row, "gpu_milli")
        if (cards > 0) != (milli > 0) or milli > CARD or (cards > 1 and milli != CARD):
            raise BadTrace(
                f"{path}:{line}: num_gpu {cards} and gpu_milli {milli}: a part of one card (1 to 1000), or whole cards (1000)"
            )
        models = tuple(model for model in row["gpu_spec"].split("|") if model)
        cpu, memory = _number(path, line, row, "cpu_milli"), _number(path, line, row, "memory_mib")
        found.append((row["name"], Job(cpu, memory, cards, milli, models)))
    if not found:
        raise BadTrace(f"{path}: has no jobs")
    found.sort(key=lambda entry: entry[0])
    yield from (job for _, job in found)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as stream:
        for line, row in enumerate(csv.DictReader(stream), start=2):
            yield line, {name: value or "" for name, value in row.items() if name is not None}


def _number(path: Path, line: int, row: dict[str, str], column: str) -> int:
    text = row[column]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadTrace(f"{path}:{line}: {column} {text!r} is no integer from 0")
    return int(text)
