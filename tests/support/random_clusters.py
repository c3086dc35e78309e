"""Random small clusters with claims on one node, for tests that compare our allocator with Kubernetes'.

`random_clusters()` draws a `RandomCluster`: plain JSON, so that a failing one can be kept in a file. Objects are as an API server would store
them and kube-scheduler write them: a count is never absent (we read an absent one as the 1 that the server fills in, the
allocator itself as 0), a share always has its shareID. What no API server can see is drawn too: pools in the middle of an
update, names or counters that do not fit together across slices, devices held twice, more used than there is.

Every device has the attribute `fuzz.io/id`, `pool/device`, by which a claim can be narrowed to certain devices.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypedDict, TypeVar

from hypothesis import strategies as st

from controller.allocation.features import GATES
from hami_dra.api import names
from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS, VENDORS

Json = dict[str, Any]
T = TypeVar("T")

NODE: Final = "node-1"
NAMESPACE: Final = "ns"
ID: Final = "fuzz.io/id"
FOREIGN: Final = ("a.example.com", "b.example.com")
OURS: Final = tuple(vendor.profile.driver for vendor in VENDORS)
ON_BY_DEFAULT: Final = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
)
OFF_BY_DEFAULT: Final = tuple(sorted(set(GATES) - set(ON_BY_DEFAULT)))
_SKIPPED: Final = "NodePrepareResources"


class RandomCluster(TypedDict):
    gates: list[str]
    """Feature gates that are on; all others are off."""
    node: Json
    slices: list[Json]
    classes: list[Json]
    taintRules: list[Json]
    held: list[Json]
    """Claims that are allocated."""
    claims: list[Json]
    """Claims of the pod, in order."""
    later: list[Json]
    """Claims of the next pod."""
    annotations: dict[str, str]
    """Of the pod: wishes that vendors read."""


@st.composite
def random_clusters(draw: st.DrawFn) -> RandomCluster:
    return _Maker(_Dice(draw)).cluster()


class _Dice:
    """Draws that shrink to the first, the least, or no."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def chance(self, percent: int) -> bool:
        return self._draw(_number(0, 99)) >= 100 - percent

    def number(self, least: int, most: int) -> int:
        return self._draw(_number(least, most))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    def some(self, options: Sequence[T], least: int, most: int) -> list[T]:
        """Different ones, in any order."""
        left = list(options)
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(min(self.number(least, most), len(left)))]


@lru_cache
def _number(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


_SELECTORS: Final = (
    "true",
    'device.attributes["a.example.com"].?type.orValue("") != "Y"',
    "device.attributes[device.driver].?idx.orValue(2) != 2",
    '"idx" in device.attributes[device.driver] && device.attributes[device.driver].idx >= 1',
    'has(device.attributes[device.driver].type) && device.attributes[device.driver].type == "Y"',
    "device.allowMultipleAllocations == true",
    'device.capacity[device.driver].?memory.orValue(quantity("0")).compareTo(quantity("5")) > 0',
)
_FRAGILE_SELECTORS: Final = (
    'device.attributes["a.example.com"].type == "X"',
    "device.attributes[device.driver].idx >= 1",
    "noSuchVariable",
)
_POLICIES: Final[tuple[Json, ...]] = (
    {"default": "1"},
    {"default": "2", "validValues": ["2", "4", "8"]},
    {"default": "1", "validRange": {"min": "1", "max": "8", "step": "1"}},
    {"default": "2", "validRange": {"min": "2", "step": "2"}},
    {"default": "200m", "validRange": {"min": "200m", "max": "2", "step": "100m"}},
    {"default": "0", "validRange": {"min": "0", "max": "5"}},
    {"default": "3", "validRange": {"min": "3"}},
    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "1Mi"}},
)
_TOLERATIONS: Final[tuple[Json, ...]] = (
    {"operator": "Exists"},
    {"key": "t1", "operator": "Exists"},
    {"key": "t2", "operator": "Equal", "value": "v"},
    {"key": "t1", "value": "w"},
    {"key": "t1", "operator": "Exists", "effect": "NoExecute"},
)
_AMOUNTS: Final = ("1", "2", "1", "3", "4", "5", "0", "9", "1500m", "250m", "10Gi", "7Gi", "1.0")
_DERIVED: Final = (
    "device.attributes[device.driver].type",
    '"a"',
    'device.attributes[device.driver].?type.orValue("z")',
)
_CONSTRAINED: Final = (
    *["x.io/root", "fuzz.io/rack"] * 5,
    "a.example.com/type",
    "a.example.com/idx",
    "a.example.com/group",
    "hami.io/linkGroup",
)
_PREFERRED: Final = ("true", "false", "1", "0", "none", "best-effort", "restricted", "GPU-0-0,GPU-0-1", "GPU-0-0")


class _Maker:
    def __init__(self, dice: _Dice) -> None:
        self._dice = dice
        self._gates = self._draw_gates()
        self._drivers = FOREIGN if dice.chance(60) else (*dice.some(OURS, 1, 2), FOREIGN[0])
        self._partitions = dice.chance(30)
        self._capacities = dice.chance(65)
        self._sharing = dice.chance(65)
        self._tainting = dice.chance(35)
        self._administrating = dice.chance(10)
        self._used: list[str] = []
        """The drivers of the pools."""
        self._slices: list[Json] = []
        self._devices: dict[tuple[str, str, str], Json] = {}

    def cluster(self) -> RandomCluster:
        dice = self._dice
        for number in range(dice.pick((1, 1, 2, 3))):
            self._pool(f"pool-{number}")
        slices = [self._slices.pop(dice.number(0, len(self._slices) - 1)) for _ in range(len(self._slices))]
        return {
            "gates": self._gates,
            "node": self._node(),
            "slices": slices,
            "classes": self._classes(),
            "taintRules": [self._taint_rule(number) for number in range(dice.pick((0, 0, 0, 0, 0, 1, 2)))],
            "held": [self._held(number) for number in range(dice.pick((0, 1, 1, 2, 3, 5)))] if self._devices else [],
            "claims": [self._claim(f"claim-{number}") for number in range(dice.pick((1, 1, 1, 1, 2, 2, 3)))],
            "later": [self._claim("later")],
            "annotations": {name: dice.pick(_PREFERRED) for name in sorted(PREFERENCE_ANNOTATIONS) if dice.chance(20)},
        }

    def _draw_gates(self) -> list[str]:
        dice = self._dice
        which = dice.number(0, 19)
        if which < 14:
            return list(ON_BY_DEFAULT)
        if which < 18:
            return [*ON_BY_DEFAULT, *(gate for gate in OFF_BY_DEFAULT if dice.chance(50))]
        return [gate for gate in (*ON_BY_DEFAULT, *OFF_BY_DEFAULT) if dice.chance(70)]

    def _on(self, gate: str) -> bool:
        return gate in self._gates

    def _node(self) -> Json:
        status: Json = {
            "allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        if self._dice.chance(60):
            status["declaredFeatures"] = ["DRAOptionalNodeOperations"]
        return {"metadata": {"name": NODE, "uid": NODE, "labels": {"region": "r1"}}, "status": status}

    # -- slices ------------------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> None:
        dice = self._dice
        driver = dice.pick(self._drivers)
        if driver not in self._used:
            self._used.append(driver)
        for generation in (1, 2) if dice.chance(12) else (1,):
            sliced = dice.pick((1, 1, 1, 2, 3))
            counters = self._counter_sets() if self._partitions and dice.chance(75) else []
            count = sliced + bool(counters) + dice.chance(5)
            pool = {"name": name, "generation": generation, "resourceSliceCount": count}
            if counters:
                self._slice({"driver": driver, "pool": pool, "sharedCounters": counters})
            models = [self._model(driver, counters) for _ in range(dice.number(1, 3))]
            for number in range(sliced):
                devices = []
                for index in range(dice.pick((2, 1, 3, 4, 4, 6, 6, 8, 8, 0))):
                    device = self._device(f"gpu-{number}-{index}", dice.pick(models), driver, name)
                    devices.append(device)
                    self._devices[driver, name, device["name"]] = device
                spec: Json = {"driver": driver, "pool": pool, "devices": devices}
                if dice.chance(3):
                    spec["skipNodeOperations"] = [_SKIPPED]
                self._slice(spec)

    def _slice(self, spec: Json) -> None:
        dice = self._dice
        if spec.get("devices") and dice.chance(7):
            spec["perDeviceNodeSelection"] = True
            for device in spec["devices"]:
                self._place(device)
        else:
            self._place(spec)
        number = len(self._slices)
        name = f"s{dice.number(0, 99):02}-{number}" if dice.chance(20) else f"slice-{number:02}"
        self._slices.append({"metadata": {"name": name, "uid": name}, "spec": spec})

    def _place(self, where: Json) -> None:
        which = self._dice.number(0, 99)
        if which < 85:
            where["nodeName"] = NODE
        elif which < 90:
            where["nodeName"] = "node-2"
        elif which < 96:
            where["allNodes"] = True
        else:
            region = self._dice.pick(("r1", "r1", "r2"))
            expression = {"key": "region", "operator": "In", "values": [region]}
            where["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}

    def _counter_sets(self) -> list[Json]:
        dice = self._dice
        return [
            {
                "name": f"set-{number}",
                "counters": {"memory": {"value": dice.pick(("4", "10", "40Gi"))}, "cores": {"value": dice.pick("24")}},
            }
            for number in range(dice.number(1, 2))
        ]

    def _model(self, driver: str, counters: list[Json]) -> Json:
        """What several devices of a pool have in common."""
        dice = self._dice
        model: Json = {}
        if self._sharing and dice.chance(70):
            model["allowMultipleAllocations"] = True
        if driver in OURS:
            product = {"string": dice.pick(("T4", "A100"))}
            model["attributes"] = {names.ATTR_PRODUCT: product, "x.io/root": product}
            model["capacity"] = self._capacities_of_ours(shared="allowMultipleAllocations" in model)
        else:
            model["attributes"] = self._attributes()
            if self._capacities:
                chosen = dice.pick(
                    (("memory", "cores"), ("memory", "cores"), ("memory",), ("a.example.com/memory",), ())
                )
                model["capacity"] = {name: self._capacity(model) for name in chosen}
        if counters and dice.chance(80):
            model["consumesCounters"] = [self._consumption(each) for each in dice.some(counters, 1, 2)]
        if dice.chance(25 if self._tainting else 3):
            model["taints"] = [self._taint()]
        if dice.chance(6):
            model["bindingConditions"], model["bindingFailureConditions"] = ["ready"], ["failed"]
        if dice.chance(6):
            model["bindsToNode"] = True
        return model

    def _attributes(self) -> Json:
        dice = self._dice
        attributes: Json = {}
        if dice.chance(90):
            attributes["type"] = {"string": dice.pick("XY")}
        if dice.chance(50):
            attributes["group" if dice.chance(50) else "a.example.com/group"] = {"int": dice.number(0, 1)}
        kind = dice.number(0, 9)
        if kind < 5:
            attributes["x.io/root"] = {"string": dice.pick("ab")}
        elif kind == 5:
            attributes["x.io/root"] = {"version": dice.pick(("1.0.0", "2.0.0"))}
        elif kind == 6:
            attributes["x.io/root"] = {"bool": dice.chance(50)}
        elif kind < 9 and self._on("DRAListTypeAttributes"):
            attributes["x.io/root"] = {"strings": dice.some("abc", 1, 2)}
        return attributes

    def _capacity(self, model: Json) -> Json:
        dice = self._dice
        capacity: Json = {"value": dice.pick(("10", "80Gi", "100", "4", "100", "2500m", "1"))}
        if "allowMultipleAllocations" in model and dice.chance(60):
            capacity["requestPolicy"] = dice.pick(_POLICIES)
        return capacity

    def _capacities_of_ours(self, *, shared: bool) -> Json:
        amounts = {
            names.CAP_MEMORY: ("16Gi", "16Gi", "1Mi"),
            names.CAP_CORES: ("100", "100", "1"),
            names.CAP_SHARES: (self._dice.pick(("10", "2")), "1", "1"),
        }
        return {
            name: {"value": value}
            | (
                {"requestPolicy": {"default": default, "validRange": {"min": "0", "step": step, "max": value}}}
                if shared
                else {}
            )
            for name, (value, default, step) in amounts.items()
        }

    def _consumption(self, counter_set: Json) -> Json:
        dice = self._dice
        consumed: Json = {
            "counterSet": "nowhere" if dice.chance(1) else counter_set["name"],
            "counters": {
                name: {"value": dice.pick(("1", "2", "500m", "10Gi", "0"))}
                for name in dice.some(("memory", "cores"), 1, 2)
            },
        }
        if dice.chance(50 if self._on("DRADeviceCompatibilityGroups") else 3):
            consumed["compatibilityGroups"] = dice.some(("g1", "g2"), 1, 2)
        return consumed

    def _device(self, name: str, model: Json, driver: str, pool: str) -> Json:
        dice = self._dice
        if dice.chance(1):
            name = "twice"
        attributes = {**model["attributes"], ID: {"string": f"{pool}/{name}"}}
        if dice.chance(85):
            attributes["idx"] = {"int": dice.number(0, 5)}
        if dice.chance(95):
            attributes["fuzz.io/rack"] = {"int": dice.number(0, 3)}
        if driver in OURS:
            number = int(name[-1]) if name[-1].isdigit() else 0
            attributes[names.ATTR_INDEX] = {"int": number}
            attributes[names.ATTR_UUID] = {"string": name.upper()}
            attributes[names.ATTR_NUMA_NODE] = {"int": number // 2}
            attributes[names.ATTR_LINK_GROUP] = {"int": number // 4 + 1}
        device = {**model, "name": name, "attributes": attributes}
        if dice.chance(12 if self._tainting else 1):
            device["taints"] = [self._taint()]
        return device

    def _taint(self) -> Json:
        dice = self._dice
        effect = dice.pick(("NoSchedule", "NoExecute", "None"))
        return {"key": dice.pick(("t1", "t2")), "value": "v", "effect": effect}

    def _taint_rule(self, number: int) -> Json:
        dice = self._dice
        name = f"rule-{number}"
        spec: Json = {"taint": self._taint()}
        if self._devices and dice.chance(90):
            driver, pool, device = dice.pick(sorted(self._devices))
            selector = {"driver": driver, "pool": pool, "device": device}
            for key in dice.some(tuple(selector), 0, 2):
                del selector[key]
            spec["deviceSelector"] = {} if dice.chance(5) else selector
        return {"metadata": {"name": name, "uid": name}, "spec": spec}

    # -- claims ------------------------------------------------------------------------------------------------------

    def _classes(self) -> list[Json]:
        found = [_class("any", [])]
        for number, driver in enumerate(self._used):
            selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
            config = [{"opaque": {"driver": FOREIGN[0], "parameters": {"a": 1}}}] if number == 0 else []
            found.append(_class(f"class-{number}", selectors, config))
        return found

    def _claim(self, name: str) -> Json:
        dice = self._dice
        requests: list[Json] = []
        known: list[str] = []
        for number in range(dice.pick((1, 1, 1, 1, 2, 2, 3))):
            request = f"req-{number}"
            known.append(request)
            if dice.chance(22 if self._on("DRAPrioritizedList") else 1):
                alternatives = [{"name": f"sub-{rank}", **self._exactly(sub=True)} for rank in range(dice.number(1, 3))]
                requests.append({"name": request, "firstAvailable": alternatives})
                known += [f"{request}/{each['name']}" for each in alternatives]
            else:
                requests.append({"name": request, "exactly": self._exactly()})
        devices: Json = {"requests": requests}
        constraints = [self._constraint(known) for _ in range(dice.pick((0, 0, 0, 0, 0, 1, 1, 2)))]
        config = [self._config(known) for _ in range(dice.pick((0, 0, 0, 1, 2)))]
        if constraints:
            devices["constraints"] = constraints
        if config:
            devices["config"] = config
        return _object(name, {"devices": devices})

    def _exactly(self, *, sub: bool = False) -> Json:
        dice = self._dice
        named = dice.chance(30)
        exactly: Json = {"deviceClassName": f"class-{dice.number(0, len(self._used) - 1)}" if named else "any"}
        if dice.chance(6):
            exactly["allocationMode"] = "All"
        else:
            exactly["allocationMode"] = "ExactCount"
            exactly["count"] = dice.number(10, 34) if dice.chance(2) else dice.pick((1, 1, 1, 1, 1, 1, 2, 2, 3))
        if dice.chance(25):
            expressions = dice.some(_SELECTORS, 1, 2) if dice.chance(92) else [dice.pick(_FRAGILE_SELECTORS)]
            exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
        if dice.chance(50 if self._tainting else 5):
            exactly["tolerations"] = [dice.pick(_TOLERATIONS)]
        if dice.chance(25 if self._on("DRAConsumableCapacity") else 1):
            wanted = dice.pick(((names.CAP_MEMORY,), (names.CAP_MEMORY, names.CAP_CORES), (names.CAP_CORES,)))
            exactly["capacity"] = {"requests": {name: dice.pick(_AMOUNTS) for name in wanted}}
        if not sub and dice.chance(60 if self._administrating else 2):
            exactly["adminAccess"] = dice.chance(90)
        if dice.chance(30 if self._on("DRADerivedAttributes") else 1):
            exactly["derivedAttributes"] = [{"name": "x.io/root", "expression": dice.pick(_DERIVED)}]
        return exactly

    def _constraint(self, known: list[str]) -> Json:
        dice = self._dice
        kind = "distinctAttribute" if dice.chance(40) else "matchAttribute"
        constraint: Json = {kind: dice.pick(_CONSTRAINED)}
        if dice.chance(50):
            constraint["requests"] = dice.some(known, 1, len(known))
        return constraint

    def _config(self, known: list[str]) -> Json:
        config: Json = {"opaque": {"driver": FOREIGN[0], "parameters": {"b": 2}}}
        if self._dice.chance(70):
            config["requests"] = self._dice.some(known, 1, len(known))
        return config

    # -- what is in use ------------------------------------------------------------------------------------------------

    def _held(self, number: int) -> Json:
        dice = self._dice
        claim = _object(f"held-{number}", {"devices": {"requests": []}})
        chosen = dice.some(sorted(self._devices), 1, 2)
        results = [self._result(*device, f"{number}{position}") for position, device in enumerate(chosen)]
        claim["status"] = {"allocation": {"devices": {"results": results}}}
        return claim

    def _result(self, driver: str, pool: str, name: str, unique: str) -> Json:
        dice = self._dice
        device = self._devices[driver, pool, name]
        result: Json = {"request": "r", "driver": driver, "pool": pool, "device": name}
        if dice.chance(4):
            result["adminAccess"] = True
        elif device.get("allowMultipleAllocations") and dice.chance(92):
            result["shareID"] = f"00000000-0000-4000-8000-{int(unique):012}"
            if dice.chance(95):
                result["consumedCapacity"] = {
                    each: dice.pick(("1", "0", "2", "3", "8", "500m", "4Gi")) for each in device.get("capacity", {})
                }
        return result


def _object(name: str, spec: Json) -> Json:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "uid": name}, "spec": spec}


def _class(name: str, selectors: list[Json], config: Sequence[Json] = ()) -> Json:
    spec: Json = {"selectors": selectors} | ({"config": list(config)} if config else {})
    return {"metadata": {"name": name, "uid": name}, "spec": spec}
