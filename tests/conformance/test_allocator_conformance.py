"""First fit against the answers of the Kubernetes allocator, on cases of its own table. None of them differs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from controller.allocation.chooser import FirstFit
from controller.allocation.errors import AllocatorError
from controller.allocation.features import GATES, FeatureGates
from controller.allocation.request import prepare
from controller.allocation.search import solve
from controller.inventory.model import DeviceId
from controller.inventory.pools import PoolBook, compile_slice
from hami_dra.api.core import Node
from hami_dra.api.quantity import Quantity
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice

CASES = [json.loads(line) for line in (Path(__file__).parent / "allocator_cases.jsonl").read_text().splitlines()]
ALL_OFF = FeatureGates(**dict.fromkeys(FeatureGates.__struct_fields__, False))


class Allocated:
    """What a case says is in use."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self._exclusive = set(case["allocatedDevices"])
        self._shared = [name.rsplit("/", 1)[0] for name in case["allocatedShared"]]
        self._consumed = {
            device: {name: Quantity.parse(amount).value() for name, amount in amounts.items()}
            for device, amounts in case["aggregatedCapacity"].items()
        }

    def in_use(self, device: DeviceId) -> bool:
        return str(device) in self._exclusive

    def shares(self, device: DeviceId) -> int:
        return self._shared.count(str(device))

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        return self._consumed.get(str(device), {})


def parse(raw: Any, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(raw), type=kind)


def allocate(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Our answer to the case: one allocation per claim, or nothing. Raises AllocatorError."""
    gates = {GATES[gate]: True for feature in case["features"] for gate in feature.split("+")}
    features = replace(ALL_OFF, **gates)
    classes = {raw["metadata"]["name"]: parse(raw, DeviceClass) for raw in case["classes"] or ()}
    claims = [parse(raw, ResourceClaim) for raw in case["claims"] or ()]
    node = parse(case["node"], Node)
    book = PoolBook(features.pool_gates)
    for slice_ in named_apart(parse(raw, ResourceSlice) for raw in case["slices"] or ()):
        book.put(compile_slice(slice_))
    problem = prepare(claims, classes, features=features)
    solution = solve(problem, node, book.on(node), Allocated(case), FirstFit())
    return list(solution.allocations()) if solution is not None else []


def named_apart(slices: Iterable[ResourceSlice]) -> Iterator[ResourceSlice]:
    """The table gives several slices one name, which no cluster has; the order by name stays the same."""
    seen: Counter[str] = Counter()
    for slice_ in slices:
        name = slice_.metadata.name
        seen[name] += 1
        suffix = f"-{seen[name]}" if seen[name] > 1 else ""
        metadata = msgspec.structs.replace(slice_.metadata, name=name + suffix)
        yield msgspec.structs.replace(slice_, metadata=metadata)


def comparable(allocation: Mapping[str, Any]) -> Any:
    """Results in any order, shareID known to be there or not, quantities as they are spelled."""
    devices = allocation.get("devices", {})
    results = []
    for result in devices.get("results") or ():
        shared = "shareID" in result or "consumedCapacity" in result
        rest = {key: value for key, value in result.items() if key not in {"shareID", "consumedCapacity"}}
        consumed = result.get("consumedCapacity") or {}
        results.append({**rest, "shared": shared, "consumed": consumed})
    return {
        "results": sorted(results, key=lambda result: json.dumps(result, sort_keys=True)),
        "config": devices.get("config") or [],
        "nodeSelector": allocation.get("nodeSelector"),
    }


def test_the_table_is_there():
    assert len(CASES) == 159


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_first_fit_is_upstream(case):
    if case["error"]:
        with pytest.raises(AllocatorError):
            allocate(case)
        return
    assert [comparable(mine) for mine in allocate(case)] == [comparable(theirs) for theirs in case["results"] or ()]
