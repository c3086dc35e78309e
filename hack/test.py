"""Run the suites, print the time of each, fail if any failed. Called by the Makefile.

    python hack/test.py all | lint | unit | browser | e2e | node | soak

A suite is a list of commands. `all` is lint, unit, the dashboard in a browser, e2e on both
Kubernetes versions, and node. What they need is built before them, while nothing else runs, and
cached outside the checkout. Suites that use one core run side by side, one for each core; their
output follows when they end.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTEST = [str(BIN / "pytest"), "-q", "--durations=5"]
# in the order of the folders: properties, which take longest, are not left for the end
WORKERS = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
# each with a control plane of its own; they wait more than they compute. Their conftest.py says in which order.
PLANES = ["-n", str(min(4, (os.cpu_count() or 1) + 2)), "--dist", "loadfile", "--no-loadscope-reorder"]
ON_CLUSTER = ["tests/e2e", "tests/hostile/cluster"]
LOAD = "tests/hostile/cluster/test_load.py"
"""Compares waits with and without hostile objects: nothing else may run at the same time."""
CHURN = "tests/e2e/test_node_filter_churn.py"
"""Runs in soak: what it compares at random is compared case by case in tests/conformance."""
NOT_UNIT = [f"--ignore={folder}" for folder in (*ON_CLUSTER, "tests/node", "tests/browser")]
TROUBLE = ("churn", "node_filter_churn", "crash", "undo")
BUILD = [sys.executable, "hack/controlplane/build.py"]

Step = str | tuple[str, ...]
"""A suite, or suites that run side by side."""

SUITES: dict[str, list[list[str]]] = {
    "format": [[str(BIN / "ruff"), "format", "--check", "."]],
    "ruff": [[str(BIN / "ruff"), "check", "."]],
    "mypy": [[str(BIN / "mypy")]],
    "layers": [[str(BIN / "lint-imports"), "--no-cache"]],
    "conventions": [[sys.executable, "hack/conventions.py"]],
    "programs": [
        [sys.executable, "hack/oracle/oracle.py"],
        [sys.executable, "hack/helm/helm.py"],
        [sys.executable, "hack/actionlint/actionlint.py"],
    ],
    "unit": [[*PYTEST, *WORKERS, *NOT_UNIT, "tests"]],
    "Python 3.13": [[sys.executable, "hack/interpreters.py", "--parsers", "3.13"]],
    "build browser": [[sys.executable, "-m", "hack.browser.chromium"]],
    "browser": [[*PYTEST, "--ignore=tests/browser/test_page_at_size.py", "tests/browser"]],
    "build 1.37.1": [
        [*BUILD, "1.37.1", "kwok", "kubectl", "workloads", "etcdutl"],
        [sys.executable, "hack/helm/helm.py"],
    ],
    "e2e 1.37.1": [[*PYTEST, *PLANES, f"--ignore={LOAD}", f"--ignore={CHURN}", *ON_CLUSTER], [*PYTEST, LOAD]],
    "build 1.36.4": [[*BUILD, "1.36.4"]],
    "e2e 1.36.4": [[*PYTEST, *PLANES, "-m", "on_1_36", f"--ignore={LOAD}", *ON_CLUSTER]],
    "build node": [[*BUILD, "1.37.1", "kubelet", "containerd", "runc", "node-programs"]],
    "node": [[*PYTEST, *PLANES, "tests/node"]],
    # what was moved out of `all` for its length: more examples, trouble repeated
    "soak Python": [[sys.executable, "hack/interpreters.py"]],
    "soak properties": [[*PYTEST, *WORKERS, "tests/property", "tests/hostile/test_accepted_maximum.py"]],
    "soak limits": [[*PYTEST, "tests/hostile/test_weight_limits.py", "tests/hostile/test_every_field.py"]],
    "soak node": [[*PYTEST, "tests/node/test_node_restarts.py"]],
    "soak marked": [[*PYTEST, "-m", "soak", "-o", "log_cli=true", "-o", "log_cli_level=INFO", "tests"]],
    "soak load": [[*PYTEST, LOAD]],
    "soak churn": [[sys.executable, "hack/bench/churn.py"]],
    "soak browser": [[*PYTEST, "-s", "tests/browser/test_page_at_size.py"]],
    "soak restore": [[*PYTEST, "tests/e2e/test_etcd_restore.py", "tests/node/test_node_restore.py"]],
    "soak trouble": [[*PYTEST, *(f"tests/e2e/test_{name}.py" for name in TROUBLE)]] * 5,
}
ENVIRONMENT = {
    "e2e 1.36.4": {"HAMI_DRA_K8S": "1.36.4"},
    "soak properties": {"HAMI_DRA_PROPERTIES": "soak"},
    "soak limits": {"HAMI_DRA_PROPERTIES": "soak"},
    "soak browser": {"HAMI_DRA_SOAK": "1"},
    "soak restore": {"HAMI_DRA_SOAK": "1"},
    "soak marked": {"HAMI_DRA_SOAK": "1"},
    "soak trouble": {"HAMI_DRA_CHURN_PODS": "500"},
    "soak node": {"HAMI_DRA_KILLS": "50"},
    "soak load": {"HAMI_DRA_LOAD": "2000"},
}
BROWSER = ["build browser", "browser"]
LINT: Sequence[Step] = ["format", "ruff", ("mypy", "conventions"), "layers"]
E2E = ["build 1.37.1", "e2e 1.37.1", "build 1.36.4", "e2e 1.36.4"]
NODE = ["build node", "node"]
ONE_CORE = ("browser", "mypy", "Python 3.13", "conventions")
"""Python 3.13 is that of the image."""
SOAK = [
    "soak Python",
    "build 1.37.1",
    "build node",
    "build browser",
    "soak properties",
    "soak limits",
    "soak browser",
    "soak trouble",
    "soak restore",
    "soak marked",
    "soak node",
    "soak load",
    "soak churn",
]
GROUPS: dict[str, Sequence[Step]] = {
    "lint": LINT,
    "unit": ["programs", "unit"],
    "browser": BROWSER,
    "e2e": E2E,
    "node": NODE,
    "soak": SOAK,
    "all": ["format", "ruff", "layers", "programs", "build browser", ONE_CORE, "unit", *E2E, *NODE],
}


def environment_of(suite: str) -> dict[str, str]:
    """Bytecode is kept, whatever the machine says: the tests start hundreds of programs, and
    without it half of a start is compiling.

    Where none is wanted beside the sources it is kept in the virtual environment, which `make
    clean` removes.
    """
    found = {**os.environ, **ENVIRONMENT.get(suite, {})}
    if found.pop("PYTHONDONTWRITEBYTECODE", ""):
        found["PYTHONPYCACHEPREFIX"] = str(ROOT / ".venv" / "bytecode")
    return found


class Outcome(NamedTuple):
    suite: str
    passed: bool
    seconds: float
    output: str
    """Empty if it was printed as it came."""


def run(suite: str, *, capture: bool = False) -> Outcome:
    """Run the commands of a suite until one fails."""
    start, passed, output = time.monotonic(), True, []
    for command in SUITES[suite]:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment_of(suite),
            check=False,
            text=True,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
        )
        output.append(done.stdout or "")
        if done.returncode != 0:
            passed = False
            break
    return Outcome(suite, passed, time.monotonic() - start, "".join(output))


def outcomes(steps: Sequence[Step]) -> Iterator[Outcome]:
    """Run the steps one after the other, and the suites of one step side by side."""
    for step in steps:
        if isinstance(step, str):
            print(f"--- {step}", flush=True)
            yield run(step)
            continue
        print(f"--- side by side: {', '.join(step)}", flush=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for outcome in pool.map(lambda suite: run(suite, capture=True), step):
                print(f"--- {outcome.suite}\n{outcome.output}", end="", flush=True)
                yield outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    found = list(outcomes(GROUPS[parser.parse_args().group]))
    print("\nsuite             seconds")
    for outcome in found:
        print(f"{outcome.suite:<16} {outcome.seconds:>8.1f}{'' if outcome.passed else '   FAILED'}")
    failed = sum(not outcome.passed for outcome in found)
    print(f"{len(found) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
