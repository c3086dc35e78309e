"""Run the suites one after the other, print the time of each, fail if any failed. Called by the Makefile.

    python hack/test.py all | lint | unit | browser | e2e | node | soak

A suite is a list of commands. `all` is lint, unit, the page in a browser, e2e on both Kubernetes versions, and node; the control plane, the node and the
programs of hack/oracle are built before them, while nothing else runs, and cached outside the checkout.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTEST = [str(BIN / "pytest"), "-q", "--durations=5"]
# in the order of the folders: properties, which take longest, are not left for the end
WORKERS = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
# each with a control plane of its own; they wait more than they compute. Their conftest.py says in which order.
PLANES = ["-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
ON_CLUSTER = ["tests/e2e", "tests/hostile/cluster"]
LOAD = "tests/hostile/cluster/test_load.py"
"""Compares waits with and without hostile objects: nothing else may run at the same time."""
NOT_UNIT = [f"--ignore={folder}" for folder in (*ON_CLUSTER, "tests/node", "tests/browser")]
TROUBLE = ("churn", "node_filter_churn", "crash", "undo")
BUILD = [sys.executable, "hack/controlplane/build.py"]

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
    "other Pythons": [[sys.executable, "hack/interpreters.py"]],
    "build browser": [[sys.executable, "-m", "hack.browser.chromium"]],
    "browser": [[*PYTEST, "--ignore=tests/browser/test_page_at_size.py", "tests/browser"]],
    "build 1.37.1": [
        [*BUILD, "1.37.1", "kwok", "kubectl", "workloads", "etcdutl"],
        [sys.executable, "hack/helm/helm.py"],
    ],
    "e2e 1.37.1": [[*PYTEST, *PLANES, f"--ignore={LOAD}", *ON_CLUSTER], [*PYTEST, LOAD]],
    "build 1.36.4": [[*BUILD, "1.36.4"]],
    "e2e 1.36.4": [[*PYTEST, *PLANES, "-m", "on_1_36", f"--ignore={LOAD}", *ON_CLUSTER]],
    "build node": [[*BUILD, "1.37.1", "kubelet", "containerd", "runc", "node-programs"]],
    "node": [[*PYTEST, *PLANES, "tests/node"]],
    # what was moved out of `all` for its length: more examples, trouble repeated
    "soak properties": [[*PYTEST, *WORKERS, "tests/property"]],
    "soak node": [[*PYTEST, "tests/node/test_node_restarts.py"]],
    "soak helm": [[*PYTEST, "tests/node/test_node_helm.py"]],
    "soak gitops": [[*PYTEST, "-o", "log_cli=true", "-o", "log_cli_level=INFO", "tests/e2e/test_gitops.py"]],
    "soak load": [[*PYTEST, LOAD]],
    "soak churn": [[sys.executable, "hack/bench/churn.py"]],
    "soak browser": [[*PYTEST, "-s", "tests/browser/test_page_at_size.py"]],
    "soak restore": [[*PYTEST, "tests/e2e/test_etcd_restore.py", "tests/node/test_node_restore.py"]],
    "soak gangs": [[*PYTEST, "tests/e2e/test_gang_life.py", "-k", "another_rack"]],
    "soak trouble": [[*PYTEST, *(f"tests/e2e/test_{name}.py" for name in TROUBLE)]] * 5,
}
ENVIRONMENT = {
    "e2e 1.36.4": {"HAMI_DRA_K8S": "1.36.4"},
    "soak properties": {"HAMI_DRA_PROPERTIES": "soak"},
    "soak browser": {"HAMI_DRA_SOAK": "1"},
    "soak restore": {"HAMI_DRA_SOAK": "1"},
    "soak gangs": {"HAMI_DRA_SOAK": "1"},
    "soak trouble": {"HAMI_DRA_CHURN_PODS": "500"},
    "soak helm": {"HAMI_DRA_SOAK": "1"},
    "soak gitops": {"HAMI_DRA_SOAK": "1"},
    "soak node": {"HAMI_DRA_KILLS": "50"},
    "soak load": {"HAMI_DRA_LOAD": "2000"},
}
BROWSER = ["build browser", "browser"]
LINT = ["format", "ruff", "mypy", "layers", "conventions"]
E2E = ["build 1.37.1", "e2e 1.37.1", "build 1.36.4", "e2e 1.36.4"]
NODE = ["build node", "node"]
SOAK = [
    "build 1.37.1",
    "build node",
    "build browser",
    "soak properties",
    "soak browser",
    "soak trouble",
    "soak restore",
    "soak gangs",
    "soak helm",
    "soak gitops",
    "soak node",
    "soak load",
    "soak churn",
]
GROUPS = {
    "lint": LINT,
    "unit": ["programs", "unit"],
    "browser": BROWSER,
    "e2e": E2E,
    "node": NODE,
    "soak": SOAK,
    "all": [*LINT, "programs", "unit", "other Pythons", *BROWSER, *E2E, *NODE],
}


def environment_of(suite: str) -> dict[str, str]:
    """Bytecode is kept, whatever the machine says: the tests start hundreds of programs, and without it half of a start is compiling.

    Where none is wanted beside the sources it is kept in the virtual environment, which `make clean` removes.
    """
    found = {**os.environ, **ENVIRONMENT.get(suite, {})}
    if found.pop("PYTHONDONTWRITEBYTECODE", ""):
        found["PYTHONPYCACHEPREFIX"] = str(ROOT / ".venv" / "bytecode")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    suites = GROUPS[parser.parse_args().group]
    seconds: dict[str, float] = {}
    failed: list[str] = []
    for suite in suites:
        print(f"--- {suite}", flush=True)
        start = time.monotonic()
        for command in SUITES[suite]:
            if subprocess.run(command, cwd=ROOT, env=environment_of(suite), check=False).returncode != 0:
                failed.append(suite)
                break
        seconds[suite] = time.monotonic() - start
    print("\nsuite             seconds")
    for suite, took in seconds.items():
        print(f"{suite:<16} {took:>8.1f}{'   FAILED' if suite in failed else ''}")
    print(f"{len(suites) - len(failed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
