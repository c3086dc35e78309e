"""Two commits by the same benchmarks, in turn: what `make bench-compare BASE=<commit>` runs.

    make bench-compare BASE=main~20
    make bench-compare BASE=v0.1.0 ARGS="--rounds 9 --only decide scale"

Checks BASE out into a folder of its own and runs decide.py, scale.py and a short throughput.py of
both commits, each with its own code and the Python environment of this one, in every round in an
order of the round's own. Prints the median of each figure, with the least and the most of the
rounds, and the ratio of this checkout to BASE within each round: above 1 this one takes longer, or
for pods/s, is faster. Where all rounds agree, it says so. What is not committed counts as part of
this checkout. Takes 25 minutes on two idle cores, and says after the first round how much is left;
interrupted, it prints what it has. BASE must know `-o json` of the three; commits from before
decide.py and scale.py measured CPU time are compared by the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.bench.rounds import LEAST_ROUNDS, orders, ratios, spread

ROOT = Path(__file__).resolve().parents[2]
BENCHES: Mapping[str, Sequence[str]] = {
    "decide": ("decide.py", "--nodes", "500", "5000"),
    "scale": ("scale.py", "--nodes", "500", "5000", "--decisions", "200"),
    "throughput": (
        "throughput.py",
        "--nodes",
        "200",
        "--pods",
        "400",
        "--rounds",
        "1",
        "--variant",
        "hami-dra, gate on",
    ),
}
BASE, HERE = "base", "here"
MARGIN = 0.02
"""Differences up to this are none."""


class NotComparable(Exception):
    """A commit cannot be checked out or measured; the message says what to do."""


Found = dict[str, dict[str, list[float]]]
"""`folder name -> figure -> value of each round`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit, branch or tag to compare with")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the checkout of BASE is removed then, too
    try:
        with checked_out(chosen.base) as folder:
            print(f"base  {described(folder)}\nhere  {described(ROOT)}", flush=True)
            for name in chosen.only:
                print(f"--- {name}: {chosen.rounds} rounds", flush=True)
                compare(name, {BASE: folder, HERE: ROOT}, chosen.rounds)
    except NotComparable as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def described(folder: Path) -> str:
    """Return the commit of a checkout, with its subject."""
    commit = _git("log", "-1", "--format=%h %<(70,trunc)%s", folder=folder).stdout.strip()
    return f"{commit}, and what is not committed" if _git("status", "--porcelain", folder=folder).stdout else commit


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The commit's files in a folder that is gone afterwards. Raises NotComparable."""
    with tempfile.TemporaryDirectory(prefix="hami-dra-bench-") as parent:
        folder = Path(parent) / "base"
        added = _git("worktree", "add", "--detach", str(folder), commit)
        if added.returncode:
            raise NotComparable(f"{commit}: cannot be checked out: {added.stderr.strip()}")
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)


def compare(name: str, folders: Mapping[str, Path], rounds: int) -> None:
    """Measure and print, interrupted or not. Raises NotComparable, KeyboardInterrupt."""
    found: Found = {each: {} for each in folders}
    loads: list[float] = []
    try:
        alternate(name, folders, rounds, found, loads)
    finally:
        print_ratios(found, loads)


def alternate(name: str, folders: Mapping[str, Path], rounds: int, found: Found, loads: list[float]) -> None:
    """Measure the folders in turn; add to `found` what each round brought, and to `loads` the load before each run.

    Raises NotComparable.
    """
    start = time.monotonic()
    for number, order in enumerate(orders(list(folders), rounds), start=1):
        results = {}
        for each in order:
            loads.append(os.getloadavg()[0])
            print(
                f"  round {number} of {rounds}: {each}{remaining(start, len(loads) - 1, rounds * len(folders))}",
                file=sys.stderr,
                flush=True,
            )
            results[each] = measured(name, folders[each])
        for each, figures in results.items():
            for figure, value in figures.items():
                found[each].setdefault(figure, []).append(value)


def remaining(start: float, done: int, runs: int) -> str:
    """Return how long the other runs take if they take as long as those that are done; empty before the first."""
    if not done:
        return ""
    return f", about {math.ceil((time.monotonic() - start) / done * (runs - done) / 60)} min left"


def measured(name: str, folder: Path) -> dict[str, float]:
    """Return the figures of one benchmark of one checkout. Raises NotComparable."""
    script, *arguments = BENCHES[name]
    command = [sys.executable, str(folder / "hack/bench" / script), *arguments, "-o", "json"]
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-10:])
        raise NotComparable(
            f"{said}\n{folder / 'hack/bench' / script} ended with {done.returncode}; it must know -o json"
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return of_throughput(answer) if name == "throughput" else answer


def of_throughput(answer: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return pods/s and CPU time for each pod of the only variant.

    >>> run = {"rate": 40.0, "bound": 100, "cpu": {"kube-apiserver": 1.5, "controller": 0.5}}
    >>> of_throughput({"hami-dra, gate on": [run]})
    {'pods/s': 40.0, 'CPU of kube-apiserver a pod, ms': 15.0, 'CPU of controller a pod, ms': 5.0}
    """
    [[run]] = answer.values()
    costs = {f"CPU of {process} a pod, ms": 1000 * seconds / run["bound"] for process, seconds in run["cpu"].items()}
    return {"pods/s": run["rate"], **costs}


def print_ratios(found: Mapping[str, Mapping[str, Sequence[float]]], loads: Sequence[float]) -> None:
    """`loads`: of the machine, before each run."""
    both = [figure for figure in found[HERE] if figure in found[BASE]]
    if not both:
        return
    width = max(map(len, both))
    print(f"  base -> here, and here as a ratio to base; load of the machine before {spread(loads)}")
    for figure in both:
        base, here = found[BASE][figure], found[HERE][figure]
        against = ratios(here, base)
        said = f"ratio {spread(against, 2)}{verdict(against)}" if against else ""
        print(f"  {figure:<{width}}  {spread(base, 3)} -> {spread(here, 3)}  {said}".rstrip(), flush=True)
    for only, other in ((HERE, BASE), (BASE, HERE)):
        lone = sorted(set(found[only]) - set(found[other]))
        if lone:
            print(f"  only {only}: {', '.join(lone)}")


def verdict(against: Sequence[float]) -> str:
    """Return what all rounds agree on, where there are enough of them; of many figures some do by chance.

    >>> verdict([1.1] * 5), verdict([0.9] * 4 + [1.2]), verdict([0.9] * 5), verdict([1.01] * 5), verdict([1.1])
    (', more in every round', '', ', less in every round', '', '')
    """
    if len(against) < LEAST_ROUNDS:
        return ""
    if min(against) > 1 + MARGIN:
        return ", more in every round"
    return ", less in every round" if max(against) < 1 - MARGIN else ""


if __name__ == "__main__":
    sys.exit(main())
