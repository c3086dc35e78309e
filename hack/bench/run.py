"""All benchmarks, one after the other: what `make bench` runs. About 12 minutes on two idle cores;
--quick takes 3.

    python hack/bench/run.py packing --trace FOLDER ...    a trace, replayed under every node policy (see packing.py --help)

Figures are ratios within one run; times depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FULL = (
    ("selectors and allocations on one node", ["allocate.py"]),
    ("decide() on columns", ["decide.py"]),
    ("what the columns cost to keep", ["inventory.py"]),
    ("a scrape of /metrics", ["scrape.py"]),
    ("start-up, memory, decisions at 500, 5,000 and 15,000 nodes", ["scale.py"]),
    ("pods bound per second, 200 nodes", ["throughput.py", "--nodes", "200", "--pods", "1000"]),
    ("pods bound per second, 2,000 nodes", ["throughput.py", "--nodes", "2000", "--pods", "600"]),
)
QUICK = (
    ("selectors and allocations on one node", ["allocate.py", "--devices", "8", "128", "--times", "21"]),
    ("decide() on columns", ["decide.py", "--nodes", "100", "1000", "--decisions", "50"]),
    ("what the columns cost to keep", ["inventory.py", "--nodes", "100", "1000", "--times", "50"]),
    ("a scrape of /metrics", ["scrape.py", "--nodes", "100", "500"]),
    ("start-up, memory, decisions", ["scale.py", "--nodes", "500", "1000", "--decisions", "100"]),
    ("pods bound per second, 50 nodes", ["throughput.py", "--nodes", "50", "--pods", "150"]),
)


def main() -> int:
    if sys.argv[1:2] == ["packing"]:
        return subprocess.run([sys.executable, str(FOLDER / "packing.py"), *sys.argv[2:]], check=False).returncode
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything works")
    failed = 0
    for title, (script, *arguments) in QUICK if parser.parse_args().quick else FULL:
        print(f"--- {title}", flush=True)
        failed += subprocess.run([sys.executable, str(FOLDER / script), *arguments], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
