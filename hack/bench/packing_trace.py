"""Traces in the format of openb (Weng et al., "Beware of Fragmentation", USENIX ATC'23): machines
and jobs, two CSV files.

Read by `packing.py`. Nodes: sn,cpu_milli,memory_mib,gpu[,model]. Jobs:
name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec],...; `gpu_spec` is a list of models separated
by `|`, empty = any. A column in brackets that a variant of the trace lacks is empty, and others
(qos, pod_phase, times) are not read. Amounts are integers; a card is 1000 `gpu_milli`. Files may be
gzipped (.csv.gz), and end their lines and begin as Windows' programs have it; which file is which,
their columns tell.
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

CARD: Final = 1000
"""gpu_milli of one card."""
WIDE: Final = 8
"""Cards of the jobs that need a whole large node."""
_NODES: Final = frozenset({"sn", "cpu_milli", "memory_mib", "gpu"})
_JOBS: Final = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})


_ENDINGS: Final = (".csv", ".csv.gz")


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
    """Of each card; 0 for jobs without cards, whatever the file says."""
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
        """All jobs once, shuffled; then jobs drawn with replacement, until the next one could pass
        `load` times the capacity.

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


def read_trace(folder: Path, jobs: str = "", nodes: str = "") -> Trace:
    """`jobs`, `nodes`: names of the files, where the folder has several. Raises BadTrace."""
    if not folder.is_dir():
        raise BadTrace(f"{folder}: is no folder")
    node_lists, job_lists = [], []
    for path in sorted(folder.iterdir()):
        if not path.name.lower().endswith(_ENDINGS) or not path.is_file():
            continue
        header = _header(path)
        if header >= _NODES:
            node_lists.append(path)
        elif header >= _JOBS:
            job_lists.append(path)
    machines = _chosen(folder, node_lists, nodes, "nodes", _NODES)
    chosen = _chosen(folder, job_lists, jobs, "jobs", _JOBS)
    trace = Trace(_stem(chosen), tuple(_machines(machines)), tuple(_jobs(chosen)))
    if not trace.capacity:
        raise BadTrace(f"{machines}: no node has a card (column gpu)")
    if not any(job.demand for job in trace.jobs):
        raise BadTrace(f"{chosen}: no job asks for a card (columns num_gpu and gpu_milli)")
    return trace


def _chosen(folder: Path, found: list[Path], name: str, what: str, columns: frozenset[str]) -> Path:
    """The list of `what`: the one there is, or the one that is called `name`, with or without folder and ending."""
    names = ", ".join(path.name for path in found) or "none"
    if name:
        named = [path for path in found if Path(name).name in {path.name, _stem(path)}]
        if len(named) != 1:
            raise BadTrace(f"{folder / Path(name).name}: is no list of {what}; the folder has {names}")
        return named[0]
    if len(found) != 1:
        option = f" (--{what} names the one to replay)" if found else ""
        raise BadTrace(
            f"{folder}: one list of {what}{option} is needed, a .csv with the columns {', '.join(sorted(columns))}; found {names}"
        )
    return found[0]


def _stem(path: Path) -> str:
    return path.name[: path.name.lower().rindex(".csv")]


def _machines(path: Path) -> Iterator[Machine]:
    for line, row in _rows(path):
        yield Machine(
            row["sn"],
            _number(path, line, row, "cpu_milli"),
            _number(path, line, row, "memory_mib"),
            _number(path, line, row, "gpu"),
            row.get("model", ""),
        )


def _jobs(path: Path) -> Iterator[Job]:
    found = []
    for line, row in _rows(path):
        cards, milli = _number(path, line, row, "num_gpu"), _number(path, line, row, "gpu_milli")
        if cards and not 0 < milli <= CARD:
            raise BadTrace(
                f"{path}:{line}: gpu_milli {milli} of num_gpu {cards}: 1 to 999 are a part of each card, 1000 whole cards"
            )
        milli = milli if cards else 0
        models = tuple(filter(None, (model.strip() for model in row.get("gpu_spec", "").split("|"))))
        cpu, memory = _number(path, line, row, "cpu_milli"), _number(path, line, row, "memory_mib")
        found.append((row["name"], Job(cpu, memory, cards, milli, models)))
    if not found:
        raise BadTrace(f"{path}: has no jobs")
    found.sort(key=lambda entry: entry[0])
    yield from (job for _, job in found)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with _opened(path) as stream:
        reader = csv.DictReader(stream)
        try:
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            for row in reader:
                yield reader.line_num, {name: (value or "").strip() for name, value in row.items() if name is not None}
        except (csv.Error, UnicodeDecodeError, OSError, EOFError) as error:
            raise BadTrace(f"{path}:{reader.line_num}: cannot be read as CSV in UTF-8: {error}") from None


def _header(path: Path) -> set[str]:
    with _opened(path) as stream:
        try:
            return {name.strip() for name in next(csv.reader(stream), [])}
        except (csv.Error, UnicodeDecodeError, OSError, EOFError):  # not one of ours; `found` will not name it
            return set()


def _opened(path: Path) -> TextIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")


def _number(path: Path, line: int, row: dict[str, str], column: str) -> int:
    """An integer from 0; programs that know no empty integers write it with `.0`."""
    text = row[column]
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
        raise BadTrace(f"{path}:{line}: {column} {text!r} is no integer from 0")
    return int(digits)
