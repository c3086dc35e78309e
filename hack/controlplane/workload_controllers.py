"""Runs the controllers of JobSet and LeaderWorkerSet against a control plane, with their CRDs and
webhooks.

Used by tests. In: a control plane, and which of them. Out: a process that dies with the control
plane, or earlier, by stop(), with all that was installed for it. Webhooks are reached on loopback,
with a certificate of the control plane's authority. The manifests are those of the modules that the
programs are built from.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import yaml

from hack.controlplane import build
from hack.controlplane.api import Api, ApiError, Object
from hack.controlplane.cluster import ControlPlane
from hack.controlplane.processes import free_port


@dataclass(frozen=True)
class Workload:
    """What one of the controllers needs."""

    binary: str
    crds: tuple[str, ...]
    webhooks: str
    config: str
    """API version of its Configuration."""
    pods: str
    """Label of the pods that its webhooks are for: Kustomize patches this selector in."""
    probe: Object
    """An object that shows, by a dry run, that CRD and webhooks work."""


_POD: Final = {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never"}
JOBSET: Final = Workload(
    "jobset",
    ("jobset-crd.yaml",),
    "jobset-webhooks.yaml",
    "config.jobset.x-k8s.io/v1alpha1",
    "jobset.sigs.k8s.io/jobset-name",
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": {"spec": _POD}}}}]},
    },
)
LEADER_WORKER_SET: Final = Workload(
    "lws",
    ("lws-crd.yaml", "lws-disaggregated-crd.yaml"),
    "lws-webhooks.yaml",
    "config.lws.x-k8s.io/v1alpha1",
    "leaderworkerset.sigs.k8s.io/name",
    {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": _POD["containers"]}}}},
    },
)


class WorkloadController:
    """One of them on one control plane; a `with` block, or start() and stop()."""

    def __init__(self, plane: ControlPlane, workload: Workload) -> None:
        self._api: Api = plane.api
        self._workload = workload
        self._folder = build.ensure("workloads")
        self._port = free_port()
        self._authority = base64.b64encode(plane.ca_file.read_bytes()).decode()
        self._made: list[Object] = []
        folder = plane.directory / workload.binary
        folder.mkdir(exist_ok=True)
        certificate = plane.certificate_for_server(workload.binary)
        shutil.copyfile(certificate.certificate, folder / "tls.crt")
        shutil.copyfile(certificate.key, folder / "tls.key")
        config = folder / "config.json"
        config.write_text(json.dumps(self._configuration(str(folder))))
        command = [str(self._folder / workload.binary), f"--config={config}", f"--kubeconfig={plane.admin_kubeconfig}"]
        self.component = plane.add_component(workload.binary, command)

    def start(self) -> Self:
        """Returns when the kind can be created. Raises ComponentDied with the end of its log, or TimeoutError."""
        for crd in self._workload.crds:
            self._create(*self._documents(crd))
        self.component.start()
        self._create(*(self._on_loopback(each) for each in self._documents(self._workload.webhooks)))
        self._api.wait_for(f"{self._workload.binary} and its webhooks", self._answers)
        return self

    def stop(self) -> None:
        """Ends it and removes its CRDs, with all objects of them, and its webhooks."""
        for item in reversed(self._made):
            self._api.remove(item)
        self._made.clear()
        self.component.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configuration(self, certificates: str) -> Mapping[str, Any]:
        return {
            "apiVersion": self._workload.config,
            "kind": "Configuration",
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": certificates},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
        }

    def _documents(self, name: str) -> Iterator[Object]:
        for item in yaml.load_all((self._folder / name).read_text(), yaml.CSafeLoader):
            if item:
                yield item

    def _create(self, *items: Object) -> None:
        for item in items:
            self._made.append(self._api.add(item))

    def _on_loopback(self, item: Object) -> Object:
        """The configuration of its webhooks under a name of its own, for requests that are about its pods only."""
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": self._authority}
            if "pods" in webhook["rules"][0]["resources"]:
                webhook["objectSelector"] = {"matchExpressions": [{"key": self._workload.pods, "operator": "Exists"}]}
        return {**item, "metadata": {"name": f"{self._workload.binary}-{item['metadata']['name']}"}}

    def _answers(self) -> bool:
        self.component.check()
        try:
            self._api.create(
                self._api.path_of(self._workload.probe, collection=True), self._workload.probe, dryRun="All"
            )
        except ApiError as error:
            if error.status in (404, 500):  # not served yet; its webhook does not answer yet
                return False
            raise
        return True
