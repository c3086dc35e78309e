"""Small clusters of one node for tests of the allocator: slices, classes and claims from as few words as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller.allocation.chooser import Chooser, FirstFit
from controller.allocation.features import FeatureGates
from controller.allocation.request import AllocationInput, prepare
from controller.allocation.result import Solution
from controller.allocation.search import DEFAULT_BUDGET, solve
from controller.inventory.model import DeviceId, Pool
from controller.inventory.pools import PoolBook, compile_slice
from hami_dra.api.core import Node
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice

Json = dict[str, Any]
DRIVER = "gpu.example.com"
NODE = "node-1"


@dataclass
class InUse:
    """A ledger that is told what it holds. Devices by name, all in the pool of the node."""

    exclusive: set[str] = field(default_factory=set)
    shared: dict[str, int] = field(default_factory=dict)
    amounts: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def in_use(self, device: DeviceId) -> bool:
        return device.device in self.exclusive

    def shares(self, device: DeviceId) -> int:
        return self.shared.get(device.device, 0)

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        return self.amounts.get(device.device, {})


def parse(raw: Json, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(raw), type=kind)


def device(name: str, *, capacity: Json | None = None, shared: bool = False, **rest: Any) -> Json:
    """Keyword arguments that are no field of a device are attributes: int, str or bool."""
    known = {"consumesCounters", "taints", "bindingConditions", "bindsToNode"}
    kinds = {bool: "bool", int: "int", str: "string"}
    made: Json = {"name": name, "attributes": {}}
    for key, value in rest.items():
        if key in known:
            made[key] = value
        else:
            made["attributes"][key] = {kinds[type(value)]: value}
    if capacity is not None:
        made["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in capacity.items()
        }
    if shared:
        made["allowMultipleAllocations"] = True
    return made


def slice_of(*devices: Json, name: str = "slice", pool: str = NODE, count: int = 1, **rest: Any) -> Json:
    spec = {"driver": DRIVER, "nodeName": NODE, "devices": list(devices)} | rest
    spec["pool"] = {"name": pool, "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": spec}


def pools_of(*slices: Json, features: FeatureGates = FeatureGates()) -> Sequence[Pool]:
    book = PoolBook(features.pool_gates)
    for raw in slices:
        book.put(compile_slice(parse(raw, ResourceSlice)))
    return book.on(parse({"metadata": {"name": NODE}}, Node))


def class_of(*expressions: str, name: str = "gpu", config: Sequence[Json] = ()) -> Json:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, "config": list(config)}}


GPU = class_of(f'device.driver == "{DRIVER}"')


def exactly(name: str = "r", count: int = 1, *, where: str = "", capacity: Json | None = None, **rest: Any) -> Json:
    """One request. `where` is a selector; `capacity` what it asks for."""
    return {"name": name, "exactly": alternative(count=count, where=where, capacity=capacity, **rest)}


def alternative(name: str = "", count: int = 1, *, where: str = "", capacity: Json | None = None, **rest: Any) -> Json:
    spec: Json = {"deviceClassName": "gpu", "count": count} | rest
    if name:
        spec["name"] = name
    if where:
        spec["selectors"] = [{"cel": {"expression": where}}]
    if capacity is not None:
        spec["capacity"] = {"requests": capacity}
    return spec


def everything(name: str = "r", **rest: Any) -> Json:
    return exactly(name, 0, allocationMode="All", **rest)


def first_of(name: str, *alternatives: Json) -> Json:
    return {"name": name, "firstAvailable": list(alternatives)}


def claim(
    *requests: Json,
    name: str = "c",
    constraints: Sequence[Json] = (),
    config: Sequence[Json] = (),
    namespace: str = "ns",
) -> Json:
    devices = {"requests": list(requests), "constraints": list(constraints), "config": list(config)}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"devices": devices}}


def problem_of(*claims: Json, classes: Sequence[Json] = (GPU,), **options: Any) -> AllocationInput:
    return prepare(
        [parse(raw, ResourceClaim) for raw in claims],
        {raw["metadata"]["name"]: parse(raw, DeviceClass) for raw in classes},
        **options,
    )


def allocate(
    slices: Sequence[Json],
    *claims: Json,
    chooser: Chooser | None = None,
    usage: InUse | None = None,
    budget: int = DEFAULT_BUDGET,
    node: Json | None = None,
    **options: Any,
) -> Solution | None:
    """`options` are those of `prepare`, and `classes`."""
    problem = problem_of(*claims, **options)
    return solve(
        problem,
        parse(node or {"metadata": {"name": NODE}}, Node),
        pools_of(*slices, features=problem.features),
        usage or InUse(),
        chooser or FirstFit(),
        budget=budget,
    )


def names_of(solution: Solution | None) -> list[list[str]] | None:
    """Names of the chosen devices by claim."""
    if solution is None:
        return None
    return [[pick.device.id.device for pick in picks] for picks in solution.picks]
