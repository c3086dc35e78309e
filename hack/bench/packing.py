"""How well the node policies pack a trace: replayed through the real allocator and scorer.

    python hack/bench/run.py packing --trace FOLDER [--seeds 42 43 44] [--policies binpack fair-share] [--processes 2]

Two experiments for each policy and seed. Arrival: the jobs of the trace in random order, then
random ones again, until they ask for 130 % of the cards; none leaves. Churn: the load is held at
50, 80 and 90 %, jobs come and go. The table goes to stdout, progress to stderr. A policy is NODE,
NODE/DEVICE or `first-fit`, and may have weights: `fair-share:theta=0.75,left=0.3`. FOLDER holds a
list of nodes and one of jobs, in the format of openb (hkust-adsl/kubernetes-scheduler-simulator,
data/csv); with several lists --nodes and --jobs name the one. Ten seeds and five policies take
hours on one core: with --json FILE every run is kept as soon as it is done, the same command goes
on where it was stopped, and other policies and seeds join the same file. Without --trace the small
synthetic trace of hack/bench/trace is replayed, in a minute.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from controller.cli.heap import collect_in_pieces
from controller.scoring.policies import InvalidPolicy
from hack.bench.packing_figures import BadFigures, about, read_figures, write_figures
from hack.bench.packing_replay import Arrival, Churn, Policy, arrival, churn, policy_of
from hack.bench.packing_report import Row, picture, table
from hack.bench.packing_trace import BadTrace, Trace, read_trace

SMALL = Path(__file__).resolve().parent / "trace"
POLICIES = ("binpack", "spread", "fair-share", "fgd", "first-fit")


class Run(NamedTuple):
    policy: str
    seed: int
    load: float
    events: int
    """0: arrival."""

    def __str__(self) -> str:
        what = f"churn at {100 * self.load:.0f} %" if self.events else f"arrival to {100 * self.load:.0f} %"
        return f"{self.policy}, {what}, seed {self.seed}"


_trace: Trace
"""Of this process, set by `_begin`."""


def _begin(trace: Trace) -> None:
    global _trace  # noqa: PLW0603 (a worker reads the trace once)
    _trace = trace
    collect_in_pieces()


def _measured(run: Run) -> tuple[Run, Arrival | Churn, float]:
    start = time.process_time()
    policy: Policy = policy_of(run.policy)
    found: Arrival | Churn
    if run.events:
        found = churn(_trace, policy, run.seed, load=run.load, events=run.events)
    else:
        found = arrival(_trace, policy, run.seed, run.load)
    gc.collect()
    return run, found, time.process_time() - start


def _results(trace: Trace, runs: list[Run], processes: int) -> Iterator[tuple[Run, Arrival | Churn, float]]:
    if processes == 1:
        _begin(trace)
        yield from map(_measured, runs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin, (trace,)) as pool:
        yield from pool.imap_unordered(_measured, runs)


def is_done(run: Run, rows: dict[str, Row]) -> bool:
    row = rows.get(run.policy, Row(run.policy))
    if not run.events:
        return run.seed in row.arrivals
    found = row.churns.get(run.load, {}).get(run.seed)
    return found is not None and found.events == run.events


def measure(
    trace: Trace, runs: list[Run], rows: dict[str, Row], *, processes: int = 1, keep: Callable[[], None] = lambda: None
) -> None:
    """Adds the figures of all runs to `rows`, by policy; `keep` is called after each."""
    for done, (run, found, took) in enumerate(_results(trace, runs, processes), start=1):
        row = rows.setdefault(run.policy, Row(run.policy))
        if isinstance(found, Arrival):
            row.arrivals[run.seed] = found
            figures = f"{found.allocated:.2f} % allocated, {found.roomy} nodes open at half load"
        else:
            row.churns.setdefault(run.load, {})[run.seed] = found
            figures = f"{found.rejected:.2f} % rejected, {found.roomy:.0f} nodes open"
        keep()
        print(f"[{done}/{len(runs)}] {run}: {figures} ({took:.0f} s of CPU)", file=sys.stderr, flush=True)


def runs_of(chosen: argparse.Namespace) -> list[Run]:
    """Seed by seed, so that all policies have as many of them whenever it is stopped."""
    runs = [Run(policy, seed, chosen.load, 0) for seed in chosen.seeds for policy in chosen.policies]
    churn_seeds = chosen.seeds[: chosen.churn_seeds or None]
    return runs + [
        Run(policy, seed, load, chosen.events)
        for seed in churn_seeds
        for load in chosen.churn_loads
        for policy in chosen.policies
    ]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:  # NaN, too
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="packing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=SMALL, metavar="FOLDER")
    parser.add_argument("--jobs", default="", metavar="FILE", help="name of the list of jobs, where there are several")
    parser.add_argument(
        "--nodes", default="", metavar="FILE", help="name of the list of nodes, where there are several"
    )
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), help="none: only tell what FILE of --json has")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(42, 52)))
    parser.add_argument("--load", type=_positive, default=1.3, help="of the arrival, in parts of the capacity")
    parser.add_argument("--churn-loads", type=_positive, nargs="*", default=[0.5, 0.8, 0.9])
    parser.add_argument("--churn-seeds", type=int, default=0, help="so many of the seeds for churn; default all")
    parser.add_argument(
        "--events", type=_count, default=25_000, help="jobs that come in churn; the second half is measured"
    )
    parser.add_argument("--processes", type=_count, default=1)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="all figures of all runs; what it has is not run again"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the picture")
    chosen = parser.parse_args(arguments)
    try:
        trace = read_trace(chosen.trace, chosen.jobs, chosen.nodes)
        for policy in chosen.policies:
            policy_of(policy)
        common = about(trace, chosen.load)
        rows = read_figures(chosen.json, common) if chosen.json else {}
    except (BadTrace, BadFigures, InvalidPolicy) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runs = [run for run in runs_of(chosen) if not is_done(run, rows)]

    def keep() -> None:
        if chosen.json:
            write_figures(chosen.json, common, list(rows.values()))

    try:
        measure(trace, runs, rows, processes=chosen.processes, keep=keep)
    except KeyboardInterrupt:
        kept = f"; {chosen.json} has what was done, the same command goes on" if chosen.json else ""
        print(f"stopped{kept}", file=sys.stderr)
        return 130
    keep()
    found = list(rows.values())
    loads = sorted({load for row in found for load in row.churns})
    seeds = len({seed for row in found for seed in row.arrivals})
    title = f"{trace.name}: {len(trace.machines):,} nodes, {common['cards']:,} cards, {len(trace.jobs):,} jobs, {seeds} seeds"
    print(title + "\n")
    print(table(found, chosen.load, loads))
    if chosen.svg:
        chosen.svg.write_text(picture(found, title, chosen.load, loads), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
