"""`hami-dra defrag --execute`: carries a plan of moves out and stops at the first surprise.

What the plan holds is cordoned, and the node says so in the annotation `hami.io/defrag`: a run that is
killed leaves it, and the next one goes on from there (`released_in`). Then, for each move:

| step | surprise |
|---|---|
| the pod is evicted, once its budgets allow that | it is elsewhere, or they never allow it |
| the pod that replaces it, which is newer and has the same controller, is bound | to another node than planned |
| it is ready, and the old one is gone | it is not, for longer than `patience` |

Each run has a name, which is in the annotation, too: it gives back only what it holds itself, and stops
before a move if another run has taken that over, or it was uncordoned.
"""

import asyncio
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from controller.views.moves import MovePlan, PlannedMove
from hami_dra.api import kinds, names
from hami_dra.api.core import Node, NodeSpec, Pod
from hami_dra.api.meta import controller_of
from hami_dra.api.podstate import is_bound, is_live, is_ready
from hami_dra.api.printable import listed
from hami_dra.kube.documents import Document
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, NotFound, Protected, Unavailable
from hami_dra.kube.salvage import identity
from hami_dra.vendors.registry import OWN_DRIVERS

_POLL: Final = 1.0
_NODE: Final = "node"
"""Entry of the annotation for the node as a whole; others are those of `hami.io/device-cordon`."""
_RUN: Final = "run:"
"""Before the name of the run that holds them, another entry: a run gives back only what it holds itself."""
_QUIET: Final = 10.0
"""Seconds of waiting without a word about it."""
_RELEASE: Final = 30.0
"""Seconds for which giving back is tried again while it fails for all nodes."""
_NAMED: Final = 20
"""Nodes or devices that one line names."""


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
        self._poll = _POLL
        self._state, self._tell = "", math.inf
        self._run = f"{_RUN}{secrets.token_hex(4)}"
        self._asked: set[str] = set()
        self._holds: dict[str, frozenset[str]] = {}
        self.left = ""
        """What is still cordoned at the end, and why."""

    async def run(self) -> str:
        """Return why it stopped, or an empty text. However it ends, nothing is held afterwards, or `left` names it."""
        moves = self._plan.moves
        done = 0
        try:
            await self._hold(_held(self._plan))
            self._until = asyncio.get_running_loop().time() + self._patience
            while left := {*self._plan.held_devices} - await self._cordoned_devices():
                await self._wait(f"the driver does not cordon {min(left)}")
            for number, move in enumerate(moves, start=1):
                await self._move(move, f"{number}/{len(moves)}")
                done = number
            await self._check_held()
        except (Surprise, ClusterError) as surprise:
            lost = await self._lost()
            because = f" ({lost})" if lost and lost != str(surprise) else ""
            return f"{surprise}{because}; {done} of {len(moves)} moves are done"
        finally:
            await self._release()
        return ""

    # -- one move ----------------------------------------------------------------------------------

    async def _move(self, move: PlannedMove, number: str) -> None:
        namespace, _, name = move.pod.partition("/")
        self._until = asyncio.get_running_loop().time() + self._patience
        await self._check_held()
        pod, old = await self._evicted(namespace, name, move.from_node)
        owner = controller_of(pod)
        self._say(f"{number} pod {pod.key} is evicted from {pod.spec.node_name}")
        while True:
            pods = await self._pods(namespace)
            new = [
                each for each in pods if each.metadata.uid not in old and _counts(each) and controller_of(each) == owner
            ]
            bound = [each for each in new if each.spec.node_name]
            if len(new) > 1:
                raise Surprise(f"{len(new)} pods replace pod {move.pod}: its workload grows")
            if bound and bound[0].spec.node_name != move.to_node:
                raise Surprise(f"pod {bound[0].key} went to {bound[0].spec.node_name}, and not to {move.to_node}")
            # until it is gone it holds its devices, which the next pod may need
            leaves = any(each.metadata.uid == pod.metadata.uid and is_bound(each) for each in pods)
            if bound and _has_arrived(bound[0]) and not leaves:
                self._say(f"{number} pod {bound[0].key} runs on {move.to_node}")
                return
            if leaves and (not new or _has_arrived(new[0])):
                await self._wait(f"pod {move.pod} is evicted, and still terminates")
            elif bound:
                await self._wait(f"pod {bound[0].key} is not ready")
            else:
                await self._wait(f"pod {new[0].key} is on no node" if new else f"no pod replaces pod {move.pod}")

    async def _evicted(self, namespace: str, name: str, node: str) -> tuple[Pod, frozenset[str]]:
        """Evict the pod as soon as its budgets allow it. Returns it, and the UIDs of the pods that do not replace it."""
        pod, old = await self._running(namespace, name, node)
        while True:
            try:
                await self._cluster.evict(name, namespace, uid=pod.metadata.uid)
            except Protected as error:
                await self._wait(f"pod {pod.key} cannot be evicted: {error}")
            except Unavailable as error:  # it may be evicted: pods that are new from now on may replace it
                await self._wait(f"no clear answer to the eviction of pod {pod.key}: {error}")
                if pod.metadata.uid not in {each.metadata.uid for each in await self._pods(namespace) if is_live(each)}:
                    return pod, old
            except (NotFound, Conflict):
                raise Surprise(f"pod {pod.key} is gone, without us") from None
            else:
                return pod, old
            again, old = await self._running(namespace, name, node)
            if again.metadata.uid != pod.metadata.uid:
                raise Surprise(f"pod {pod.key} is gone, without us")

    async def _running(self, namespace: str, name: str, node: str) -> tuple[Pod, frozenset[str]]:
        """Return the pod to be moved, and the UIDs of all pods of its namespace."""
        pods = await self._pods(namespace)
        found = next((each for each in pods if each.metadata.name == name and is_live(each)), None)
        if found is None or found.spec.node_name != node:
            raise Surprise(f"pod {namespace}/{name} does not run on {node} any more")
        if not controller_of(found):
            raise Surprise(f"pod {namespace}/{name} has no controller any more that would create it again")
        return found, frozenset(each.metadata.uid for each in pods)

    async def _wait(self, state: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            raise Surprise(f"{state} for {self._patience:g} s")
        if state != self._state:
            self._state, self._tell = state, now + _QUIET
        elif now >= self._tell:
            self._say(f"waiting: {state}")
            self._tell = math.inf
        await asyncio.sleep(self._poll)

    async def _pods(self, namespace: str) -> Sequence[Pod]:
        """Return the pods of the namespace, when the API server answers. Takes a tenth of the time at most."""
        while True:
            began = time.monotonic()
            try:
                found = (await self._cluster.list(kinds.POD, namespace=namespace)).items
            except Unavailable as error:
                await self._wait(str(error))
            else:
                self._poll = max(_POLL, 10 * (time.monotonic() - began))
                return found

    # -- what is held ------------------------------------------------------------------------------

    async def _hold(self, wanted: Mapping[str, frozenset[str]]) -> None:
        """Cordon what is wanted, by node, and nothing else that a run has cordoned."""
        nodes = (await self._cluster.list(kinds.NODE)).items
        if gone := {*wanted} - {each.metadata.name for each in nodes}:
            raise Surprise(f"node {min(gone)} is gone")
        for node in nodes:
            await self._change(node, wanted.get(node.metadata.name, frozenset()))

    async def _change(self, node: Node, wanted: frozenset[str]) -> None:
        """Cordon of the node what is wanted, and nothing else that a run has cordoned."""
        name = node.metadata.name
        while True:
            before = held_by(node)
            after = wanted - (_cordoned(node) - before)  # what an operator has cordoned stays so
            if not before and not after:
                return
            if after:  # also if no answer comes
                self._asked.add(name)
            try:
                await self._cluster.patch(kinds.NODE, name, _patch(node, before, after, self._run))
            except NotFound:
                if after:
                    raise Surprise(f"node {name} is gone") from None
                return
            except Conflict:
                node = await self._cluster.get(kinds.NODE, name)
                continue
            what = "node" if _NODE in before | after else f"devices {listed(sorted(before | after), _NAMED)} of node"
            if after:
                self._holds[name] = after
            self._say(f"{what} {name}: {'cordoned until all moves are done' if after else 'cordoned no longer'}")
            return

    async def _check_held(self) -> None:
        if lost := await self._lost():
            raise Surprise(lost)

    async def _lost(self) -> str:
        """Return what of that which was cordoned is not so any more, and why; or an empty text."""
        for name, held in self._holds.items():
            try:
                node = await self._cluster.get(kinds.NODE, name)
            except NotFound:
                return f"node {name} is gone"
            except ClusterError:
                continue  # what follows says whether the server answers
            if self._run not in _entries(node, names.DEFRAG):
                return f"another run of defrag --execute has taken over what is cordoned of {name}"
            if not held <= _cordoned(node):
                return f"node {name} was uncordoned"
        return ""

    async def _release(self) -> None:
        """Give back what this run has cordoned, node by node, whatever fails; `left` names the rest."""
        clock = asyncio.get_running_loop().time
        until = clock() + _RELEASE
        left = {*self._asked}
        problem = ""
        try:
            while left and clock() < until:
                for name in sorted(left):
                    try:
                        async with asyncio.timeout(_RELEASE):
                            await self._give_back(name)
                    except (ClusterError, TimeoutError) as error:
                        if not problem:
                            self._say(f"node {name}: still cordoned, trying again: {str(error) or 'no answer'}")
                        problem = str(error) or "no answer"
                    else:
                        left.discard(name)
                        until = clock() + _RELEASE
                    if clock() >= until:
                        break
                if left:
                    await asyncio.sleep(_POLL)
        finally:
            if left:
                self.left = f"still cordoned: {listed(sorted(left), _NAMED)} ({problem or 'interrupted again'})"

    async def _give_back(self, name: str) -> None:
        try:
            node = await self._cluster.get(kinds.NODE, name)
        except NotFound:
            return
        if self._run in _entries(node, names.DEFRAG):
            await self._change(node, frozenset())

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
        node = _readable(document.raw) if is_node else Node()
        if held := held_by(node):
            nodes.append(node.metadata.name)
            patch = _patch(node, held, frozenset(), "")
            metadata = {**document.raw["metadata"]}
            metadata["annotations"] = _without_none(metadata["annotations"] | patch["metadata"]["annotations"])
            spec = _without_none((document.raw.get("spec") or {}) | patch["spec"])
            found.append(replace(document, raw=document.raw | {"metadata": metadata, "spec": spec}))
        else:
            found.append(document)
    return found, nodes


def held_by(node: Node) -> frozenset[str]:
    """Return what a run of defrag holds of the node."""
    return frozenset(each for each in _entries(node, names.DEFRAG) if not each.startswith(_RUN))


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


def _cordoned(node: Node) -> frozenset[str]:
    return _entries(node, names.DEVICE_CORDON) | ({_NODE} if node.spec.unschedulable else set())


def _patch(node: Node, before: frozenset[str], after: frozenset[str], run: str) -> dict[str, Any]:
    devices = (_entries(node, names.DEVICE_CORDON) - before) | (after - {_NODE})
    values = {names.DEFRAG: after | {run} if after else after, names.DEVICE_CORDON: devices}
    annotations = {name: ",".join(sorted(each)) or None for name, each in values.items()}
    # also if it was held before: it may have been uncordoned since
    spec = {"unschedulable": _NODE in after or None} if _NODE in before | after else {}
    return {"metadata": {"annotations": annotations, "resourceVersion": node.metadata.resource_version}, "spec": spec}


def _readable(raw: Mapping[str, Any]) -> Node:
    """Return what can be read of a node; what cannot is reported by those who read all of it."""
    spec = raw.get("spec")
    is_cordoned = isinstance(spec, dict) and spec.get("unschedulable") is True
    return Node(metadata=identity(raw).metadata, spec=NodeSpec(unschedulable=is_cordoned))


def _entries(node: Node, annotation: str) -> frozenset[str]:
    text = node.metadata.annotations.get(annotation, "")
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _counts(pod: Pod) -> bool:
    """Return whether it may replace another one: also a pod of a Job that has done its work by now."""
    return is_live(pod) or pod.status.phase == "Succeeded"


def _has_arrived(pod: Pod) -> bool:
    return pod.status.phase == "Succeeded" or is_ready(pod)
