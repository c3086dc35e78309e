"""Two commits by the same benchmarks, in turn: what `make bench-compare BASE=<commit>` runs.

    python hack/bench/compare.py main~20
    python hack/bench/compare.py v0.1.0 --rounds 9 --only decide scale

Checks BASE out into a folder of its own and runs decide.py, scale.py and a short throughput.py of both commits, each with
its own code and the Python environment of this one, in every round in an order of the round's own. Prints the median of
each figure, with the least and the most of the rounds, and the ratio of this checkout to BASE within each round: above 1
this one takes longer, or for pods/s, is faster. What is not committed counts as part of this checkout. BASE must know
`-o json` of the three; commits from before decide.py and scale.py measured CPU time are compared by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
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


class NotComparable(Exception):
    """A commit cannot be checked out or measured; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit, branch or tag to compare with")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    chosen = parser.parse_args()
    try:
        with checked_out(chosen.base) as folder:
            for name in chosen.only:
                print(f"--- {name}: {chosen.rounds} rounds", flush=True)
                print_ratios(alternated(name, {BASE: folder, HERE: ROOT}, chosen.rounds))
    except NotComparable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


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


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


def alternated(name: str, folders: Mapping[str, Path], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return `folder name -> figure -> value of each round`. Raises NotComparable."""
    found: dict[str, dict[str, list[float]]] = {each: {} for each in folders}
    for number, order in enumerate(orders(list(folders), rounds), start=1):
        for each in order:
            print(
                f"  round {number}: {each}, load of the machine {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True
            )
            for figure, value in measured(name, folders[each]).items():
                found[each].setdefault(figure, []).append(value)
    return found


def measured(name: str, folder: Path) -> dict[str, float]:
    """Return the figures of one benchmark of one checkout. Raises NotComparable."""
    script, *arguments = BENCHES[name]
    command = [sys.executable, str(folder / "hack/bench" / script), *arguments, "-o", "json"]
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotComparable(f"{folder / 'hack/bench' / script} ended with {done.returncode}; it must know -o json")
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


def print_ratios(found: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    both = [figure for figure in found[HERE] if figure in found[BASE]]
    width = max(map(len, both), default=0)
    for figure in both:
        base, here = found[BASE][figure], found[HERE][figure]
        against = ratios(here, base)
        said = spread(against, 2) if against else f"base {statistics.median(base):g}"
        print(f"  {figure:<{width}}  {spread(base, 3)} -> {spread(here, 3)}  ratio {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
