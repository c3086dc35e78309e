"""`hami-dra defrag --execute`: carries a plan of moves out and stops at the first surprise.

What the plan holds is cordoned, and the node says so in the annotation `hami.io/defrag`: a run that is
killed leaves it, and the next one goes on from there (`released_in`). Then, for each move:

| step | surprise |
|---|---|
| the pod is evicted, once its budgets allow that | it is elsewhere, or they never allow it |
| the pod that replaces it, which is newer and has the same controller, is bound | to another node than planned |
| it is ready | it is not, for longer than `patience` |
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from controller.views.moves import MovePlan, PlannedMove
from hami_dra.api import kinds, names
from hami_dra.api.core import Node, Pod
from hami_dra.api.podstate import is_live
from hami_dra.kube.documents import Document
from hami_dra.kube.protocol import Cluster, Conflict, NotFound, Protected
from hami_dra.vendors.registry import OWN_DRIVERS

_POLL: Final = 1.0
_NODE: Final = "node"
"""Entry of the annotation for the node as a whole; others are those of `hami.io/device-cordon`."""


class Surprise(Exception):
    """The plan cannot be carried out any further; the message says why."""


class Execution:
    """`say`: prints a line. `patience`: seconds that a move may take."""

    def __init__(self, cluster: Cluster, plan: MovePlan, say: Callable[[str], None], *, patience: float) -> None:
        self._cluster = cluster
        self._plan = plan
        self._say = say
        self._patience = patience
        self._until = 0.0

    async def run(self) -> str:
        """Return why it stopped, or an empty text. Nothing is held afterwards, however it ends. Raises ClusterError."""
        moves = self._plan.moves
        done = 0
        try:
            await self._hold(_held(self._plan))
            await self._until_cordoned()
            for number, move in enumerate(moves, start=1):
                await self._move(move, f"{number}/{len(moves)}")
                done = number
        except Surprise as surprise:
            return f"{surprise}; {done} of {len(moves)} moves are done"
        finally:
            await self._hold({})
        return ""

    # -- one move ----------------------------------------------------------------------------------

    async def _move(self, move: PlannedMove, number: str) -> None:
        namespace, _, name = move.pod.partition("/")
        self._until = asyncio.get_running_loop().time() + self._patience
        known = await self._pods(namespace)
        pod = next((each for each in known if each.metadata.name == name and is_live(each)), None)
        if pod is None or pod.spec.node_name != move.from_node:
            raise Surprise(f"pod {move.pod} does not run on {move.from_node} any more")
        await self._evict(pod, number)
        old = {each.metadata.uid for each in known}
        owner = _controller(pod)
        while True:
            new = [
                each
                for each in await self._pods(namespace)
                if each.metadata.uid not in old and is_live(each) and _controller(each) == owner
            ]
            bound = [each for each in new if each.spec.node_name]
            if len(new) > 1:
                raise Surprise(f"{len(new)} pods replace pod {move.pod}: its workload grows")
            if bound and bound[0].spec.node_name != move.to_node:
                raise Surprise(f"pod {bound[0].key} went to {bound[0].spec.node_name}, and not to {move.to_node}")
            if bound and _is_ready(bound[0]):
                self._say(f"{number} pod {bound[0].key} runs on {move.to_node}")
                return
            if bound:
                await self._wait(f"pod {bound[0].key} is not ready")
            else:
                await self._wait(f"pod {new[0].key} is on no node" if new else f"no pod replaces pod {move.pod}")

    async def _evict(self, pod: Pod, number: str) -> None:
        while True:
            try:
                await self._cluster.evict(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
            except Protected as error:
                await self._wait(f"pod {pod.key} cannot be evicted: {error}")
                continue
            except (NotFound, Conflict):
                raise Surprise(f"pod {pod.key} is gone, without us") from None
            self._say(f"{number} pod {pod.key} is evicted from {pod.spec.node_name}")
            return

    async def _wait(self, state: str) -> None:
        if asyncio.get_running_loop().time() >= self._until:
            raise Surprise(f"{state} for {self._patience:g} s")
        await asyncio.sleep(_POLL)

    async def _pods(self, namespace: str) -> Sequence[Pod]:
        return (await self._cluster.list(kinds.POD, namespace=namespace)).items

    # -- what is held ------------------------------------------------------------------------------

    async def _hold(self, wanted: Mapping[str, frozenset[str]]) -> None:
        """Cordon what is wanted, by node, and nothing else that a run has cordoned."""
        for node in (await self._cluster.list(kinds.NODE)).items:
            before = held_by(node)
            after = wanted.get(node.metadata.name, frozenset()) - _held_by_others(node, before)
            if before != after:
                await self._cluster.patch(kinds.NODE, node.metadata.name, _patch(node, before, after))
                what = "node" if _NODE in before | after else f"devices {', '.join(sorted(before | after))}"
                state = "cordoned until all moves are done" if after else "cordoned no longer"
                self._say(f"{what} {node.metadata.name}: {state}")

    async def _until_cordoned(self) -> None:
        """Wait until the drivers have published that devices are cordoned."""
        self._until = asyncio.get_running_loop().time() + self._patience
        while left := {*self._plan.held_devices} - await self._cordoned_devices():
            await self._wait(f"the driver does not cordon {min(left)}")

    async def _cordoned_devices(self) -> set[str]:
        return {
            f"{each.spec.driver}/{each.spec.pool.name}/{device.name}"
            for each in (await self._cluster.list(kinds.RESOURCE_SLICE)).items
            for device in each.spec.devices
            if any(taint.key == names.CORDON_TAINT for taint in device.taints)
        }


def released_in(documents: Iterable[Document]) -> tuple[list[Document], list[str]]:
    """Return the documents without what earlier runs hold, and the nodes where they hold something."""
    found, nodes = [], []
    for document in documents:
        is_node = document.raw.get("kind") == kinds.NODE.name
        node = msgspec.convert(document.raw, Node) if is_node else Node()
        if held := held_by(node):
            nodes.append(node.metadata.name)
            patch = _patch(node, held, frozenset())
            metadata = {**document.raw["metadata"]}
            metadata["annotations"] = _without_none(metadata["annotations"] | patch["metadata"]["annotations"])
            spec = _without_none(document.raw.get("spec", {}) | patch["spec"])
            found.append(replace(document, raw=document.raw | {"metadata": metadata, "spec": spec}))
        else:
            found.append(document)
    return found, nodes


def held_by(node: Node) -> frozenset[str]:
    """Return what a run of defrag holds of the node."""
    return _entries(node, names.DEFRAG)


def unholdable(plan: MovePlan) -> str:
    """Return the first device of the plan that no annotation cordons, or an empty text."""
    return next((each for each in plan.held_devices if each.partition("/")[0] not in OWN_DRIVERS), "")


def _held(plan: MovePlan) -> dict[str, frozenset[str]]:
    """Return by node what the plan holds: `{"n1": {"node"}, "n2": {"0", "3"}}`."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for device in plan.held_devices:
        _, node, name = device.split("/")
        found[node].add(name.rpartition("-")[2])
    return {node: frozenset(each) for node, each in found.items()} | dict.fromkeys(plan.held_nodes, frozenset({_NODE}))


def _held_by_others(node: Node, before: frozenset[str]) -> frozenset[str]:
    """Return what an operator has cordoned: it stays so."""
    found = _entries(node, names.DEVICE_CORDON) | ({_NODE} if node.spec.unschedulable else set())
    return found - before


def _patch(node: Node, before: frozenset[str], after: frozenset[str]) -> dict[str, Any]:
    devices = (_entries(node, names.DEVICE_CORDON) - before) | (after - {_NODE})
    values = {names.DEFRAG: after, names.DEVICE_CORDON: devices}
    annotations = {name: ",".join(sorted(each)) or None for name, each in values.items()}
    spec = {"unschedulable": _NODE in after or None} if _NODE in before ^ after else {}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def _entries(node: Node, annotation: str) -> frozenset[str]:
    text = node.metadata.annotations.get(annotation, "")
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _controller(pod: Pod) -> str:
    """Return the UID of the controller that creates the pod again."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def _is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
