"""Where the node filter differs from kube-scheduler's plugins, counted by plugin, with the smallest
world of each kind.

    python -m hack.oracle.nodefit_differences                                  (the kept cases; then 500 random worlds)
    python -m hack.oracle.nodefit_differences --plugins InterPodAffinity --first 1000 --worlds 2000
    python -m hack.oracle.nodefit_differences --version 1.36.4 --show 3 --keep tests/conformance/nodefit_found.jsonl

`--plugins` names whose verdicts are compared (default: every one). Worlds with a difference are
made smaller; `--keep` adds them to a file with kube-scheduler's answers, from which they are tests
ever after.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.oracle.oracle import Conversation
from tests.support import nodefit
from tests.support.nodefit_worlds import random_world
from tests.support.smaller_worlds import shrunk

Json = dict[str, Any]
Kind = tuple[str, str]
"""Plugin at fault, and how our verdict differs."""
CASES: Final = Path(__file__).resolve().parents[2] / "tests" / "conformance" / "nodefit_cases.jsonl"


def main() -> int:
    chosen = _arguments()
    compared = chosen.plugins.split(",")
    counted: Counter[Kind] = Counter()
    examples: dict[Kind, list[Json]] = defaultdict(list)
    started, number, differing = time.monotonic(), 0, 0
    with Conversation(f"nodefit-{chosen.version}") as oracle:
        for world in _worlds(chosen):
            number += 1
            try:
                found = nodefit.differences(world, oracle.ask, chosen.version, compared)
            except Exception as error:  # noqa: BLE001 (whatever breaks on a world is a finding)
                kinds = {("broken", f"{type(error).__name__}: {error}"[:200])}
            else:
                kinds = {_kind(each) for each in found}
            differing += bool(kinds)
            for kind in kinds:
                counted[kind] += 1
                if len(examples[kind]) < chosen.show:
                    examples[kind].append(world)
        print(f"{number} worlds, {differing} differ, {time.monotonic() - started:.0f} s")
        for kind, count in counted.most_common():
            print(f"{count:>6}  {kind[0]}: {kind[1]}")
        for kind, worlds in examples.items():
            for world in worlds:
                _show(world, kind, oracle, compared, chosen)
    return 1 if counted else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", choices=nodefit.VERSIONS, default=nodefit.VERSIONS[0])
    parser.add_argument("--plugins", default=",".join(nodefit.PLUGINS), help="comma-separated; default: all")
    parser.add_argument("--cases", type=Path, help="a file of worlds, one a line, in place of random ones")
    parser.add_argument("--first", type=int, default=1, help="seed of the first random world")
    parser.add_argument("--worlds", type=int, default=500, help="random worlds; default 500")
    parser.add_argument("--show", type=int, default=1, help="examples of each kind of difference; default 1")
    parser.add_argument("--keep", type=Path, help="a file to which the smallest worlds are added, one a line")
    return parser.parse_args()


def _worlds(chosen: argparse.Namespace) -> Iterator[Json]:
    if chosen.cases or chosen.first == 1:
        for line in (chosen.cases or CASES).read_text().splitlines():
            yield json.loads(line)
    if not chosen.cases:
        for seed in range(chosen.first, chosen.first + chosen.worlds):
            yield random_world(seed)


def _kind(difference: nodefit.Difference) -> Kind:
    return difference.plugin, "only we refuse" if difference.theirs == "fits" else f"we say {difference.ours}"


def _show(world: Json, kind: Kind, oracle: Conversation, compared: list[str], chosen: argparse.Namespace) -> None:
    if kind[0] == "broken":
        print(f"\n{world.get('name')}: {kind[1]}")
        return

    def fails(candidate: Json) -> bool:
        try:
            return kind in map(_kind, nodefit.differences(candidate, oracle.ask, chosen.version, compared))
        except Exception:  # noqa: BLE001 (another failure than the one that is looked for)
            return False

    smallest = shrunk(world, fails)
    print(f"\n--- {world.get('name')}: {kind[0]}, {kind[1]}")
    for each in nodefit.differences(smallest, oracle.ask, chosen.version, compared):
        print(f"    {each}")
    for raw in (*smallest["nodes"], *smallest["objects"], *smallest.get("assumed", ()), smallest["pod"]):
        print(f"    {json.dumps(raw)}")
    if chosen.keep:
        answer = nodefit.answer_to(smallest, oracle.ask)
        kept = {**smallest, "version": chosen.version, **{key: answer[key] for key in ("refused", "also")}}
        with chosen.keep.open("a") as file:
            file.write(json.dumps(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())
