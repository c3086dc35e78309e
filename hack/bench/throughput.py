"""Pods bound per second on one real control plane: kube-scheduler alone against hami-dra, gate on
and off, and gangs.

    python hack/bench/throughput.py --nodes 500 --pods 800
    python hack/bench/throughput.py --nodes 500 --pods 1000 --gang-size 8 --gangs
    python hack/bench/throughput.py --nodes 500 --plain

One control plane with raised client limits, the same nodes and slices for all; one pod has one
claim for a part of a card. In each round every variant runs once, in an order of the round's own:
hami-dra with webhook and policies is installed or removed, the API server comes to rest, the pods
are created and bound, and everything of the run is deleted. A controller that was just started
binds a few pods first, uncounted: kube-scheduler runs all the time, too. Before the first round
each variant runs once with a quarter of the pods, uncounted, so that all is warm. The node
life-cycle controller is off: nodes stay Ready without heartbeats, and only what schedules is
measured.

Prints medians with the least and the most of the rounds: pods/s from the first create to the last
bind, CPU time a pod of every process, this program included, which creates and watches the pods,
and both as ratios to the first variant within each round. The machine has few cores and all share
them: where it is never idle, pods/s are the inverse of the CPU time that a pod costs all of them
together, and that figure is less disturbed by what else runs. The load of the machine right before
each run stands beside. `--plain` measures something else, see throughput_plain.py. `--requests`
adds how often the API server was asked what, for each pod.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.bench import throughput_plain
from hack.bench.rounds import LEAST_ROUNDS, orders, ratios, spread
from hack.bench.throughput_cluster import Bench, Result, Variant, furnish
from hack.controlplane import variants
from hack.controlplane.cluster import ControlPlane

ALONE = "kube-scheduler alone"
VARIANTS = {
    ALONE: Variant(),
    "hami-dra, gate on": Variant(gate=True),
    "hami-dra, gate off": Variant(gate=False),
    "kube-scheduler alone, PodGroups": Variant(gangs="PodGroups"),
    "hami-dra, PodGroups": Variant(gate=True, gangs="PodGroups"),
    "hami-dra, gangs by labels": Variant(gate=True, gangs="labels"),
}
WITHOUT_GANGS = tuple([name for name, each in VARIANTS.items() if not each.gangs])
OF_GANGS = tuple([name for name, each in VARIANTS.items() if each.gate is not False])
PODS, PLAIN_PODS = 1000, 100
PLAIN_ROUNDS = 20
PROCESSES = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd", "controller", "webhook")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="1.37.1", choices=["1.37.1", "1.36.4"])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, help=f"of a run; default {PODS}, with --plain {PLAIN_PODS}")
    parser.add_argument("--rounds", type=int, help=f"default {LEAST_ROUNDS}, with --plain {PLAIN_ROUNDS}")
    parser.add_argument("--patience", type=float, default=180, help="seconds after which unbound pods are given up")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only these; default: gate on and off")
    parser.add_argument(
        "--gangs", action="store_true", help="the variants with the gate, without gangs and with; PodGroups on 1.37.1"
    )
    parser.add_argument(
        "--plain", action="store_true", help="only what pods without devices cost the API server, by parts of hami-dra"
    )
    parser.add_argument("--gang-size", type=int, default=8, help="members of each gang; must divide the pods")
    parser.add_argument("--requests", action="store_true", help="also what the API server was asked for each pod")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    chosen = parser.parse_args()
    chosen.variant = chosen.variant or (OF_GANGS if chosen.gangs else WITHOUT_GANGS)
    chosen.pods = chosen.pods or (PLAIN_PODS if chosen.plain else PODS)
    chosen.rounds = (PLAIN_ROUNDS if chosen.plain else LEAST_ROUNDS) if chosen.rounds is None else chosen.rounds
    has_gangs = any(VARIANTS[name].gangs for name in chosen.variant)
    if has_gangs and (chosen.gang_size < 1 or chosen.pods % chosen.gang_size):
        parser.error(f"--gang-size {chosen.gang_size} does not divide --pods {chosen.pods}")
    if chosen.rounds < 1:
        parser.error("--rounds: at least 1; a figure needs 5")
    return chosen


@contextmanager
def control_plane(chosen: argparse.Namespace) -> Iterator[ControlPlane]:
    """A furnished one."""
    with_groups = any(VARIANTS[name].gangs == "PodGroups" for name in chosen.variant)
    plane_options = variants.variant(variants.GANGS if with_groups else chosen.version).options
    options = {"kube-controller-manager": ["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"]}
    with ControlPlane(**plane_options, client_qps=5000, extra_args=options) as plane:
        furnish(plane, chosen.nodes, chosen.cards)
        yield plane


def measured(chosen: argparse.Namespace) -> dict[str, list[Result]]:
    """Return the results of each variant, one for each round."""
    results: dict[str, list[Result]] = {name: [] for name in chosen.variant}
    with control_plane(chosen) as plane:
        settings = {"gang_size": chosen.gang_size, "patience": chosen.patience}
        bench = Bench(plane, pods=chosen.pods, **settings)
        warming = max(chosen.pods // 4 // chosen.gang_size, 1) * chosen.gang_size
        for number, order in enumerate(orders(chosen.variant, chosen.rounds + 1)):
            bench.pods = chosen.pods if number else warming
            for name in order:
                result = bench.run(name, VARIANTS[name])
                said = f"{result.rate:.1f} pods/s, load before {result.load:.1f}, {result.bound} bound"
                print(f"  {f'round {number}' if number else 'warm-up'}: {name}: {said}", file=sys.stderr, flush=True)
                if number:
                    results[name].append(result)
    return results


def main() -> int:
    chosen = parse()
    if chosen.plain:
        return plain(chosen)
    results = measured(chosen)
    if chosen.output == "json":
        print(
            json.dumps({name: [{**vars(each), "rate": each.rate} for each in found] for name, found in results.items()})
        )
        return 0
    print(
        f"{chosen.nodes} nodes x {chosen.cards} cards, {chosen.pods} pods, Kubernetes {chosen.version}; {chosen.rounds} rounds"
    )
    first = results[chosen.variant[0]]
    for name, found in results.items():
        print_variant(name, found, first)
    if chosen.requests:
        print_requests(results)
    return 0


def plain(chosen: argparse.Namespace) -> int:
    with control_plane(chosen) as plane:
        found = throughput_plain.measured(plane, chosen.pods, chosen.rounds)
    if chosen.output == "json":
        print(json.dumps({name: [vars(each) for each in batches] for name, batches in found.items()}))
        return 0
    rounds = len(found[throughput_plain.NOTHING])
    if not rounds:
        return 130  # interrupted before the first was done
    print(f"{chosen.nodes} nodes, {rounds} rounds of {chosen.pods} pods, Kubernetes {chosen.version}")
    throughput_plain.print_costs(found)
    return 0


def print_variant(name: str, found: Sequence[Result], first: Sequence[Result]) -> None:
    rates, costs = [each.rate for each in found], [each.milliseconds() for each in found]
    base_rates, base_costs = [each.rate for each in first], [each.milliseconds() for each in first]
    print(
        f"{name}: {min(each.bound for each in found)} bound at least; load before {spread([each.load for each in found])}"
    )
    print(f"  pods/s        {spread(rates)}; ratio {spread(ratios(rates, base_rates), 2)}")
    print(f"  CPU a pod, ms {spread(costs)}; ratio {spread(ratios(costs, base_costs), 2)}")
    for process in (*PROCESSES, "this program"):
        values = [each.milliseconds(process) for each in found]
        if any(values):
            against = ratios(values, [each.milliseconds(process) for each in first])
            beside = f"; ratio {spread(against, 2)}" if against else ""
            print(f"    {process:<24} {spread(values, 2)}{beside}")
    print(f"  machine idle  {spread([100 * each.idle for each in found], 0)} %")


def print_requests(results: dict[str, list[Result]]) -> None:
    """A line for each kind of request of which some variant makes one for every fifty pods or more;
    watches do not count.
    """
    shares = [
        {
            name: statistics.median(each.requests.get(name, 0.0) / max(each.bound, 1) for each in found)
            for name in {name for each in found for name in each.requests}
        }
        for found in results.values()
    ]
    frequent = sorted({name for share in shares for name, count in share.items() if count >= 0.02})
    print("requests for each pod: " + " | ".join(results))
    for name in frequent:
        if not name.startswith("WATCH"):
            print(f"  {name:<32}" + "".join(f"{share.get(name, 0.0):8.2f}" for share in shares))


if __name__ == "__main__":
    sys.exit(main())
