"""Our allocator, selectors, node filter and preemption against Kubernetes' own, on random cases that
differ each time: what `make fuzz` runs.

    python hack/fuzz.py                                      (20,000 cases of each kind; about 30 minutes on two cores)
    python hack/fuzz.py allocator --cases 1000 --seed 7      (again what seed 7 drew)
    python hack/fuzz.py --replay .fuzz/allocator-0f3a9c1b.json

Kinds: `allocator` (tests/support/random_clusters.py, compared as tests/support/upstream.py says),
`selector` (tests/support/selector_cases.py), `nodefit-VERSION` (tests/support/nodefit.py) and
`preempt` (tests/support/preemption). Cases come in rounds of 500, each with a seed of
its own, on as many processes as there are cores. A case that fails is made smaller, kept in .fuzz/
and named with the command that shows it again; then the exit status is 1. At the end it prints how
often each verdict came, and why known differences are no mistake.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import NonInteractiveExampleWarning
from hypothesis.strategies import SearchStrategy, integers

from hack.controlplane.build import BuildError
from hack.oracle.oracle import Conversation, ensure
from tests.support import nodefit, selector_cases, upstream
from tests.support.failures import FOLDER, keep
from tests.support.nodefit_worlds import random_world
from tests.support.preemption import planning, worlds
from tests.support.random_clusters import random_clusters
from tests.support.smaller_worlds import shrunk

CASES: Final = 20_000
ROUND: Final = 500
Ask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    oracle: str
    cases: SearchStrategy[Any]
    check: Callable[[Any, Ask], Counter[str]]
    """Verdicts of one case; raises where the two differ."""
    known: dict[str, str]
    shrink: Callable[[Any, Callable[[Any], bool]], Any] | None = None
    """Makes a failed case smaller, where its strategy cannot: (case, whether another still fails) to a case."""


KINDS: Final = {
    "allocator": Kind(
        "allocator",
        random_clusters(),
        lambda cluster, ask: upstream.Comparison(cluster, ask).run(),
        dict(upstream.KNOWN),
    ),
    "selector": Kind("cel", selector_cases.selector_cases(), selector_cases.compare, dict(selector_cases.KNOWN)),
    **{
        f"nodefit-{version}": Kind(
            f"nodefit-{version}", integers(0, 2**62).map(random_world), nodefit.checker(version), {}, shrunk
        )
        for version in nodefit.VERSIONS
    },
    "preempt": Kind("preempt-1.37.1", integers(0, 2**62).map(worlds.random_world), planning.check, {}, shrunk),
}


@dataclass(frozen=True)
class Round:
    """What one round found."""

    seed: int
    cases: int
    verdicts: Counter[str]
    failure: str = ""
    """The file of the smallest case that failed, and why it did."""


def run_round(name: str, number: int, cases: int) -> Round:
    """All cases of one seed. In a process of its own."""
    kind = KINDS[name]
    verdicts: Counter[str] = Counter()
    asked = 0
    smallest: list[Any] = []

    with Conversation(kind.oracle) as talking:

        @seed(number)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        @given(kind.cases)
        def play(case: Any) -> None:
            nonlocal asked
            asked += not smallest
            try:
                found = kind.check(case, talking.ask)
            except Exception:
                smallest[:] = [case]
                raise
            if not smallest:
                verdicts.update(found)

        try:
            play()
        except Exception as error:
            if not smallest:
                raise
            case, why = _shrunk(kind, smallest[0], error, talking.ask)
            path = keep(name, case, why)
            return Round(number, asked, verdicts, f"{path.relative_to(FOLDER.parent)}\n{why}")
    return Round(number, asked, verdicts)


def _shrunk(kind: Kind, case: Any, error: Exception, ask: Ask) -> tuple[Any, str]:
    """Return the smallest case that fails in the same way, and why it does."""
    why = f"{type(error).__name__}: {error}"
    if kind.shrink is None:
        return case, why

    def fails(candidate: Any) -> bool:
        nonlocal why
        try:
            kind.check(candidate, ask)
        except type(error) as again:
            why = f"{type(again).__name__}: {again}"
            return True
        except Exception:  # noqa: BLE001 (another failure than the one that is looked for)
            return False
        return False

    return kind.shrink(case, fails), why


def fuzz(name: str, cases: int, first_seed: int, workers: int) -> bool:
    """Prints as it goes. Whether nothing failed."""
    kind = KINDS[name]
    ensure(kind.oracle)
    rounds = [(first_seed + index, min(ROUND, cases - index * ROUND)) for index in range(-(-cases // ROUND))]
    verdicts: Counter[str] = Counter()
    asked = 0
    failures: list[Round] = []
    started = time.monotonic()
    print(f"--- {name}: {cases} cases, --seed {first_seed}", flush=True)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_round, name, number, size) for number, size in rounds]):
            found = done.result()
            verdicts += found.verdicts
            asked += found.cases
            if found.failure:
                failures.append(found)
                path, _, why = found.failure.partition("\n")
                print(
                    f"FAILED (seed {found.seed}): {why[:2_000]}\nsee it again: {sys.executable} hack/fuzz.py --replay {path}"
                )
            print(f"{asked:>6} cases, {time.monotonic() - started:>5.0f} s, {len(failures)} failed", flush=True)
    print(f"\n{name}: {asked} cases, {len(failures)} failed")
    for line in _table(verdicts, kind.known):
        print(line)
    return not failures


def _table(verdicts: Counter[str], known: dict[str, str]) -> Iterator[str]:
    for verdict, count in sorted(verdicts.items()):
        yield f"{count:>8}  {verdict}"
    for name, reason in known.items():
        if any(name in verdict for verdict in verdicts):
            yield f"          known difference: {name}: {reason}"


def replay(path: Path) -> bool:
    """Whether the case of a file passes now."""
    kept = json.loads(path.read_text())
    kind = KINDS[kept["kind"]]
    with Conversation(kind.oracle) as talking:
        try:
            found = kind.check(kept["case"], talking.ask)
        except AssertionError as error:
            print(f"{type(error).__name__}: {error}")
            return False
    print("\n".join(_table(found, kind.known)))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--cases", type=int, default=CASES, help=f"of each kind; default {CASES}")
    parser.add_argument("--seed", type=int, help="of the first round; default: another each time")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="one kept case instead")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.kinds if name not in KINDS]:
        parser.error(f"there is no kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
    warnings.simplefilter("ignore", NonInteractiveExampleWarning)
    try:
        if chosen.replay:
            return 0 if replay(chosen.replay) else 1
        first_seed = secrets.randbelow(10**9) if chosen.seed is None else chosen.seed
        passed = [fuzz(name, chosen.cases, first_seed, chosen.workers) for name in chosen.kinds]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
