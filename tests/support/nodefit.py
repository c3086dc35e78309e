"""The node filter against kube-scheduler's own plugins (hack/oracle/nodefit), node by node.

A world is JSON: `nodes`, `objects` (other objects as the API server stores them, bound pods among them), `assumed`
({"pod", "node"}: decided on, not bound yet), and `pod`, which waits. Used by tests/conformance, tests/property,
hack/fuzz.py and hack/oracle/nodefit_differences.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from controller.inventory.inventory import Inventory
from controller.reasons.catalogue import CODES
from controller.reasons.catalogue import PLUGINS as PLUGIN_OF
from controller.rules.node_filters import NodeFit
from hami_dra.api.core import Pod
from hami_dra.api.kinds import BY_GVK, POD
from hami_dra.kube.decoding import read_object

Json = dict[str, Any]
Ask = Callable[[Json], Json]

VERSIONS: Final = ("1.37.1", "1.36.4")
PLUGINS: Final = (
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodeDeclaredFeatures",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
)
"""kube-scheduler's default filter plugins, less DynamicResources."""
PREFERENCES: Final = ("TaintToleration", "NodeAffinity", "PodTopologySpread", "InterPodAffinity", "ImageLocality")
"""kube-scheduler's score plugins that honour what a pod's author prefers."""
COMPARED: Final = PLUGINS
"""Plugins whose verdicts are compared. A node that others alone refuse may come out either way."""


class Disagreement(AssertionError):
    """Our verdict on some node is not kube-scheduler's; the message names nodes and plugins."""

    def __init__(self, differences: list[Difference]) -> None:
        self.differences = differences
        super().__init__("\n".join(map(str, differences)))


@dataclass(frozen=True)
class Difference:
    node: str
    plugin: str
    """The plugin at fault: ours where only we refuse the node, else the first of theirs."""
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.plugin}: node {self.node}: kube-scheduler: {self.theirs}; ours: {self.ours}"


def compare(world: Json, answer: Json, version: str, compared: Collection[str] = COMPARED) -> Counter[str]:
    """Return how often kube-scheduler blamed each plugin; ours agree. Raises Disagreement."""
    if found := _found(world, answer, version, compared):
        raise Disagreement(found)
    return Counter(answer["refused"].get(node["metadata"]["name"], "fits") for node in world["nodes"])


def differences(world: Json, ask: Ask, version: str, compared: Collection[str] = COMPARED) -> list[Difference]:
    """Return where verdicts differ; where none does, where scores do."""
    return _found(world, answer_to(world, ask), version, compared)


def _found(world: Json, answer: Json, version: str, compared: Collection[str]) -> list[Difference]:
    ours = verdicts(world, answer.get("leftOut", ()), version)
    return list(_differences(ours, answer, compared)) or list(_score_differences(world, answer, version))


def checker(version: str, compared: Collection[str] = COMPARED) -> Callable[[Json, Ask], Counter[str]]:
    """Return the comparison of one world with what the oracle of that version says of it."""

    def check(world: Json, ask: Ask) -> Counter[str]:
        return compare(world, answer_to(world, ask), version, compared)

    return check


def answer_to(world: Json, ask: Ask) -> Json:
    """Raises RuntimeError where the oracle cannot answer."""
    answer = ask({key: world[key] for key in ("nodes", "objects", "assumed", "pod") if key in world})
    if answer.get("error"):
        raise RuntimeError(f"the oracle cannot answer: {answer['error']}")
    return answer


def verdicts(world: Json, left_out: Collection[str] = (), version: str = VERSIONS[0]) -> dict[str, str]:
    """Return node → our plugin that refuses it, or an empty text where the pod fits.

    On the way, all readers of the filter must agree: the cached fit of the pod's shape, the sentences for users, and the
    fit of a pod that is counted on some node already.
    """
    inventory, pod = furnished(world, left_out, version)
    fit = inventory.rules.node_fit(pod)
    _check_shape(inventory, pod, fit)
    if fit.mask.any():
        inventory.assume_pod(pod, inventory.nodes.names[int(fit.mask.argmax())])
        assert inventory.rules.node_fit(pod).codes.tolist() == fit.codes.tolist(), "the pod counts against itself"
        inventory.forget_pod(pod.metadata.uid)
        _check_shape(inventory, pod, fit)
    found = {}
    for raw in world["nodes"]:
        name = raw["metadata"]["name"]
        row = inventory.nodes.index_of(name)
        code = CODES[fit.codes[row]]
        assert bool(fit.mask[row]) == (not code), name
        assert bool(inventory.rules.why_unfit(pod, fit, row)) == bool(code), f"the sentence for {name}"
        found[name] = PLUGIN_OF[code] if code else ""
    return found


def _check_shape(inventory: Inventory, pod: Pod, fit: NodeFit) -> None:
    shape = inventory.rules.shape_fit(pod)
    assert (shape is None) == (fit.refusal is not None)
    assert shape is None or shape.codes.tolist() == fit.codes.tolist(), "the fit of the pod's shape"


def furnished(world: Json, left_out: Collection[str] = (), version: str = VERSIONS[0]) -> tuple[Inventory, Pod]:
    """Return an inventory that was fed the world as reflectors do, and the pod that waits.

    `before` of the world comes first, and is judged, so that everything kept is brought up to date. `left_out`: names
    of assumed pods that count nowhere.
    """
    inventory = Inventory()
    inventory.set_version(*map(int, version.split(".")[:2]))
    feeds = _Feeds(inventory)
    waiting = _read_pod(world["pod"])
    inventory.pod_changed(None, waiting)
    for raw in world.get("before", ()):
        feeds.put(raw)
    if world.get("before"):
        inventory.rules.node_fit(waiting)
    now = [*world["nodes"], *world["objects"]]
    for raw in now:
        feeds.put(raw)
    feeds.remove_others(now)
    for each in world.get("assumed", ()):
        pod = _read_pod(each["pod"])
        inventory.pod_changed(None, pod)
        inventory.assume_pod(pod, each["node"])
        if pod.metadata.name in left_out:
            inventory.forget_pod(pod.metadata.uid)
    return inventory, waiting


class _Feeds:
    """Tells the inventory of objects, each time with what it heard before."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: dict[tuple[str, str, str], Any] = {}

    def put(self, raw: Json) -> None:
        kind = BY_GVK.get((raw["apiVersion"], raw["kind"]))
        if kind is None:
            return
        found, problem = read_object(kind, _bytes(raw))
        assert not problem, problem
        key = _key(raw)
        self._tell(key, self._known.get(key), found)
        self._known[key] = found

    def remove_others(self, kept: list[Json]) -> None:
        for key in self._known.keys() - set(map(_key, kept)):
            self._tell(key, self._known.pop(key), None)

    def _tell(self, key: tuple[str, str, str], old: Any, new: Any) -> None:
        inventory = self._inventory
        match key[0]:
            case "Node":
                inventory.node_changed(old, new)
            case "Pod":
                inventory.pod_changed(old, new)
            case "Namespace":
                inventory.namespace_changed(old, new)
            case "DeviceClass":
                inventory.class_changed(old, new)
            case storage:
                inventory.volumes.changed(storage, old, new)


def _score_differences(world: Json, answer: Json, version: str) -> Iterator[Difference]:
    """Compare the scores of the plugins that say something, on the nodes that fit."""
    theirs: dict[str, dict[str, int]] = answer.get("scores") or {}
    if answer.get("errored") or not theirs:
        return
    inventory, pod = furnished(world, answer.get("leftOut", ()), version)
    names = [each["metadata"]["name"] for each in world["nodes"] if each["metadata"]["name"] not in answer["refused"]]
    rows = np.array([inventory.nodes.index_of(name) for name in names], dtype=np.intp)
    preferences = inventory.rules.preferences(pod)
    scores = preferences.scores(rows).by_plugin if preferences is not None else {}
    for plugin in PREFERENCES:
        expected = [theirs.get(plugin, {}).get(name, 0) for name in names]
        mine = scores[plugin][rows].tolist() if plugin in scores else [0] * len(names)
        if plugin not in theirs and len(set(mine)) <= 1:
            continue  # an equal score for all nodes is no preference
        if plugin not in scores and len(set(expected)) <= 1:
            continue
        if preferences is None and plugin == "ImageLocality":
            continue  # images alone are none, either
        for name, score, found in zip(names, expected, mine, strict=True):
            if score != found:
                yield Difference(name, f"score of {plugin}", str(score), str(found))


def _key(raw: Json) -> tuple[str, str, str]:
    return raw["kind"], raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def _read_pod(raw: Json) -> Pod:
    found, problem = read_object(POD, _bytes(raw))
    assert not problem, problem
    return found


def _bytes(raw: Json) -> bytes:
    return json.dumps(raw).encode()


def _differences(ours: Mapping[str, str], answer: Json, compared: Collection[str]) -> Iterator[Difference]:
    for node, mine in ours.items():
        theirs = [answer["refused"][node], *answer["also"].get(node, ())] if node in answer["refused"] else []
        known = [plugin for plugin in theirs if plugin in compared]
        agree = mine in theirs or mine not in compared if mine else not known
        if not agree:
            reason = answer.get("reasons", {}).get(node, "")
            told = f"{', '.join(theirs)} ({reason})" if theirs else "fits"
            yield Difference(node, mine or known[0], told, mine or "fits")
