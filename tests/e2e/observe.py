"""What the end-to-end tests look at: placements and over-commitment, read from the API server and nothing else.

Nothing of the product is imported here on purpose: a wrong ledger must not be able to agree with itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

from hack.controlplane.api import Api, ApiError, NotReached

Key = tuple[str, str, str]
"""Driver, pool, device."""

SUFFIXES = {
    "": 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "m": Decimal("0.001"),
}
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_DEFAULT_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def amount(text: Any) -> int:
    """A quantity rounded up, as Kubernetes' Value()."""
    text = str(text)
    digits = text.rstrip("KMGTikm")
    value = Decimal(digits) * SUFFIXES[text[len(digits) :]]
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


@dataclass
class Placement:
    """Where one pod is and what it holds."""

    pod: str
    node: str
    devices: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def allocations(claims: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(claim, result) for every allocated device that counts as used."""
    return [
        (claim, result)
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        if not result.get("adminAccess")
    ]


def _key(result: dict[str, Any]) -> Key:
    return (result["driver"], result["pool"], result["device"])


def _newest_devices(slices: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Of the newest generation of each pool."""
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        pool = (item["spec"]["driver"], item["spec"]["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), item["spec"]["pool"]["generation"])
    return {
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"]): device
        for item in slices
        if item["spec"]["pool"]["generation"] == newest[item["spec"]["driver"], item["spec"]["pool"]["name"]]
        for device in item["spec"].get("devices") or []
    }


def device_problems(key: Key, device: dict[str, Any] | None, results: list[dict[str, Any]]) -> list[str]:
    """What is wrong with all that is allocated of one device; empty when all is well."""
    name = "/".join(key)
    if device is None:
        return [f"{name}: allocated, but not published"] if results else []
    capacity = device.get("capacity", {})
    shared = [result for result in results if "shareID" in result]
    exclusive = len(results) - len(shared)
    problems = []
    used: Counter[str] = Counter()
    for result in shared:
        consumed = result.get("consumedCapacity", {})
        if missing := capacity.keys() - consumed.keys():
            problems.append(f"{name}: an allocation does not say how much {', '.join(sorted(missing))} it takes")
        for what, value in consumed.items():
            used[what] += amount(value)
    problems += [
        f"{name}: {what}: {total} of {amount(capacity[what]['value'])}"
        for what, total in used.items()
        if what in capacity and total > amount(capacity[what]["value"])
    ]
    if len({result["shareID"] for result in shared}) < len(shared):
        problems.append(f"{name}: a shareID twice")
    if exclusive and shared:
        problems.append(f"{name}: shared and exclusive at once")
    if exclusive > 1:
        problems.append(f"{name}: held by {exclusive} claims")
    return problems


def overcommitted(slices: list[dict[str, Any]], claims: list[dict[str, Any]]) -> list[str]:
    """One sentence for every device that more is allocated of than it has; empty when all is well."""
    devices = _newest_devices(slices)
    by_device: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for _, result in allocations(claims):
        by_device[_key(result)].append(result)
    return [
        problem for key, results in by_device.items() for problem in device_problems(key, devices.get(key), results)
    ]


def placements(pods: list[dict[str, Any]], claims: list[dict[str, Any]]) -> list[Placement]:
    """Of the bound pods, in order of their names."""
    by_pod: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for claim, result in allocations(claims):
        for consumer in claim["status"].get("reservedFor") or []:
            by_pod[consumer["uid"]].append(result)
    found = []
    for pod in sorted(pods, key=lambda each: each["metadata"]["name"]):
        node = pod["spec"].get("nodeName")
        if node:
            results = by_pod.get(pod["metadata"]["uid"], [])
            found.append(
                Placement(
                    pod["metadata"]["name"],
                    node,
                    [f"{result['pool']}/{result['device']}" for result in results],
                    [amount(result.get("consumedCapacity", {}).get("memory", 0)) for result in results],
                )
            )
    return found


def pattern(found: list[Placement]) -> str:
    """`2+2`, `2 | 2`, `1+1+1+1`, ...: pods per card of each node, most first; nodes in order of size."""
    nodes: dict[str, Counter[str]] = defaultdict(Counter)
    for placement in found:
        for device in placement.devices:
            nodes[placement.node][device] += 1
    parts = ["+".join(str(count) for count in sorted(cards.values(), reverse=True)) for cards in nodes.values()]
    return " | ".join(sorted(parts, key=lambda part: (-len(part), part)))


class Watcher:
    """Follows every claim of the cluster, event by event, and notes each moment at which a device was over-committed.

    The API server sends the events of a kind in the order in which they were written, so no state in between is missed.
    Slices are listed once: they must not change meanwhile.
    """

    def __init__(self, api: Api) -> None:
        self.problems: list[str] = []
        self.allocations_seen = 0
        self._api = api
        self._devices = _newest_devices(api.list(SLICES))
        self._claims: dict[str, dict[str, Any]] = {}
        self._on_device: dict[Key, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
        self._version = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="over-commit watcher", daemon=True)

    def __enter__(self) -> Self:
        self._relist()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when everything written before has been looked at."""
        self.catch_up()
        self._stopping.set()
        self._thread.join(timeout=10)

    def catch_up(self) -> None:
        """Until all that was written before this call has been looked at: a claim made now is seen after it."""
        marker = {"metadata": {"generateName": "marker-"}, "spec": {}}
        made = self._api.create(_DEFAULT_CLAIMS, marker)["metadata"]
        self._api.wait_for("the watcher to catch up", lambda: made["uid"] in self._claims)
        self._api.delete(f"{_DEFAULT_CLAIMS}/{made['name']}")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._api.watch(
                    CLAIMS, seconds=2, resourceVersion=self._version, allowWatchBookmarks="true"
                ):
                    self._take(event)
            except (ApiError, NotReached, Expired):
                self._stopping.wait(0.2)
                with contextlib.suppress(ApiError, NotReached):
                    self._relist()

    def _relist(self) -> None:
        answer = self._api.get(CLAIMS)
        for uid in list(self._claims):
            self._hold(uid, None)
        for claim in answer["items"]:
            self._hold(claim["metadata"]["uid"], claim)
        self._version = answer["metadata"]["resourceVersion"]
        self._check(self._on_device, "after a list")

    def _take(self, event: dict[str, Any]) -> None:
        item = event["object"]
        if event["type"] == "ERROR":
            raise Expired(str(item))
        if event["type"] != "BOOKMARK":
            touched = self._hold(item["metadata"]["uid"], None if event["type"] == "DELETED" else item)
            self._check(touched, f"claim {item['metadata']['namespace']}/{item['metadata']['name']}")
        self._version = item["metadata"]["resourceVersion"]

    def _hold(self, uid: str, claim: dict[str, Any] | None) -> set[Key]:
        """Counts the claim in place of what it was; returns the devices that it touches now."""
        if former := self._claims.pop(uid, None):
            for _, result in allocations([former]):
                self._on_device[_key(result)].pop(uid, None)
        touched = set()
        if claim is not None:
            self._claims[uid] = claim
            for _, result in allocations([claim]):
                touched.add(_key(result))
                self._on_device[_key(result)].setdefault(uid, []).append(result)
            if touched and not (former and allocations([former])):
                self.allocations_seen += 1
        return touched

    def _check(self, touched: Iterable[Key], when: str) -> None:
        for key in list(touched):
            results = [result for each in self._on_device[key].values() for result in each]
            self.problems += [f"{when}: {problem}" for problem in device_problems(key, self._devices.get(key), results)]


class Expired(Exception):
    """The watch cannot go on from where it was."""
