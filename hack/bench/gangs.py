"""CPU time of decisions about gangs, without a cluster. On one, beside kube-scheduler alone:
`throughput.py --gangs`.

    python hack/bench/gangs.py [--rounds 5] [--only pairs whole eights]

- pairs: 500 gangs of 2 pods of 4 cards on 512 nodes of 8, in racks of 16 that each gang prefers;
- whole: one gang of 256 pods of 8 cards on 5,000 nodes of 8, anywhere and in one of ten halls, and
  one of 1,000 pods of one card;
- hopeless: the same gang where no hall has room, by one pod;
- eights: 1,000 pods of one card in gangs of 8 on 500 nodes of 8, and the same pods one by one.

Answers are assumed, which counts except for the gangs of `whole`. Claims and pods are made before.
Each round has a fresh cluster whose columns are warm: one pod was decided. Prints the median of the
rounds and their spread (lowest to highest), milliseconds of CPU time of this process.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.decide import Decision, Options, SchedulingRequest, decide
from controller.gangs import (
    GangKey,
    TopologyConstraint,
    Unit,
    UnitDecision,
    UnitRefusal,
    decide_gang,
)
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from hack.bench.decide import DRIVER, furnished, scheduling_request

OPTIONS = Options(managed=frozenset({DRIVER}))
POLICIES = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))
HALL = "example.com/hall"


def labelled(nodes: int, size: int) -> Inventory:
    """Return nodes of 8 cards in halls of some nodes each."""
    inventory = furnished(nodes)
    for row in range(nodes):
        node = inventory.nodes.node(row)
        metadata = msgspec.structs.replace(node.metadata, labels={HALL: f"hall-{row // size:03}"})
        inventory.node_changed(node, msgspec.structs.replace(node, metadata=metadata))
    return inventory


def gang(members: Sequence[SchedulingRequest], *, required: bool | None = None) -> Unit:
    topology = () if required is None else (TopologyConstraint(HALL, required, "the bench"),)
    key = GangKey("labels", "bench", members[0].pod.metadata.name)
    return Unit(key, tuple(members), len(members), topology)


def assume(inventory: Inventory, pod: SchedulingRequest, decision: Decision) -> None:
    inventory.usage.assume(decision.holdings)
    inventory.assume_pod(pod.pod, decision.node)


def place(inventory: Inventory, request: Unit) -> tuple[UnitDecision | UnitRefusal, float]:
    """Decide and assume a gang. Returns the milliseconds of CPU that the decision took."""
    start = time.process_time()
    answer = decide_gang(inventory, request, OPTIONS)
    took = (time.process_time() - start) * 1e3
    if isinstance(answer, UnitDecision):
        for member, decision in answer.placed:
            assume(inventory, member, decision)
    return answer, took


def warm(inventory: Inventory, count: int) -> None:
    for number in range(12):
        request = scheduling_request(10**6 + number, count, {}, POLICIES)
        answer = decide(inventory, request, OPTIONS)
        if isinstance(answer, Decision):
            assume(inventory, request, answer)
            for entry in answer.allocations:
                inventory.forget(entry.claim.metadata.uid)
            inventory.forget_pod(request.pod.metadata.uid)


def pods(many: int, count: int) -> list[SchedulingRequest]:
    return [scheduling_request(number, count, {}, POLICIES) for number in range(many)]


def timed(work: Callable[[], None]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def pairs() -> dict[str, float]:
    inventory, members = labelled(512, 16), pods(1_000, 4)
    warm(inventory, 4)
    requests = [gang(members[at : at + 2], required=False) for at in range(0, len(members), 2)]

    def work() -> None:
        for request in requests:
            answer, _ = place(inventory, request)
            if not isinstance(answer, UnitDecision):
                raise SystemExit(answer.message)

    return {"500 gangs of 2 on 512 nodes": timed(work)}


def whole() -> dict[str, float]:
    found = {}
    for count, cards, title, required in (
        (256, 8, "anywhere", None),
        (256, 8, "in one hall", True),
        (1_000, 1, "anywhere", None),
    ):
        inventory, members = labelled(5_000, 500), pods(count, cards)
        warm(inventory, cards)
        gc.collect()
        answer, took = place(inventory, gang(members, required=required))
        if not isinstance(answer, UnitDecision):
            raise SystemExit(answer.message)
        found[f"{count:,} pods of {cards} card{'s' if cards > 1 else ''} on 5,000 nodes, {title}"] = took
    return found


def hopeless() -> dict[str, float]:
    inventory, members = labelled(5_000, 250), pods(251, 8)
    warm(inventory, 8)

    def work() -> None:
        answer, _ = place(inventory, gang(members, required=True))
        if not isinstance(answer, UnitRefusal):
            raise SystemExit("placed")

    return {"251 pods of 8 cards, halls of 250 nodes: refused": timed(work)}


def eights() -> dict[str, float]:
    together, alone = furnished(500), furnished(500)
    for inventory in (together, alone):
        warm(inventory, 1)
    members = pods(1_000, 1)
    requests = [gang(members[at : at + 8]) for at in range(0, len(members), 8)]

    def decide_together() -> None:
        for request in requests:
            place(together, request)

    def decide_alone() -> None:
        for request in members:
            answer = decide(alone, request, OPTIONS)
            if not isinstance(answer, Decision):
                raise SystemExit(answer.message)
            assume(alone, request, answer)

    return {
        "1,000 pods in gangs of 8 on 500 nodes": timed(decide_together),
        "the same pods one by one": timed(decide_alone),
    }


BENCHES = {each.__name__: each for each in (pairs, whole, hopeless, eights)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    arguments = parser.parse_args()
    collect_in_pieces()
    for name in arguments.only:
        rounds = [BENCHES[name]() for _ in range(arguments.rounds)]
        for title in rounds[0]:
            took = sorted(each[title] for each in rounds)
            print(f"{title:65} {statistics.median(took):8.1f} ms  ({took[0]:.1f} to {took[-1]:.1f})", flush=True)


if __name__ == "__main__":
    main()
