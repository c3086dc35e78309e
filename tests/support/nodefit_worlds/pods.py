"""Pods that run, pods that are assumed, and the pod that waits."""

from __future__ import annotations

from tests.support.nodefit_worlds.draws import HOST, IMAGES, NAMESPACES, ZONE, Draws, Json, labels_of
from tests.support.nodefit_worlds.storage import Storage
from tests.support.nodefit_worlds.terms import node_term, pod_term, spread_constraints, tolerations

_ADDRESSES = ("127.0.0.1", "10.0.0.1", "0.0.0.0", "::")


def existing_pod(draws: Draws, storage: Storage, number: int) -> Json:
    """Return a pod that is bound; some have ended, some are being deleted, some stand on a node that is gone."""
    pod = _pod(draws, f"e{number}", namespace=_namespace(draws))
    spec, status = pod["spec"], pod["status"]
    spec["nodeName"] = draws.one(draws.node_names) if draws.maybe(0.97) else "gone"
    status["phase"] = draws.one(["Running"] * 12 + ["Pending", "Succeeded", "Failed"])
    spec["containers"] = [_container(draws, "c", running=True)]
    if draws.has("resize"):
        _resized(draws, pod)
    if draws.has("symmetric") and draws.maybe(0.4):
        labels = pod["metadata"]["labels"]
        anti = {"requiredDuringSchedulingIgnoredDuringExecution": [pod_term(draws, labels, _near(draws))]}
        spec["affinity"] = {"podAntiAffinity": anti}
    if draws.has("symmetric", "soft") and draws.maybe(0.3):
        _soft_pod_affinity(draws, pod, required=draws.maybe(0.4))
    if draws.maybe(0.06):
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    if volumes := storage.volumes(pod, node=spec["nodeName"]):
        spec["volumes"] = volumes
    return pod


def assumed_pod(draws: Draws, storage: Storage, number: int) -> Json:
    """Return a pod that was decided on a moment ago, with wishes of the same kinds as the one that waits."""
    return _unbound(draws, storage, f"a{number}")


def waiting_pod(draws: Draws, storage: Storage) -> Json:
    return _unbound(draws, storage, "p")


def _unbound(draws: Draws, storage: Storage, name: str) -> Json:
    pod = _pod(draws, name, namespace="default" if draws.maybe(0.7) else _namespace(draws))
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    spec["containers"] = [_container(draws, "c")]
    if draws.has("resources", "resize"):
        _more_resources(draws, spec)
    if draws.has("ports") and draws.maybe(0.2):
        spec["initContainers"] = [{"name": "s", "image": "app:1", "ports": _ports(draws)}]
        if draws.maybe(0.6):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    _required_affinity(draws, pod)
    if draws.has("soft"):
        _preferred_affinity(draws, pod)
    hard = draws.one([1, 1, 2]) if draws.has("spread") else 0
    soft = draws.one([1, 2]) if draws.has("soft") and draws.maybe(0.7) else 0
    if constraints := spread_constraints(draws, labels, hard=hard, soft=soft):
        spec["topologySpreadConstraints"] = constraints
    if draws.maybe(0.7 if draws.has("taints") else 0.15):
        spec["tolerations"] = tolerations(draws)
    if draws.has("features"):
        _feature_wishes(draws, spec)
    if volumes := storage.volumes(pod):
        spec["volumes"] = volumes
    return pod


def _pod(draws: Draws, name: str, namespace: str) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels_of(draws)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": "Pending"}}


def _namespace(draws: Draws) -> str:
    return "default" if draws.has("spread") and draws.maybe(0.7) else draws.one(NAMESPACES)


def _near(draws: Draws) -> str:
    return draws.one([HOST, HOST, ZONE])


# --- containers and resources ---------------------------------------------------------------------------------------------


def _container(draws: Draws, name: str, *, running: bool = False) -> Json:
    container: Json = {"name": name, "image": draws.one(IMAGES) if draws.has("soft") else "app:1"}
    if draws.has("resources", "resize"):
        container["resources"] = {"requests": _requests(draws)}
        if draws.maybe(0.1 if running else 0.25):
            container["resources"]["requests"]["example.com/fpga"] = draws.one(["1", "2"])
        if draws.maybe(0.15):
            container["resources"]["requests"]["ephemeral-storage"] = draws.one(["4Gi", "10Gi"])
        if draws.maybe(0.1):
            container["resources"]["requests"]["hugepages-2Mi"] = draws.one(["32Mi", "64Mi"])
    if draws.has("ports") and (not running or draws.maybe(0.5)):
        container["ports"] = _ports(draws)
    return container


def _requests(draws: Draws) -> dict[str, str]:
    amounts = {
        "cpu": draws.one(["100m", "500m", "1", "2", "1500m", "0.3333"]),
        "memory": draws.one(["256Mi", "1Gi", "2Gi", "3G", "1"]),
    }
    return {name: amount for name, amount in amounts.items() if draws.maybe(0.8)}


def _ports(draws: Draws) -> list[Json]:
    found: list[Json] = []
    for _ in range(draws.one([1, 1, 2])):
        number = draws.one([80, 443, 8080])
        port: Json = {"containerPort": number, "protocol": draws.one(["TCP", "TCP", "UDP", "SCTP"])}
        if draws.maybe(0.9):
            port["hostPort"] = number
        if draws.maybe(0.4):
            port["hostIP"] = draws.one(_ADDRESSES)
        if port not in found:
            found.append(port)
    return found


def _more_resources(draws: Draws, spec: Json) -> None:
    if draws.maybe(0.3):
        spec["containers"].append({"name": "d", "image": "app:1", "resources": {"requests": _requests(draws)}})
    if draws.maybe(0.3):
        spec["initContainers"] = [{"name": "i", "image": "app:1", "resources": {"requests": _requests(draws)}}]
        if draws.maybe(0.5):
            sidecar = {
                "name": "s",
                "image": "app:1",
                "restartPolicy": "Always",
                "resources": {"requests": _requests(draws)},
            }
            spec["initContainers"].insert(draws.one([0, 1]), sidecar)
    if draws.maybe(0.15):
        spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    if draws.maybe(0.15):
        spec["resources"] = {
            "requests": draws.one([{"cpu": "3", "memory": "5Gi"}, {"cpu": "1"}, {"memory": "1Gi"}, {}])
        }
        if draws.maybe(0.3):
            spec["resources"]["limits"] = {"cpu": "3"}
            spec["resources"]["requests"].setdefault("cpu", "3")  # as the API server stores it


def _resized(draws: Draws, pod: Json) -> None:
    """A resize that kubelet has acted on in part, or refused."""
    spec, status = pod["spec"], pod["status"]
    if draws.maybe(0.3):
        spec["containers"].append(_container(draws, "d", running=True))
    if draws.maybe(0.3):
        spec["initContainers"] = [{**_container(draws, "s", running=True), "restartPolicy": "Always"}]
    if draws.maybe(0.3):
        spec["initContainers"] = [*spec.get("initContainers", []), _container(draws, "i", running=True)]
    for field, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
        found = [_container_status(draws, each["name"]) for each in spec.get(containers, ()) if draws.maybe(0.7)]
        if found:
            status[field] = found
    if draws.maybe(0.3):
        spec["resources"] = {"requests": {"cpu": draws.one(["1", "2"]), "memory": "2Gi"}}
    if draws.maybe(0.3):
        status["resources"] = {"requests": _requests(draws)}
        if draws.maybe(0.7):
            status["allocatedResources"] = _requests(draws)
    if draws.maybe(0.5):
        reason = draws.one(["Infeasible", "Deferred"])
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]


def _container_status(draws: Draws, name: str) -> Json:
    status: Json = {"name": name, "image": "app:1", "imageID": "", "ready": True, "restartCount": 0}
    if draws.maybe(0.7):
        status["allocatedResources"] = _requests(draws)
    if draws.maybe(0.7):
        status["resources"] = {"requests": _requests(draws)} if draws.maybe(0.9) else {}
    return status


def _feature_wishes(draws: Draws, spec: Json) -> None:
    """What only nodes with a declared feature can run."""
    container = spec["containers"][0]
    if draws.maybe(0.4):
        spec |= {"hostNetwork": True, "hostUsers": draws.maybe(0.3)}
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            for port in each.get("ports", ()):
                port["hostPort"] = port["containerPort"]
    if draws.maybe(0.4):
        action = draws.one(["RestartAllContainers", "RestartAllContainers", "Restart"])
        container["restartPolicyRules"] = [{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]
        container["restartPolicy"] = "Never"


# --- affinity -------------------------------------------------------------------------------------------------------------


def _required_affinity(draws: Draws, pod: Json) -> None:
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity: Json = {}
    if draws.has("affinity"):
        terms = [pod_term(draws, labels) for _ in range(draws.one([1, 1, 2]))]
        if draws.maybe(0.3):
            for term in terms:  # the first pod of a group may stand alone
                term["labelSelector"] = {"matchLabels": {"app": labels.get("app", "web")}}
        affinity["podAffinity"] = {required: terms}
    if draws.has("anti"):
        affinity["podAntiAffinity"] = {
            required: [pod_term(draws, labels, _near(draws)) for _ in range(draws.one([1, 1, 2]))]
        }
    if draws.has("nodeaffinity"):
        affinity |= _node_affinity(draws, spec)
    if affinity:
        spec["affinity"] = affinity
    if draws.has("spread") and draws.maybe(0.4):
        spec.setdefault("nodeSelector", {"disk": "ssd"})


def _node_affinity(draws: Draws, spec: Json) -> Json:
    if draws.maybe(0.4):
        spec["nodeSelector"] = {"disk": draws.one(["ssd", "hdd"])}
        if draws.spoilt():
            spec["nodeSelector"]["disk"] = "not a value!"
    if draws.maybe(0.2):
        return {}
    terms = [node_term(draws) for _ in range(draws.one([1, 2]))]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _preferred_affinity(draws: Draws, pod: Json) -> None:
    if draws.maybe(0.7):
        _soft_pod_affinity(draws, pod, required=False)
    if draws.maybe(0.5):
        wishes = [{"weight": draws.one([1, 10, 50]), "preference": node_term(draws)} for _ in range(draws.one([1, 2]))]
        node = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
        node["preferredDuringSchedulingIgnoredDuringExecution"] = wishes


def _soft_pod_affinity(draws: Draws, pod: Json, *, required: bool) -> None:
    labels = pod["metadata"]["labels"]
    affinity = pod["spec"].setdefault("affinity", {})
    for kind in draws.some(["podAffinity", "podAntiAffinity"], draws.one([1, 2])):
        terms = [pod_term(draws, labels) for _ in range(draws.one([1, 2]))]
        holder = affinity.setdefault(kind, {})
        if required and kind == "podAffinity":
            holder["requiredDuringSchedulingIgnoredDuringExecution"] = terms
        else:
            holder["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": draws.one([1, 10, 100]), "podAffinityTerm": term} for term in terms
            ]
