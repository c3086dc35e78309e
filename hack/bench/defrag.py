"""How many nodes `hami-dra defrag` opens on a trace in churn, with how many moves, and how long the plan takes.

    python hack/bench/defrag.py --trace FOLDER [--loads 0.5 0.7 0.8] [--seeds 42 43 44] [--events 25000]

The trace is replayed as by packing.py under `fair-share`; then a plan frees more nodes of eight cards
or more, within a share of the running pods with devices (`--share`, 5 %). "Bound": the nodes of
eight cards that all free capacity would fill if it were in one place. Times are CPU time: reading
the state, and all of the plan with it. The median of the seeds, with the least and the most.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.insight.defrag import Goal, plan_moves
from controller.insight.manifests import gather
from controller.insight.simulation import SimulationSettings
from controller.insight.simulation.essence import documents_of
from hack.bench.packing_replay import Cluster, churn, policy_of
from hack.bench.packing_trace import WIDE, Trace, read_trace
from hack.bench.rounds import spread
from hami_dra.api import kinds
from hami_dra.api.meta import OwnerReference
from hami_dra.api.resource import AllocationResult
from hami_dra.kube.documents import Document

OWNER = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="jobs", uid="jobs", controller=True)


def documents(cluster: Cluster) -> list[Document]:
    """Return the state as a snapshot has it."""
    objects: list[tuple[Any, Any]] = [(kinds.DEVICE_CLASS, cluster.device_class)]
    for node, cards in cluster.machines:
        objects += [(kinds.NODE, node), *([(kinds.RESOURCE_SLICE, cards)] if cards is not None else [])]
    for pod, claim, decision in cluster.running.values():
        metadata = msgspec.structs.replace(pod.metadata, owner_references=(OWNER,))
        status = msgspec.structs.replace(pod.status, phase="Running")
        spec = msgspec.structs.replace(pod.spec, node_name=decision.node)
        objects.append((kinds.POD, msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=status)))
        if claim is not None:
            allocation = AllocationResult.from_json(decision.allocations[0].allocation)
            claim_status = msgspec.structs.replace(claim.status, allocation=allocation)
            objects.append((kinds.RESOURCE_CLAIM, msgspec.structs.replace(claim, status=claim_status)))
    return documents_of(objects)


def measured(trace: Trace, seed: int, load: float, events: int, share: float) -> dict[str, float]:
    policy = policy_of("fair-share")
    cluster = Cluster(trace, policy, seed)
    churn(trace, policy, seed, load=load, events=events, cluster=cluster)
    held = sum(decision.allocations != () for _, _, decision in cluster.running.values())
    devices = cluster.inventory.devices
    size = devices.size
    left = 1 - devices.memory_used[:size] / devices.memory_total[:size]
    found, before = documents(cluster), cluster.roomy()
    start = time.process_time()
    gather(found)
    read = time.process_time() - start
    goal = Goal(nodes=len(trace.machines), least=WIDE, moves=int(share * held))
    start = time.process_time()
    plan = plan_moves(found, SimulationSettings(policies=policy.policies), goal)
    took = time.process_time() - start
    for move in plan.moves:
        number = int(move.pod.rpartition("/p")[2])
        cluster.move(number, move.to_node, [device.rpartition("/")[2] for device in move.to_devices])
    return {
        "open before": before,
        "open after": cluster.roomy(),
        "bound": int(left.sum()) // WIDE,
        "moves": len(plan.moves),
        "pods": held,
        "% moved": 100 * len(plan.moves) / held,
        "s to plan": took,
        "s of it to read": read,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.7, 0.8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--events", type=int, default=25_000)
    parser.add_argument("--share", type=float, default=0.05)
    options = parser.parse_args()
    collect_in_pieces()
    trace = read_trace(options.trace)
    for load in options.loads:
        rows = [measured(trace, seed, load, options.events, options.share) for seed in options.seeds]
        print(f"load {100 * load:.0f} %:", flush=True)
        for name in rows[0]:
            print(f"  {name:16} {spread([row[name] for row in rows])}", flush=True)


if __name__ == "__main__":
    main()
