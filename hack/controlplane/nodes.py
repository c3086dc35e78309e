"""Nodes without machines, for tests: they stay Ready, and pods bound to them run and go away.

Used through `ControlPlane.nodes`. In: names, labels, allocatable. Out: Node objects in the cluster.
Two threads play the kubelets of all nodes: one renews the Leases in kube-node-lease (the
controller-manager calls a node Unknown 50 s after its last heartbeat) and repairs the Ready
condition, the other sets pods Running and confirms deletions. DRA's prepare step is not played. For
many nodes over a long time there is kwok_nodes.py. It must not use anything of the product.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hack.controlplane.api import Api, ApiError, NotReached, Object

_LOG: Final = logging.getLogger(__name__)
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NODES: Final = "/api/v1/nodes"
_HEARTBEAT_SECONDS: Final = 10.0
_DEFAULT_ALLOCATABLE: Final = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_FRESH_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class FakeNodes:
    """The fake nodes of one cluster. Its threads start with the first node."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._silent: set[str] = set()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        #: False leaves bound pods Pending and deleted ones terminating, as a dead kubelet would
        self.run_pods = True

    # -- nodes -----------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
        wait: bool = True,
    ) -> Object:
        """Creates a Node, Ready from the start; `allocatable` is added to a big default.

        With `wait` it returns once the controller-manager has taken the not-ready taint off. For
        many nodes create all without, then call wait_schedulable().
        """
        resources = {**_DEFAULT_ALLOCATABLE, **(allocatable or {})}
        body: Object = {
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **(labels or {}),
                },
                "annotations": dict(annotations or {}),
            },
            "spec": {"taints": [dict(taint) for taint in taints]},
            # Nodes are the one kind whose status is taken at creation. The Lease follows with the next heartbeat.
            "status": {
                "conditions": [_ready("True")],
                "capacity": resources,
                "allocatable": resources,
                "addresses": [{"type": "Hostname", "address": name}],
                "nodeInfo": _NODE_INFO,
            },
        }
        node = self._api.create(_NODES, body)
        with self._lock:
            self._nodes.add(name)
            self._silent.discard(name)
        self._start_threads()
        if not wait:
            return node
        self.wait_schedulable([name])
        return self._api.get(f"{_NODES}/{name}")

    def wait_schedulable(self, names: Iterable[str], seconds: float = 30.0) -> None:
        """Until the nodes have no not-ready or unreachable taint; cordoned ones count."""
        for name in names:
            schedulable = functools.partial(self._is_schedulable, name)
            self._api.wait_for(f"node {name} without a not-ready taint", schedulable, seconds=seconds)

    def delete(self, name: str) -> None:
        """Removes the Node and its Lease; its pods stay for the pod garbage collector, as when a machine is lost."""
        with self._lock:
            self._nodes.discard(name)
            self._silent.discard(name)
        self._api.delete(f"{_NODES}/{name}")
        self._api.delete(f"{_LEASES}/{name}")

    def delete_all(self) -> None:
        for name in sorted(self._nodes):
            self.delete(name)

    def cordon(self, name: str, *, on: bool = True) -> None:
        self._api.patch(f"{_NODES}/{name}", {"spec": {"unschedulable": on or None}})

    def uncordon(self, name: str) -> None:
        self.cordon(name, on=False)

    def set_ready(self, name: str, status: str = "True") -> None:
        """Sets the Ready condition: "True", "False", or "Unknown" (a kubelet that died).

        A node that is not Ready has no heartbeat either, and its pods are left alone.
        """
        with self._lock:
            (self._silent.discard if status == "True" else self._silent.add)(name)
        self._patch_status(name, {"conditions": [_ready(status)]})

    def set_allocatable(self, name: str, **resources: str | None) -> None:
        """Changes single resources; None removes one. Names with a slash: `**{"nvidia.com/gpu": "8"}`."""
        self._patch_status(name, {"allocatable": resources, "capacity": resources})

    # -- pods ------------------------------------------------------------------------------------------------------

    def finish_pod(self, namespace: str, name: str, *, phase: str = "Succeeded") -> None:
        """Ends a pod, as a container that exits would: Succeeded or Failed."""
        status = {"phase": phase, "conditions": _pod_conditions("False")}
        self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status}, "strategic")

    # -- threads ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def _start_threads(self) -> None:
        with self._lock:
            if self._threads:
                return
            for name, work in (("heartbeats", self._beat), ("pods", self._follow_pods)):
                thread = threading.Thread(target=self._repeat, args=(work,), name=f"fake-nodes-{name}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _repeat(self, work: Callable[[], None]) -> None:
        """An API server that is down, slow or forgetful must not end a kubelet."""
        while not self._stopping.is_set():
            try:
                work()
            except (ApiError, NotReached) as error:
                _LOG.info("fake nodes: %s; trying again", error)
            self._stopping.wait(0.5)

    def _living(self) -> list[str]:
        with self._lock:
            return sorted(self._nodes - self._silent)

    def _beat(self) -> None:
        """One round of heartbeats. Like a kubelet it also repairs a Ready condition that somebody else changed."""
        names = self._living()
        for name in names:
            if self._stopping.is_set():
                return
            self._renew_lease(name)
        not_ready = {
            node["metadata"]["name"]
            for node in self._api.list(_NODES, resourceVersion="0")
            if not any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        }
        for name in not_ready.intersection(self._living()):
            self._patch_status(name, {"conditions": [_ready("True")]})
        self._stopping.wait(_HEARTBEAT_SECONDS)

    def _renew_lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)}
        try:
            self._api.patch(f"{_LEASES}/{name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            self._api.create(_LEASES, {"metadata": {"name": name}, "spec": spec})

    def _follow_pods(self) -> None:
        answer = self._api.get("/api/v1/pods", fieldSelector="spec.nodeName!=")
        for pod in answer["items"]:
            self._attend(pod)
        version = answer["metadata"]["resourceVersion"]
        # A short watch, so that stop() does not wait long and pods of nodes that came back are seen again.
        query = {"fieldSelector": "spec.nodeName!=", "resourceVersion": version}
        for event in self._api.watch("/api/v1/pods", seconds=5, **query):
            if self._stopping.is_set():
                return
            if event["type"] in ("ADDED", "MODIFIED"):
                self._attend(event["object"])

    def _attend(self, pod: Object) -> None:
        """What a kubelet does to one pod: start it, or confirm that it is gone."""
        if not self.run_pods or pod["spec"]["nodeName"] not in self._living():
            return
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                self._api.delete(path, gracePeriodSeconds=0, preconditions={"uid": metadata["uid"]})
            elif pod["status"].get("phase", "Pending") == "Pending":
                self._api.patch(
                    f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": _running(pod)}, "strategic"
                )
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or already another pod of that name
                raise

    def _is_schedulable(self, name: str) -> bool:
        taints = self._api.get(f"{_NODES}/{name}")["spec"].get("taints", ())
        return not any(taint["key"] in _FRESH_TAINTS for taint in taints)

    def _patch_status(self, name: str, status: Object) -> None:
        self._api.patch(f"{_NODES}/{name}/status", {"status": status}, "strategic")


def _now(*, micro: bool = False) -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _ready(status: str) -> dict[str, str]:
    reason = {"True": "KubeletReady", "False": "KubeletNotReady"}.get(status, "NodeStatusUnknown")
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": "set by the test",
        "lastHeartbeatTime": _now(),
        "lastTransitionTime": _now(),
    }


def _pod_conditions(ready: str) -> list[dict[str, str]]:
    states = {"Initialized": "True", "PodReadyToStartContainers": "True", "ContainersReady": ready, "Ready": ready}
    return [{"type": kind, "status": status, "lastTransitionTime": _now()} for kind, status in states.items()]


def _running(pod: Object) -> Object:
    now = _now()

    def container(item: Mapping[str, Any], state: Object) -> Object:
        started = "running" in state
        return {
            "name": item["name"],
            "image": item.get("image", ""),
            "imageID": "",
            "ready": True,
            "started": started,
            "restartCount": 0,
            "state": state,
        }

    running = {"running": {"startedAt": now}}
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": _pod_conditions("True"),
        "containerStatuses": [container(item, running) for item in pod["spec"]["containers"]],
        "initContainerStatuses": [
            container(item, running if item.get("restartPolicy") == "Always" else done)
            for item in pod["spec"].get("initContainers", ())
        ],
    }


_NODE_INFO: Final = {
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
    "kernelVersion": "fake",
    "osImage": "fake",
    "containerRuntimeVersion": "fake://1",
    "kubeletVersion": "fake",
    "kubeProxyVersion": "",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
