"""One random cluster, judged twice: by our allocator and by Kubernetes' own (hack/oracle/allocator). Used by tests and hack/fuzz.py.

`Comparison(cluster, ask).run()` checks, and raises `Disagreement` where one of these does not hold:
- first fit: both have a solution, both have none, or both end with an error; a solution has the same devices in the same
  order, amounts, configuration and node selector, by `solve` and by `decide`;
- under every scoring policy what we choose is accepted: upstream, asked for the same claims narrowed to our devices, gives
  exactly our result; and we find something where it does, unless a vendor of ours refuses cards;
- what we chose is then in use on both sides, and the next pod gets the same answer from both.

It returns how often each verdict came, the known differences (`KNOWN`) by name.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.allocation.chooser import FirstFit
from controller.allocation.errors import AllocatorError, BudgetExceeded, InvalidPools
from controller.allocation.features import GATES, FeatureGates
from controller.allocation.request import prepare
from controller.allocation.search import solve
from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, InvalidPolicy, Policies
from controller.scoring.policy_resolution import resolve_policies
from hami_dra.api import names
from hami_dra.api.core import Namespace, Node, Pod
from hami_dra.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from tests.support.assumed import assume
from tests.support.random_clusters import ID, NAMESPACE, NODE, OURS, RandomCluster

Json = dict[str, Any]
Ask = Callable[[Json], Json]
"""Question to hack/oracle/allocator → answer."""

MILLISECONDS: Final = 500
"""Upstream searches without end where it finds nothing; then there is nothing to compare with."""
POLICIES: Final = (
    *((name,) for name in names.DEVICE_POLICIES),
    (names.SPREAD, names.MUTEX),
    (names.NUMA, names.BINPACK),
)
KNOWN: Final = {
    "upstream gave up": "its search took longer than the time it was given; ours may have found the answer",
    "upstream broke": "it panicked",
    "we gave up": "our search ran out of steps, and says so; upstream's, which prunes less, came through",
    "decide knows the newest only": (
        "in the middle of an update slices of two generations describe one device, and a node still sees the older; the "
        "columns that decide filters nodes by hold the newest, so it may pass the node over until the update is through"
    ),
    "we went round an error": (
        "under a policy devices are tried in another order; one that upstream cannot judge, and stops at, is not needed"
    ),
}


class Disagreement(AssertionError):
    """We and Kubernetes differ in what cannot be explained by `KNOWN`."""


@dataclass(frozen=True)
class Answer:
    """`kind`: solution, none, error, error-on-node, gave up, broke."""

    kind: str
    allocations: Sequence[Json] = ()
    message: str = ""

    @property
    def solved(self) -> bool:
        return self.kind == "solution"


class Comparison:
    def __init__(self, cluster: RandomCluster, ask: Ask) -> None:
        self._cluster = cluster
        self._ask = ask
        self._gates = FeatureGates(**{field: name in cluster["gates"] for name, field in GATES.items()})
        self._slices = tainted(cluster["slices"], cluster["taintRules"])
        self._inventory = self._furnished()
        self._refuses = any(slice_["spec"]["driver"] in OURS for slice_ in cluster["slices"])
        """Vendors of ours may refuse what upstream allows."""
        self._ambiguous = max(_published(cluster["slices"]).values(), default=0) > 1
        """Some device is described more than once."""
        self._verdicts: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        waiting = self._cluster["claims"]
        theirs = self._upstream(waiting)
        self._compare_first_fit("first fit", waiting, theirs)
        seen: dict[str, Answer] = {}
        for keys in POLICIES:
            ours = self._decided(waiting, Options(gates=self._gates), keys)
            self._compare_policy(keys, waiting, theirs, ours, seen)
        return self._verdicts

    # -- first fit -----------------------------------------------------------------------------------------------------

    def _compare_first_fit(self, what: str, waiting: Sequence[Json], theirs: Answer) -> None:
        ours = self._searched(waiting)
        if self._gave_up(what, theirs, ours):
            return
        if ours.kind != theirs.kind:
            raise Disagreement(f"{what}: {_story(theirs, ours)}")
        if _plain(ours.allocations) != _plain(theirs.allocations):
            raise Disagreement(f"{what}: different devices: {_story(theirs, ours)}")
        decided = self._decided(waiting, Options(gates=self._gates, first_fit=True), POLICIES[0])
        if ours.solved and decided.kind == "none" and self._ambiguous:
            self._verdicts[f"{what}: decide knows the newest only"] += 1
            return
        if decided.solved != ours.solved or _plain(decided.allocations) != _plain(ours.allocations):
            raise Disagreement(f"{what}: the search found {ours}, but decide said {decided}")
        self._verdicts[f"{what}: same {theirs.kind}"] += 1

    def _searched(self, waiting: Sequence[Json]) -> Answer:
        """Ours, by the search alone."""
        inventory = self._inventory
        try:
            problem = prepare([_parse(raw, ResourceClaim) for raw in waiting], inventory.classes, features=self._gates)
            node = inventory.nodes.node(inventory.nodes.index_of(NODE))
            solution = solve(problem, node, inventory.pools_on(NODE), inventory.usage, FirstFit())
            return Answer("none") if solution is None else Answer("solution", solution.allocations())
        except InvalidPools as error:
            return Answer("error-on-node", message=str(error))
        except AllocatorError as error:
            return Answer("error", message=str(error))
        except BudgetExceeded as error:
            return Answer("gave up", message=str(error))

    def _gave_up(self, what: str, theirs: Answer, ours: Answer) -> bool:
        known = {"gave up": "upstream gave up", "broke": "upstream broke"}.get(theirs.kind)
        if known is None and ours.kind == "gave up":
            known = "we gave up"
        if known is not None:
            self._verdicts[f"{what}: {known}"] += 1
        return known is not None

    # -- policies ------------------------------------------------------------------------------------------------------

    def _compare_policy(
        self, keys: tuple[str, ...], waiting: Sequence[Json], theirs: Answer, ours: Answer, seen: dict[str, Answer]
    ) -> None:
        what = "policy"
        if not ours.solved:
            if theirs.solved and ours.kind == "gave up":
                self._verdicts[f"{what}: we gave up"] += 1
            elif theirs.solved and ours.kind == "none" and self._ambiguous:
                self._verdicts[f"{what}: decide knows the newest only"] += 1
            elif theirs.solved and not self._refuses and names.MUTEX not in keys:
                raise Disagreement(f"{','.join(keys)}: {_story(theirs, ours)}")
            else:
                verdict = "refused by a vendor or mutex" if theirs.solved else "no solution on either side"
                self._verdicts[f"{what}: {verdict}"] += 1
            return
        if theirs.kind == "none":
            raise Disagreement(f"{','.join(keys)}: {_story(theirs, ours)}")
        key = json.dumps(ours.allocations, sort_keys=True)
        if key in seen:
            self._verdicts[f"{what}: same as another's"] += 1
            return
        seen[key] = ours
        self._compare_accepted(keys, waiting, ours)
        explained = {"error": "we went round an error", "gave up": "upstream gave up", "broke": "upstream broke"}
        self._verdicts[f"{what}: {explained.get(theirs.kind, 'accepted')}"] += 1
        self._compare_next(waiting, ours)

    def _compare_accepted(self, keys: tuple[str, ...], waiting: Sequence[Json], ours: Answer) -> None:
        """Upstream gives the same when it is asked for our devices only."""
        narrow = [narrowed(claim, allocation) for claim, allocation in zip(waiting, ours.allocations, strict=True)]
        again = self._upstream(narrow)
        if again.kind == "error":
            again = self._upstream(narrow, self._without_unneeded(ours.allocations))
        mine, others = _unordered(map(_without_promises, ours.allocations)), _unordered(again.allocations)
        if not again.solved or mine != others:
            raise Disagreement(f"{','.join(keys)}: what we chose is not accepted: {_story(again, ours)}")

    def _compare_next(self, waiting: Sequence[Json], ours: Answer) -> None:
        """With our choice in use the next pod gets the same from both."""
        allocated = [
            {**claim, "status": {"allocation": stamped(allocation, number)}}
            for number, (claim, allocation) in enumerate(zip(waiting, ours.allocations, strict=True))
        ]
        for claim, allocation in zip(waiting, ours.allocations, strict=True):
            assume(self._inventory, claim["metadata"]["uid"], allocation)
        again = [_renamed(claim) for claim in waiting]
        for later in (self._cluster["later"], again):
            self._compare_first_fit("the next pod", later, self._upstream([*allocated, *later]))
        for claim in waiting:
            self._inventory.forget(claim["metadata"]["uid"])

    def _without_unneeded(self, allocations: Sequence[Json]) -> list[Json]:
        """The slices without devices that are neither chosen nor in use: those are what upstream stumbled over."""
        used = [claim["status"]["allocation"] for claim in self._cluster["held"]]
        needed = {
            (result["driver"], result["pool"], result["device"])
            for allocation in (*allocations, *used)
            for result in allocation["devices"]["results"]
        }
        slices = copy.deepcopy(self._slices)
        for slice_ in slices:
            spec = slice_["spec"]
            if "devices" in spec:
                pool = spec["driver"], spec["pool"]["name"]
                spec["devices"] = [device for device in spec["devices"] if (*pool, device["name"]) in needed]
        return slices

    # -- the two sides -------------------------------------------------------------------------------------------------

    def _upstream(self, claims: Sequence[Json], slices: Sequence[Json] | None = None) -> Answer:
        question = {
            "gates": self._cluster["gates"],
            "node": self._cluster["node"],
            "slices": self._slices if slices is None else slices,
            "classes": self._cluster["classes"],
            "claims": [*self._cluster["held"], *claims],
            "milliseconds": MILLISECONDS,
        }
        answer = self._ask(question)
        kind = {"timeout": "gave up", "panic": "broke"}.get(answer["outcome"], answer["outcome"])
        return Answer(kind, answer.get("results", ()), answer.get("message", ""))

    def _decided(self, waiting: Sequence[Json], options: Options, keys: tuple[str, ...]) -> Answer:
        """Ours, by the whole decision: columns, outlook, search."""
        claims = [_parse(raw, ResourceClaim) for raw in waiting]
        pod = _parse({"metadata": _named("pod") | {"annotations": self._cluster["annotations"]}}, Pod)
        default = Policies(device_policy=DevicePolicy(keys))
        try:
            policies = resolve_policies(pod, claims, {}, {}, default)
        except InvalidPolicy:
            policies = default
        scheduling_request = SchedulingRequest(
            pod, tuple(PodClaim(claim.metadata.name, claim) for claim in claims), policies
        )
        answer = decide(self._inventory, scheduling_request, options)
        if isinstance(answer, Decision):
            return Answer("solution", [each.allocation for each in answer.allocations])
        if "given up after" in answer.message:
            return Answer("gave up", message=answer.message)
        return Answer("error" if answer.error else "none", message=answer.message)

    def _furnished(self) -> Inventory:
        inventory = Inventory(self._gates.pool_gates, node_pools=())
        inventory.namespace_changed(
            None, _parse({"metadata": {"name": NAMESPACE, "labels": {names.ADMIN_ACCESS_LABEL: "true"}}}, Namespace)
        )
        inventory.node_changed(None, _parse(self._cluster["node"], Node))
        for slice_ in self._cluster["slices"]:
            inventory.slice_changed(None, _parse(slice_, ResourceSlice))
        for class_ in self._cluster["classes"]:
            inventory.class_changed(None, _parse(class_, DeviceClass))
        for rule in self._cluster["taintRules"]:
            inventory.taint_rule_changed(None, _parse(rule, DeviceTaintRule))
        for claim in self._cluster["held"]:
            inventory.claim_changed(None, _parse(claim, ResourceClaim))
        return inventory


def _published(slices: Sequence[Json]) -> Counter[tuple[str, str, str]]:
    """How often each device is published, in slices of whatever generation."""
    return Counter(
        (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"])
        for slice_ in slices
        for device in slice_["spec"].get("devices", ())
    )


# --- what upstream is told ------------------------------------------------------------------------------------------------


def tainted(slices: Sequence[Json], rules: Sequence[Json]) -> list[Json]:
    """The slices as kube-scheduler sees them: with the taints of DeviceTaintRules."""
    if not rules:
        return list(slices)
    slices = copy.deepcopy(list(slices))
    for spec in (slice_["spec"] for slice_ in slices):
        for device in spec.get("devices", ()):
            known = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
            more = [
                rule["spec"]["taint"]
                for rule in rules
                if "deviceSelector" in rule["spec"]  # without one a rule is for no device, with an empty one for all
                and all(known[key] == value for key, value in rule["spec"]["deviceSelector"].items())
            ]
            if more:
                device["taints"] = [*device.get("taints", ()), *more]
    return slices


def narrowed(claim: Json, allocation: Json) -> Json:
    """The claim for exactly the devices of its allocation: by a selector, and without alternatives that were not taken."""
    claim = copy.deepcopy(claim)
    chosen: dict[str, list[str]] = {}
    for result in allocation["devices"]["results"]:
        chosen.setdefault(result["request"], []).append(f"{result['pool']}/{result['device']}")
    for request in claim["spec"]["devices"]["requests"]:
        (name,) = (name for name in chosen if name.partition("/")[0] == request["name"])
        spec = request.get("exactly")
        if spec is None:
            (spec,) = (each for each in request["firstAvailable"] if f"{request['name']}/{each['name']}" == name)
            request["firstAvailable"] = [spec]
        domain, _, identifier = ID.partition("/")
        only = f'device.attributes["{domain}"].{identifier} in {json.dumps(chosen[name])}'
        spec["selectors"] = [{"cel": {"expression": only}}, *spec.get("selectors", ())]
    return claim


def stamped(allocation: Json, number: int) -> Json:
    """As it stands in a cluster: with a shareID where a share was taken."""
    allocation = copy.deepcopy(allocation)
    for position, result in enumerate(allocation["devices"]["results"]):
        if "consumedCapacity" in result:
            result["shareID"] = f"11111111-0000-4000-8000-{number * 100 + position:012}"
    return allocation


def _renamed(claim: Json) -> Json:
    return {**claim, "metadata": _named(f"{claim['metadata']['name']}-again")}


def _named(name: str) -> Json:
    return {"name": name, "namespace": NAMESPACE, "uid": name}


def _parse(raw: Any, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(raw), type=kind)


# --- comparing ----------------------------------------------------------------------------------------------------------


def _plain(allocations: Iterable[Mapping[str, Any]]) -> list[Json]:
    """In order; of a share only that there is one."""
    return [
        {
            "results": list(_results(allocation)),
            "config": allocation["devices"].get("config", []),
            "nodeSelector": allocation.get("nodeSelector"),
        }
        for allocation in allocations
    ]


def _results(allocation: Mapping[str, Any]) -> Iterator[Json]:
    for result in allocation["devices"].get("results", ()):
        shared = "shareID" in result or "consumedCapacity" in result
        rest = {key: value for key, value in result.items() if key not in {"shareID", "consumedCapacity"}}
        yield {**rest, "shared": shared, "consumed": result.get("consumedCapacity", {})}


def _without_promises(allocation: Json) -> Json:
    """Without the configuration that a vendor of ours adds to tell its driver, and later decisions, what it promised."""
    config = [
        entry
        for entry in allocation["devices"].get("config", ())
        if entry.get("opaque", {}).get("driver") not in OURS  # no claim and no class of a cluster has one
    ]
    return {**allocation, "devices": {**allocation["devices"], "config": config}}


def _unordered(allocations: Iterable[Mapping[str, Any]]) -> Any:
    """Without the order of devices, nor what follows from it."""
    return [
        {
            "results": sorted(allocation["results"], key=_text),
            "config": sorted(allocation["config"], key=_text),
            "nodeSelector": _sorted_lists(allocation["nodeSelector"]),
        }
        for allocation in _plain(allocations)
    ]


def _sorted_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_lists(each) for key, each in value.items()}
    return sorted(map(_sorted_lists, value), key=_text) if isinstance(value, list) else value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _story(theirs: Answer, ours: Answer) -> str:
    return f"\n  upstream: {_reported(theirs)}\n  ours:     {_reported(ours)}"


def _reported(answer: Answer) -> str:
    return " ".join(filter(None, [answer.kind, answer.message, _text(list(answer.allocations)) * answer.solved]))
