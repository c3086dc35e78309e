"""Microseconds per selector evaluation, and per allocation on one node of 8, 128 and 1,000 devices.

    python hack/bench/allocate.py
    python hack/bench/allocate.py --devices 8 128 --times 50

Selectors: evaluated on one device, with what is kept per expression and device left out, as when a
slice is published anew. Allocations: `prepare` and `solve` on an idle node, warm (devices and
selectors have been seen, the claim has not), in upstream's order (first-fit) and by a device policy
(binpack). Prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.allocation.chooser import Chooser, FirstFit
from controller.allocation.request import prepare
from controller.allocation.search import solve
from controller.inventory.inventory import Inventory
from controller.scoring.chooser import PolicyChooser
from controller.scoring.policies import DevicePolicy, Policies
from hack.bench.decide import DRIVER, card
from hami_dra.api import names
from hami_dra.api.core import Node
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from hami_dra.cel import compile_selector

NODE: Final = "node"
SLICE: Final = 128
"""Devices per slice, the most that the API server takes."""
ATTRIBUTES: Final = 'device.attributes["hami.io"]'
CAPACITY: Final = f'device.capacity["{DRIVER}"]'
SELECTORS: Final = {
    "driver": f'device.driver == "{DRIVER}"',
    "product name": f'{ATTRIBUTES}.productName == "NVIDIA H100 80GB HBM3"',
    "memory": f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0',
    "regular expression": f'{ATTRIBUTES}.productName.matches("^NVIDIA (H100|A100)")',
    "six terms": (
        f'device.driver == "{DRIVER}" && {ATTRIBUTES}.index >= 0 && {ATTRIBUTES}.productName.contains("H100") && '
        f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0 && has({ATTRIBUTES}.rack) && {ATTRIBUTES}.rack < 1000'
    ),
    "optional, list": f'{ATTRIBUTES}.?missing.orValue("x") in ["x", "y"]',
}
REQUESTS: Final[dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "a shared card": ({"count": 1, "capacity": {"requests": {"memory": "7500Mi", "cores": "0"}}}, []),
    "8 whole cards": ({"count": 8}, []),
    "8 of one rack": ({"count": 8}, [{"matchAttribute": "hami.io/rack"}]),
}


def device(index: int) -> dict[str, Any]:
    made: dict[str, Any] = card(index)
    made["attributes"] = {**made["attributes"], "hami.io/index": {"int": index}, "hami.io/rack": {"int": index // 8}}
    return made


def furnished(devices: int) -> Inventory:
    inventory = Inventory()
    inventory.node_changed(None, msgspec.convert({"metadata": {"name": NODE, "uid": NODE}}, Node))
    starts = range(0, devices, SLICE)
    for number, start in enumerate(starts):
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(starts)}
        listed = [device(index) for index in range(start, min(start + SLICE, devices))]
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": listed}
        name = f"{NODE}-{number:03}"
        inventory.slice_changed(
            None, msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, ResourceSlice)
        )
    body = {"metadata": {"name": "bench"}, "spec": {"selectors": [{"cel": {"expression": SELECTORS["driver"]}}]}}
    inventory.class_changed(None, msgspec.convert(body, DeviceClass))
    return inventory


def median(act: Callable[[], object], times: int, repeat: int = 1) -> float:
    """Microseconds of one `act`: the median of `times` measurements of `repeat` acts each."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(repeat):
            act()
        took.append((time.perf_counter() - start) * 1e6 / repeat)
    return statistics.median(took)


def selectors(times: int) -> Iterator[tuple[str, float]]:
    inventory = furnished(1)
    (pool,) = inventory.pools_on(NODE)
    seen = pool.devices[0].selector_input
    for name, expression in SELECTORS.items():
        selector = compile_selector(expression)
        assert selector.evaluate(seen), f"the selector {name!r} is to match"

        yield name, median(partial(selector.evaluate, seen), times, repeat=200)


def allocations(devices: int, times: int) -> Iterator[tuple[str, list[float]]]:
    """By request: median microseconds in upstream's order, and by a policy."""
    inventory = furnished(devices)
    node, pools = inventory.nodes.node(0), inventory.pools_on(NODE)
    policies = Policies(device_policy=DevicePolicy((names.BINPACK,)))
    choosers: list[Callable[[], Chooser]] = [FirstFit, lambda: PolicyChooser(inventory, policies)]
    for name, (exactly, constraints) in REQUESTS.items():
        request = {
            "name": "gpu",
            "exactly": {"deviceClassName": "bench", "allocationMode": "ExactCount", **exactly},
        }
        spec = {"devices": {"requests": [request], "constraints": constraints}}
        body = {"metadata": {"name": "claim", "namespace": "bench", "uid": "claim"}, "spec": spec}
        claim = msgspec.convert(body, ResourceClaim)

        def act(chooser: Callable[[], Chooser], claim: ResourceClaim = claim) -> None:
            problem = prepare([claim], inventory.classes)
            assert solve(problem, node, pools, inventory.usage, chooser()) is not None

        yield name, [median(partial(act, chooser), times) for chooser in choosers]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 128, 1000])
    parser.add_argument("--times", type=int, default=101, help="measurements of which the median is taken; default 101")
    chosen = parser.parse_args()
    print(f"{'selector':<20} {'median µs':>10}")
    for name, microseconds in selectors(chosen.times):
        print(f"{name:<20} {microseconds:>10.2f}", flush=True)
    print(f"\n{'allocation':<20} {'devices':>8} {'first-fit µs':>13} {'binpack µs':>11}")
    for devices in chosen.devices:
        for name, (first_fit, binpack) in allocations(devices, chosen.times):
            print(f"{name:<20} {devices:>8} {first_fit:>13.0f} {binpack:>11.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
