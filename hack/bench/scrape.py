"""What Prometheus costs the controller: a scrape of /metrics with a line for each card and each
pod, on clusters of 8-card nodes.

    python hack/bench/scrape.py [--nodes 100 1000 5000] [--names hami hami-2.7]

One pod on each card. Prints for each size the first scrape, which looks at everything, and the
median of the next ones: lines, megabytes, seconds of CPU, and how long at most nothing else runs.
Compression comes on top: aiohttp does it in a thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.reconcile.observability.collectors.cards import CardGauges
from controller.reconcile.observability.collectors.figures import PackingFigures
from controller.reconcile.observability.collectors.pods import PodGauges
from controller.reconcile.runtime.informers import allocated_devices
from controller.views.overview.card_table import CardTable
from hack.bench.decide import CARDS, DRIVER, furnished
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.store import Store

AGAIN = 5


class Cost(NamedTuple):
    seconds: float
    longest: float
    lines: int
    size: int
    compressed: int


def claim(number: int, node: str, card: int) -> ResourceClaim:
    consumed = {"memory": "4Gi", "cores": "10", "shares": "1"}
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{card}", "shareID": f"s{number}"}
    status = {
        "allocation": {"devices": {"results": [{**result, "consumedCapacity": consumed}]}},
        "reservedFor": [{"resource": "pods", "name": f"training-{number}", "uid": f"p{number}"}],
    }
    metadata = {"name": f"training-{number}-gpu-x7k2p", "namespace": "bench", "uid": f"c{number}"}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


class Controller:
    """What a scrape reads."""

    def __init__(self, nodes: int, names: frozenset[NameSet]) -> None:
        self.inventory = furnished(nodes)
        claims: Store[ResourceClaim] = Store(device=allocated_devices)
        for row, node in enumerate(self.inventory.nodes.names):
            for card in range(CARDS):
                one = claim(CARDS * row + card, node, card)
                claims.put(one)
                self.inventory.claim_changed(None, one)
        table = CardTable(self.inventory)
        self.figures = PackingFigures(table)
        self.cards = CardGauges(table, names)
        self.pods = PodGauges(table, claims, lambda _: None, names)

    def pieces(self) -> Iterator[str]:
        list(self.figures.collect())
        yield ""
        yield from self.cards.blocks()
        yield from self.pods.blocks()


def scrape(controller: Controller) -> Cost:
    packer = zlib.compressobj()
    begun = time.process_time()
    packing = longest = 0.0
    lines = size = compressed = 0
    last = begun
    for text in controller.pieces():
        now = time.process_time()
        longest = max(longest, now - last)
        raw = text.encode()
        lines, size, compressed = lines + text.count("\n"), size + len(raw), compressed + len(packer.compress(raw))
        last = time.process_time()
        packing += last - now
    return Cost(last - begun - packing, longest, lines, size, compressed + len(packer.flush()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--names", type=NameSet, nargs="*", default=[], help="hami, hami-2.7")
    chosen = parser.parse_args()
    print(
        f"{'nodes':>6} {'lines':>8} {'MB':>6} {'packed':>6} {'first s':>8} {'holds ms':>8} {'next s':>7} {'holds ms':>8}"
    )
    collect_in_pieces()
    for nodes in chosen.nodes:
        controller = Controller(nodes, frozenset(chosen.names))
        gc.collect()
        gc.freeze()
        first, *more = (scrape(controller) for _ in range(1 + AGAIN))
        seconds, longest = (statistics.median(getattr(each, name) for each in more) for name in ("seconds", "longest"))
        print(
            f"{nodes:>6} {first.lines:>8} {first.size / 1e6:>6.1f} {first.compressed / 1e6:>6.1f} {first.seconds:>8.2f} "
            f"{first.longest * 1e3:>8.0f} {seconds:>7.2f} {longest * 1e3:>8.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
