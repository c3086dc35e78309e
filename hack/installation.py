"""hami-dra on a real control plane: what ships, applied as an administrator would, run under its
own ServiceAccounts.

Used by tests/e2e, hack/bench and hack/play.py. In: a control plane (`Host`) and an operator's
choices. Out: manifests and device classes in the cluster, controller, webhook and fleet as
processes beside it. Readiness is what a user could see: metrics of the processes, and dry runs that
the API server answers as it would answer anybody.

    with ControlPlane() as plane:
        hami = Installation(plane)
        hami.install()
        hami.start_controller(*QUICK)
        hami.start_webhook()
        hami.wait_ready()
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec.structs import replace

from controller.webhook import installation as webhook
from hack.controlplane.api import Api, ApiError, Object
from hack.controlplane.credentials import write_kubeconfig
from hack.controlplane.processes import free_port
from hami_dra.api import names
from hami_dra.api.config import FleetFile
from hami_dra.driver.fence import FenceMode
from hami_dra.driver.fleet import Fleet
from hami_dra.kube.http import connect
from hami_dra.kube.manifests import OPTIONAL, shipped

DRIVER: Final = "nvidia.hami.io"
QUICK: Final = (
    "--quiet-time=1s",
    "--lease-duration=9s",
    "--renew-deadline=5.9s",
    "--retry-period=0.5s",
    "--write-timeout=2s",
    "--unschedulable-timeout=2s",
    "--gate-patience=2s",
    "--orphan-age=3s",
    "--event-interval=3s",
)
"""Flags of a controller that does all it does sooner: for tests, on small clusters and a busy machine."""

_HAMI_DRA: Final = (sys.executable, "-m", "controller.cli.main")
_SYSTEM: Final = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}"
_PROBE: Final = f"/api/v1/namespaces/{names.PROBE_NAMESPACE}"
_PROBE_CLAIMS: Final = f"/apis/resource.k8s.io/v1/namespaces/{names.PROBE_NAMESPACE}/resourceclaims"
_MANAGER: Final = "administrator"
_DEFAULT: Final = "/api/v1/namespaces/default"
_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_RULES: Final = "/apis/resource.k8s.io/{}/devicetaintrules"
_FIRST: Final = ("Namespace", "ServiceAccount", "ClusterRole", "Role")


class Host(Protocol):
    """A `ControlPlane`, or a detached one."""

    api: Api
    url: str
    ca_file: Path
    admin_kubeconfig: Path
    directory: Path
    """For kubeconfig files."""

    def add_component(self, name: str, command: list[str]) -> Any:
        """A `Component`, or what starts, stops and checks a program in the background as one does."""


@dataclass
class Program:
    """One running part of the product. `process` starts, kills, pauses it; `port` serves /readyz and /metrics."""

    name: str
    process: Any
    port: int
    tls: bool = False

    def get(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 while nobody listens."""
        connection = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=_unverified())
            if self.tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 when there is none."""
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        series = f"{name}{{{wanted}}}" if wanted else name
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return 0.0


class Installation:
    """hami-dra in one cluster. `remove()` takes it out again, whatever state it is in."""

    def __init__(
        self,
        host: Host,
        choices: webhook.Installation | None = None,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment`: variables that all its programs have, in addition to ours."""
        self.environment = environment
        self.host = host
        self.api = host.api
        self.choices = choices or webhook.Installation()
        self.programs: dict[str, Program] = {}
        self.applied: list[Object] = []
        """What install() brought in."""
        self._webhook_port = free_port()

    # -- manifests -------------------------------------------------------------------------------------------------

    def install(self, **changes: Any) -> None:
        """Applies manifests/ and deviceclasses/ (server-side). `changes` are fields of
        `controller.webhook.installation`.

        The webhook is reached on loopback, at the port that start_webhook() serves.
        """
        url = f"https://127.0.0.1:{self._webhook_port}/mutate"
        self.choices = replace(self.choices, **{"webhook_url": url, **changes})
        objects = [*webhook.manifests(self.choices), *shipped("deviceclasses")]
        for item in sorted(objects, key=_order):
            self.api.apply(item, manager=_MANAGER)
            self.applied.append(item)

    def remove(self) -> None:
        """Stops the programs and deletes what was applied and what they made, but the Namespace:
        that takes long to go.
        """
        for program in self.programs.values():
            program.process.stop()
        self.programs.clear()
        for item in sorted(self.applied, key=_order, reverse=True):
            if item["kind"] != "Namespace":
                self.api.remove(item)
        self.applied.clear()
        for path in (f"{_PROBE}/pods", _PROBE_CLAIMS, f"{_SYSTEM}/pods", f"{_SYSTEM}/secrets"):
            self.api.delete(path, gracePeriodSeconds=0)
        self.api.delete(_in_system("coordination.k8s.io/v1", "leases"))
        self.api.delete(f"/apis/resource.k8s.io/v1/deviceclasses?labelSelector={names.PROBE_LABEL}")
        for rule in self.fence_rules():
            self.api.remove(rule)
            with contextlib.suppress(ApiError):  # it had no finalizer, and is gone
                self.api.patch(self.api.path_of(rule), {"metadata": {"finalizers": None}})

    def fence_rules(self, *drivers: str) -> list[Object]:
        """The DeviceTaintRules of the fence (of some drivers); none where the cluster does not serve them."""
        for version in ("v1", "v1beta2"):
            try:
                rules = self.api.list(_RULES.format(version))
            except ApiError as error:
                if error.status != 404:
                    raise
                continue
            kind = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule"}
            ours = [{**kind, **rule} for rule in rules if rule["spec"]["taint"]["key"] == names.FENCE_TAINT]
            return [rule for rule in ours if not drivers or rule["spec"]["deviceSelector"].get("driver") in drivers]
        return []

    # -- programs --------------------------------------------------------------------------------------------------

    def start_controller(self, *flags: str, name: str = "controller", program: Sequence[str] = _HAMI_DRA) -> Program:
        """A controller as its own ServiceAccount. Several may run at once under different names.

        `program` takes the arguments of `hami-dra`: a test's own way to run it.
        """
        port = free_port()
        gate = "on" if self.choices.gate else "off"
        listen = ["--host=127.0.0.1", f"--port={port}"]
        arguments = ["controller", *listen, "--mode", self.choices.mode, f"--gate={gate}", *flags]
        token = service_account_token(self.api, names.CONTROLLER)
        return self._start(name, token, arguments, port, program=program)

    def start_webhook(self, *flags: str, name: str = "webhook") -> Program:
        """The admission server as its own ServiceAccount, where the webhook configuration looks for it."""
        port = self._webhook_port
        gate = "on" if self.choices.gate else "off"
        listen = ["--host=127.0.0.1", f"--port={port}", "--certificate-host=127.0.0.1"]
        chosen = ["--refuse-over-quota"] if self.choices.refuse_over_quota else []
        arguments = ["webhook", *listen, "--mode", self.choices.mode, f"--gate={gate}", *chosen, *flags]
        return self._start(name, service_account_token(self.api, names.WEBHOOK), arguments, port, tls=True)

    def start_driver(
        self, node: str, *flags: str, name: str = "driver", environment: Mapping[str, str] | None = None
    ) -> Program:
        """The node driver as its own ServiceAccount, with a token that is bound to the Node, which
        must be there.

        `environment`: variables beside ours.
        """
        port = free_port()
        token = service_account_token(self.api, names.DRIVER, bound_to=self.api.get(f"/api/v1/nodes/{node}"))
        arguments = ["driver", f"--node={node}", "--host=127.0.0.1", f"--port={port}", *flags]
        return self._start(name, token, arguments, port, environment=environment or {})

    def uninstall_token(self) -> str:
        """A token of the account that uninstall has where it runs in the cluster; the account is made for it."""
        for item in shipped(f"manifests/{OPTIONAL}/uninstall.yaml"):
            self.api.apply(item, manager=_MANAGER)
            self.applied.append(item)
        account = f"{_SYSTEM}/serviceaccounts/{names.UNINSTALL}"
        self.api.wait_for("the account of uninstall", lambda: self.api.get(account))
        return service_account_token(self.api, names.UNINSTALL)

    def start_fleet(self, file: Path, *flags: str, name: str = "fleet") -> Program:
        """Keeps nodes and slices of a fleet file true, as the administrator."""
        arguments = ["slices", "--fleet", str(file), "--publish", *flags]
        return self._run(name, [*_HAMI_DRA, *arguments, "--kubeconfig", str(self.host.admin_kubeconfig)], 0)

    def publish(self, fleet: FleetFile, *, fence: FenceMode = "auto") -> None:
        """Makes nodes and slices as the fleet wants them, once. Raises NotPublished. A fleet
        without nodes removes all.
        """

        async def sync() -> None:
            cluster = connect(str(self.host.admin_kubeconfig))
            try:
                await Fleet(cluster, fleet, fence=fence).sync_once()
            finally:
                await cluster.close()

        asyncio.run(sync())

    def _start(
        self,
        name: str,
        token: str,
        arguments: list[str],
        port: int,
        *,
        tls: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        program: Sequence[str] = _HAMI_DRA,
    ) -> Program:
        kubeconfig = self.host.directory / f"{name}.kubeconfig"
        write_kubeconfig(kubeconfig, url=self.host.url, ca_file=self.host.ca_file, token=token)
        variables = {**self.environment, **environment}
        around = ["env", *(f"{key}={value}" for key, value in variables.items())] if variables else []
        return self._run(name, [*around, *program, *arguments, "--kubeconfig", str(kubeconfig)], port, tls=tls)

    def _run(self, name: str, command: list[str], port: int, *, tls: bool = False) -> Program:
        program = Program(name, self.host.add_component(name, command), port, tls)
        self.programs[name] = program
        program.process.start()
        return program

    # -- readiness -------------------------------------------------------------------------------------------------

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until a controller decides, pods are gated, the fence policy refuses and legacy pods are
        converted, as chosen.

        Raises TimeoutError, or ComponentDied with the end of the log.
        """
        if self.controllers():
            self.wait_for("a controller that decides", self.is_deciding, seconds=seconds)
        exclusive = self.choices.mode == "exclusive"
        if exclusive and self.choices.gate:
            self.wait_for("the gate policy in force", self.is_gating, seconds=seconds)
        if exclusive:
            self.wait_for("the fence policy in force", self.is_refusing_tolerations, seconds=seconds)
        if "webhook" in self.programs and self.choices.webhook:
            self.wait_for("legacy pods converted", self.is_converting, seconds=seconds)

    def wait_for(self, what: str, condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
        """As Api.wait_for, but fails at once when one of the programs died of itself."""

        def alive() -> Any:
            for program in self.programs.values():
                if not program.process.was_stopped:
                    program.process.check()
            return condition()

        return self.api.wait_for(what, alive, seconds=seconds, every=0.1)

    def controllers(self) -> list[Program]:
        return [program for program in self.programs.values() if program.name.startswith("controller")]

    def leader(self) -> Program | None:
        """The controller that leads, as it says itself."""
        return next((each for each in self.controllers() if each.metric("hami_dra_leader")), None)

    def is_deciding(self) -> bool:
        leader = self.leader()
        return leader is not None and (self.choices.mode != "exclusive" or leader.metric("hami_dra_fence_ready") == 1)

    def is_gating(self) -> bool:
        pod = _pod({"name": "dry-run", "labels": {names.DRA_LABEL: "true"}}, {"claims": [{"name": "none"}]})
        pod["spec"]["resourceClaims"] = [{"name": "none", "resourceClaimName": "none"}]
        created = self._dry_run(f"{_DEFAULT}/pods", pod)
        return any(gate["name"] == names.GATE for gate in created["spec"].get("schedulingGates", ()))

    def is_refusing_tolerations(self) -> bool:
        request = {"name": "any", "exactly": {"deviceClassName": "none", "tolerations": [{"operator": "Exists"}]}}
        claim = {"metadata": {"name": "dry-run"}, "spec": {"devices": {"requests": [request]}}}
        try:
            self._dry_run(_CLAIMS, claim)
        except ApiError as error:
            return names.FENCE_TAINT in error.message
        return False

    def is_converting(self) -> bool:
        return self._converts(unanswered=False)

    def is_asking_webhook(self) -> bool:
        """Whether the API server knows the webhook, be it there or not."""
        return self._converts(unanswered=True)

    def _converts(self, *, unanswered: bool) -> bool:
        """`unanswered`: what to return where the webhook was called and did not answer."""
        try:
            created = self._dry_run(f"{_DEFAULT}/pods", _pod({"name": "dry-run"}, {"limits": {"nvidia.com/gpu": "1"}}))
        except ApiError as error:
            if "failed calling webhook" in error.message:
                return unanswered
            raise
        return "resourceClaims" in created["spec"] or self.choices.mode != "exclusive"

    def _dry_run(self, path: str, body: Object) -> Object:
        return self.api.create(path, body, dryRun="All")


def service_account_token(api: Api, name: str, *, bound_to: Object | None = None) -> str:
    """A token by TokenRequest, as a pod of that ServiceAccount would get it.

    `bound_to` is a Pod of it, as the API server has it, or a Node: the token then names the node,
    without which the driver may write no slices.
    """
    spec: Object = {"expirationSeconds": 24 * 3600}
    if bound_to is not None:
        metadata = bound_to["metadata"]
        kind = "Pod" if "containers" in bound_to["spec"] else "Node"  # items of lists carry no kind
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token: str = api.create(f"{_SYSTEM}/serviceaccounts/{name}/token", request)["status"]["token"]
    return token


def _pod(metadata: Object, resources: Object) -> Object:
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "none", "resources": resources}]}}


def _in_system(group_version: str, plural: str) -> str:
    return f"/apis/{group_version}/namespaces/{names.SYSTEM_NAMESPACE}/{plural}"


def _order(item: Mapping[str, Any]) -> int:
    kind = str(item["kind"])
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def _unverified() -> ssl.SSLContext:
    """The webhook's authority is known to the API server only, and this asks on loopback whether it lives."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
