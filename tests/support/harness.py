"""A small cluster with a controller on it, in virtual time: what the tests of `controller.reconcile` play on.

    async def story(scene): ...
    play(story, nodes=2)

Placement itself is not the subject here: `first_fit` stands in for `decide`.
"""

import asyncio
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from controller.decide import ClaimAllocation, Decision, Options, SchedulingRequest, Score, Unschedulable
from controller.decide.company import Company
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CODES
from controller.reconcile.controller import Controller
from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_live
from hami_dra.api.quantity import Quantity
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Cluster
from hami_dra.vendors import device_codes
from tests.support.assumed import held_by
from tests.support.controller_settings import controller_settings
from tests.support.steered_cluster import SteeredCluster
from tests.support.virtual_time import VirtualClock, run

DRIVER = "gpu.example.com"
FOREIGN = "other.example.com"
SPACE = "default"
GIB = 2**30


# --- objects -----------------------------------------------------------------------------------------------------------


def node(name: str, *, cpu: str = "8", ready: str = "True", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def gpu_slice(
    node_name: str, *, cards: int = 2, memory: int = 16, driver: str = DRIVER, shared: bool = True, fenced: bool = False
) -> dict[str, Any]:
    devices = []
    for index in range(cards):
        device: dict[str, Any] = {"name": f"gpu-{index}", "capacity": {"memory": {"value": f"{memory}Gi"}}}
        if shared:
            device["allowMultipleAllocations"] = True
        if fenced:
            device["taints"] = [{"key": names.FENCE_TAINT, "effect": "NoSchedule"}]
        devices.append(device)
    return {
        "metadata": {"name": f"{node_name}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def device_class(name: str, driver: str = DRIVER) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": name}, "spec": {"selectors": [selector]}}


def claim_spec(memory: int = 4, *, device_class: str = "gpu", count: int = 1) -> dict[str, Any]:
    request = {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": count,
        "capacity": {"requests": {"memory": f"{memory}Gi"}},
    }
    return {"devices": {"requests": [{"name": "card", "exactly": request}]}}


def claim(name: str, memory: int = 4, **options: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": claim_spec(memory, **options)}


def template(name: str, memory: int = 4, **options: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"spec": claim_spec(memory, **options)}}


def pod(
    name: str,
    *,
    templates: Iterable[str] = (),
    claims: Iterable[str] = (),
    cpu: str = "100m",
    gated: bool = False,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    resource_claims = [{"name": f"t{i}", "resourceClaimTemplateName": template} for i, template in enumerate(templates)]
    resource_claims += [{"name": f"c{i}", "resourceClaimName": claim} for i, claim in enumerate(claims)]
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": SPACE, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
            "resourceClaims": resource_claims,
            **spec,
        },
    }
    if gated:
        body["spec"].setdefault("schedulingGates", []).append({"name": names.GATE})
    return body


# --- a stand-in for decide -----------------------------------------------------------------------------------------------


def first_fit(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options
) -> Decision | Unschedulable:
    """First node by name, first device with enough memory. Requests of `claim_spec` only."""
    order = sorted(range(inventory.nodes.size), key=lambda row: inventory.nodes.names[row])
    fit = inventory.rules.node_fit(scheduling_request.pod)
    fits = fit.mask
    if scheduling_request.required_node:
        fits = fits | (np.arange(fits.size) == inventory.nodes.index_of(scheduling_request.required_node))
    refused: dict[str, dict[str, int]] = {}
    found: list[tuple[str, tuple[ClaimAllocation, ...]]] = []
    for row in order:
        name = inventory.nodes.names[row]
        if not name:
            continue
        if scheduling_request.required_node not in ("", name):
            refused[name] = {catalogue.NODE_AFFINITY: 1}
        elif name in scheduling_request.refused_nodes:
            refused[name] = {catalogue.NODE_REFUSED: 1}
        elif not fits[row]:
            refused[name] = {CODES[fit.codes[row]]: 1}
        else:
            allocations = _allocate_on(inventory, scheduling_request, options, name)
            if allocations is None:
                refused[name] = {device_codes.CARD_INSUFFICIENT_MEMORY: 1}
            else:
                found.append((name, allocations))
    if not found:
        reasons = Counter(code for codes in refused.values() for code in codes)
        return Unschedulable(
            f"no available node, {len(refused)} nodes do not meet", reasons=dict(reasons), nodes=refused
        )
    company = Company(inventory, scheduling_request)
    rows = np.array([inventory.nodes.index_of(name) for name, _ in found], dtype=np.int64)
    best = inventory.nodes.names[next(company.tiers(rows))[0]]
    wanted = (
        scheduling_request.preferred_node
        if any(name == scheduling_request.preferred_node for name, _ in found)
        else best
    )
    node, allocations = next(entry for entry in found if entry[0] == wanted)
    fitting = tuple((name, 0.0) for name, _ in found)
    left_out = company.left_out(inventory.nodes.index_of(node))
    return Decision(node, allocations, Score(0.0), fitting, len(found), len(refused), left_out)


def _allocate_on(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options, node: str
) -> tuple[ClaimAllocation, ...] | None:
    taken: Counter[str] = Counter()
    result = []
    for entry in scheduling_request.claims:
        allocation = entry.claim.status.allocation
        if allocation is not None:
            selector = allocation.node_selector
            if selector and selector.node_selector_terms[0].match_fields[0].values != (node,):
                return None
            continue
        results = []
        for request in entry.claim.spec.devices.requests:
            exact = request.exactly
            assert exact is not None
            chosen = _devices(inventory, exact, options, node, taken)
            if chosen is None:
                return None
            if chosen == "foreign":
                continue
            results += [{"request": request.name, **device} for device in chosen]
        if results:
            pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            body = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [pin]}}
            result.append(ClaimAllocation(entry.pod_claim_name, entry.claim, body, held_by(body)))
    return tuple(result)


def _devices(inventory: Inventory, exact: Any, options: Options, node: str, taken: Counter[str]) -> Any:
    selectors = inventory.classes[exact.device_class_name].spec.selectors
    chosen: list[dict[str, Any]] = []
    foreign = False
    wanted = Quantity.parse(str(exact.capacity.requests["memory"])).value()
    for pool in inventory.pools_on(node):
        for device in pool.devices:
            mask = [inventory.verdicts.matching(s.cel.expression)[device.row] for s in selectors if s.cel]
            if not all(mask):
                continue
            if options.managed is not None and device.id.driver not in options.managed:
                foreign = True
                continue
            free = (
                device.totals["memory"] - inventory.usage.consumed(device.id).get("memory", 0) - taken[str(device.id)]
            )
            if inventory.usage.in_use(device.id) or free < wanted:
                continue
            taken[str(device.id)] += wanted if device.shared else device.totals["memory"]
            body = {"driver": device.id.driver, "pool": device.id.pool, "device": device.id.device}
            if device.shared:
                body["consumedCapacity"] = {"memory": str(Quantity.from_int(wanted))}
            chosen.append(body)
            if len(chosen) == exact.count:
                return chosen
    return "foreign" if foreign and not chosen else None


# --- the scene -----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "managed": frozenset({DRIVER}),
    "own_drivers": frozenset({DRIVER}),
    "leader_election": False,
    "lease": Timings(),
    "namespace": "hami-dra-system",
}


class Harness:
    """`wrap` stands between the controller and the cluster: the place to kill it or to lie to it."""

    def __init__(self, cluster: SteeredCluster, clock: VirtualClock, *, wrap: Callable[[Cluster], Cluster]) -> None:
        self.cluster = cluster
        self.clock = clock
        self.plane: EmbeddedControlPlane
        self.controllers: list[asyncio.Task[None]] = []
        self.controller: Controller
        self._wrap = wrap

    # --- actors ----------------------------------------------------------------------------------------------------------

    def start(self, *, through: Cluster | None = None, decide: Any = first_fit, **changes: Any) -> asyncio.Task[None]:
        """One more controller; the newest is `controller`."""
        conversion = changes.pop("conversion", None)
        helpers = changes.pop("helpers", ())
        elector_clock = changes.pop("elector_clock", self.clock.monotonic)
        settings = controller_settings(**{**SETTINGS, **changes})
        self.controller = Controller(
            through or self._wrap(self.cluster),
            settings,
            clock=self.clock,
            elector_clock=elector_clock,
            decide=decide,
            conversion=conversion,
            helpers=helpers,
        )
        task = asyncio.create_task(self.controller.run())
        self.controllers.append(task)
        return task

    async def stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        self.controllers.remove(task)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 120.0, step: float = 0.05) -> None:
        """Fails when it has not come true after `seconds` of the scene's time."""
        end = self.clock.monotonic() + seconds
        while not await condition():
            for task in self.controllers:
                if task.done():
                    task.result()
            if self.clock.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s: {getattr(condition, '__name__', condition)}")
            await asyncio.sleep(step)

    # --- objects ---------------------------------------------------------------------------------------------------------

    async def add(self, kind: kinds.Kind[Any], *bodies: dict[str, Any]) -> None:
        for body in bodies:
            await self.cluster.create(kind, body)

    async def add_node(self, name: str, **options: Any) -> None:
        keys = ("cpu", "ready", "labels")
        await self.add(kinds.NODE, node(name, **{key: options.pop(key) for key in keys if key in options}))
        await self.add(kinds.RESOURCE_SLICE, gpu_slice(name, **options))

    async def pod(self, name: str) -> Pod:
        return await self.cluster.get(kinds.POD, name, SPACE)

    async def claim(self, name: str) -> ResourceClaim:
        return await self.cluster.get(kinds.RESOURCE_CLAIM, name, SPACE)

    async def pods(self) -> list[Pod]:
        return [
            pod for pod in (await self.cluster.list(kinds.POD)).items if names.PROBE_LABEL not in pod.metadata.labels
        ]

    async def claims(self) -> list[ResourceClaim]:
        return list((await self.cluster.list(kinds.RESOURCE_CLAIM)).items)

    async def claims_of(self, pod_name: str) -> list[ResourceClaim]:
        found = await self.pod(pod_name)
        by_status = {entry.name: entry.resource_claim_name for entry in found.status.resource_claim_statuses}
        keys = [entry.resource_claim_name or by_status.get(entry.name) for entry in found.spec.resource_claims]
        return [await self.claim(key) for key in keys if key]

    async def bound(self, *pod_names: str, seconds: float = 120.0) -> None:
        async def all_bound() -> bool:
            pods = {pod.metadata.name: pod for pod in await self.pods()}
            return all(pods[name].spec.node_name for name in pod_names)

        await self.until(all_bound, seconds)

    async def node_of(self, pod_name: str) -> str:
        return (await self.pod(pod_name)).spec.node_name

    async def delete_pod(self, name: str) -> None:
        await self.cluster.delete(kinds.POD, name, namespace=SPACE)

    async def finish_pod(self, name: str) -> None:
        """Its containers run and end; the pod itself is kept, as those of a Job are."""

        async def running() -> bool:
            return (await self.pod(name)).status.phase == "Running"

        await self.until(running)
        patch = {"status": {"phase": "Succeeded"}}
        await self.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")

    async def patch_node(self, name: str, patch: dict[str, Any], *, status: bool = False) -> None:
        await self.cluster.patch(kinds.NODE, name, patch, subresource="status" if status else "")

    async def allocate_as_somebody_else(
        self,
        claim_name: str,
        node_name: str,
        *,
        device: str = "gpu-0",
        memory: int = 4,
        pod: str = "",
        driver: str = DRIVER,
        allocator: str = "",
    ) -> None:
        """What a scheduler does that ignores the fence. `allocator`: an installation of hami-dra that did it."""
        result = {
            "request": "card",
            "driver": driver,
            "pool": node_name,
            "device": device,
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"memory": f"{memory}Gi"},
        }
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
        allocation = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [pin]},
            "allocationTimestamp": self.clock.wall().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status: dict[str, Any] = {"allocation": with_allocator(allocation, allocator) if allocator else allocation}
        if pod:
            status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": (await self.pod(pod)).metadata.uid}]
        await self.cluster.patch(
            kinds.RESOURCE_CLAIM, claim_name, {"status": status}, namespace=SPACE, subresource="status"
        )

    async def events(self, reason: str = "") -> list[dict[str, Any]]:
        found = await self.cluster.list(kinds.EVENT)
        raws = [await self.cluster.get_raw(kinds.EVENT, e.metadata.name, e.metadata.namespace) for e in found.items]
        return [raw for raw in raws if reason in ("", raw["reason"])]

    def metric(self, name: str, **labels: str) -> float:
        return self.controller.metrics.registry.get_sample_value(name, labels or None) or 0.0

    # --- what must always hold ---------------------------------------------------------------------------------------------

    async def check_never_overcommitted(self) -> None:
        """From the cluster's own objects, not from anybody's ledger."""
        totals = {
            (item.spec.driver, item.spec.pool.name, device.name): device
            for item in (await self.cluster.list(kinds.RESOURCE_SLICE)).items
            for device in item.spec.devices
        }
        memory: Counter[tuple[str, str, str]] = Counter()
        exclusive: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        shared: Counter[tuple[str, str, str]] = Counter()
        for claim in await self.claims():
            if claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                key = (result.driver, result.pool, result.device)
                if result.share_id is None:
                    exclusive[key].append(claim.key)
                else:
                    shared[key] += 1
                    memory[key] += Quantity.parse(str(result.consumed_capacity["memory"])).value()
        for key, holders in exclusive.items():
            assert len(holders) == 1, f"{key} is held by {holders}"
            assert not shared[key], f"{key} is shared and exclusive at once"
        for key, used in memory.items():
            total = Quantity.parse(str(totals[key].capacity["memory"].value)).value()
            assert used <= total, f"{key}: {used / GIB} of {total / GIB} GiB"

    async def check_bound_pods_have_their_claims(self) -> None:
        for found in await self.pods():
            if not found.spec.node_name or not is_live(found):
                continue
            for held in await self.claims_of(found.metadata.name):
                allocation = held.status.allocation
                assert allocation is not None, f"{found.key} is bound without {held.key}"
                selector = allocation.node_selector
                assert selector is not None
                assert selector.node_selector_terms[0].match_fields[0].values == (found.spec.node_name,)
                assert found.metadata.uid in {consumer.uid for consumer in held.status.reserved_for}

    async def check_nothing_leaked(self) -> None:
        """Every allocation is held by a pod that is there."""
        uids = {found.metadata.uid for found in await self.pods()}
        for held in await self.claims():
            if held.status.allocation is not None:
                assert held.status.reserved_for, f"{held.key} is allocated to nobody"
                assert {consumer.uid for consumer in held.status.reserved_for} <= uids, f"{held.key} outlived its pod"


Story = Callable[[Harness], Awaitable[None]]


def play(
    story: Story,
    *,
    nodes: int = 2,
    version: Any = None,
    served: Any = None,
    scheduler: bool = True,
    controller: bool = True,
    wrap: Callable[[Cluster], Cluster] = lambda cluster: cluster,
    limit: float = math.inf,
    graceful: bool = False,
    node_options: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Run the story on a fresh scene: `nodes` nodes n0, n1, ... with two cards of 16 GiB each, and a class `gpu`."""

    async def scenario() -> None:
        clock = VirtualClock()
        options = {key: value for key, value in (("version", version), ("served", served)) if value is not None}
        cluster = SteeredCluster(**options, now=clock.wall, graceful=graceful)
        harness = Harness(cluster, clock, wrap=wrap)
        async with AsyncExitStack() as stack:
            harness.plane = await stack.enter_async_context(EmbeddedControlPlane(cluster, scheduler=scheduler))
            await harness.add(kinds.DEVICE_CLASS, device_class("gpu"), device_class("foreign", FOREIGN))
            for number in range(nodes):
                await harness.add_node(f"n{number}", **(node_options or {}))
            try:
                if controller:
                    harness.start(**settings)
                async with asyncio.timeout(None if limit == math.inf else limit):
                    await story(harness)
                for task in harness.controllers:
                    if task.done():
                        task.result()
            finally:
                for task in harness.controllers:
                    task.cancel()
                if harness.controllers:
                    await asyncio.wait(harness.controllers)
                await cluster.close()

    run(scenario())
