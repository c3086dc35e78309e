"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-scheduler,
kube-controller-manager.

Used by tests/e2e, hack/bench and, through detached.py, by `make cluster`. In: a version and
options. Out: a URL, a CA file, kubeconfig files, an administrator's client, and a handle on each
process. Any number can run side by side. Nothing is left behind: not after stop(), not after the
owner's death. It must not import the product.

    with ControlPlane("1.37.1") as plane:
        plane.api.get("/api/v1/nodes")
"""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from hack.controlplane import build
from hack.controlplane.api import Api, ApiError, NotReached
from hack.controlplane.credentials import Authority, KeyPair, signing_key, write_kubeconfig, write_private
from hack.controlplane.nodes import FakeNodes
from hack.controlplane.processes import Component, Guardian, free_port

_SERVICES: Final = "10.96.0.0/16"
_FIRST_SERVICE: Final = "10.96.0.1"
#: user name and groups of every token in the token file
_TOKEN_USERS: Final = {
    "admin": ("hami-dra-test-admin", "system:masters"),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
}


class ControlPlane:
    """One control plane; start() and stop(), or a `with` block.

    Options that the components share: `feature_gates`, `client_qps` (requests per second of
    scheduler and controller-manager, with a burst of as many; None keeps their own, low defaults:
    about 10 pods/s). `runtime_config` switches APIs ({"resource.k8s.io/v1beta2": True});
    `scheduler_config` is merged into the KubeSchedulerConfiguration; `extra_args` adds flags by
    component name. Requests of the users `audited` are logged by the API server: see `audit_log`.
    With `directory` the caller removes it.
    """

    def __init__(
        self,
        version: str = build.DEFAULT_VERSION,
        *,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        client_qps: int | None = None,
        scheduler_config: Mapping[str, Any] | None = None,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        audited: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        self.version = version
        self._binaries = build.ensure(version)
        self._gates = dict(feature_gates or {})
        self._runtime_config = dict(runtime_config or {})
        self._qps = client_qps
        self._scheduler_config = dict(scheduler_config or {})
        self._extra = {name: list(flags) for name, flags in (extra_args or {}).items()}
        self._audited = list(audited)
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"hami-dra-{version}-"))
        self.logs = self.directory / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._audit_path = self.logs / "audit.log"
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.etcd_url, self.etcd_peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.etcd_folder = self.directory / "etcd"
        self.components: dict[str, Component] = {}
        self._guardian = Guardian(self.directory if self._own_directory else None)
        self._stopped = False
        self._prepare()
        self.api = Api(self.url, self.ca_file, self._tokens["admin"])
        self.nodes = FakeNodes(self.api)
        atexit.register(self.stop)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts everything and returns when pods can be created. Raises ComponentDied with the end of a log."""
        try:
            self.components["etcd"].start()
            self.components["kube-apiserver"].start()
            self.wait_ready()
            self.components["kube-scheduler"].start()
            self.components["kube-controller-manager"].start()
            # The admission of pods needs it, and it shows that the controller-manager works.
            self._wait("the default service account", "/api/v1/namespaces/default/serviceaccounts/default")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all processes and removes the temporary folder. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        for component in self.components.values():
            component.ask_to_stop()
        for component in self.components.values():
            component.stop(grace=1.0)  # nothing here is worth a longer farewell
        self.nodes.stop()  # its watch has ended with the API server
        self.api.close()
        self._guardian.close()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until /readyz of the API server says ok."""
        deadline = time.monotonic() + seconds
        while True:
            self.components["etcd"].check()
            self.components["kube-apiserver"].check()
            try:
                if self.api.text("/readyz") == "ok":
                    return
            except (ApiError, NotReached) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"kube-apiserver {self.version} not ready within {seconds:g} s") from error
            time.sleep(0.05)

    def add_component(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Component:
        """Another process that is logged, measured and stopped with the cluster; the caller starts it."""
        self.components[name] = Component(name, command, self.logs / f"{name}.log", self._guardian, env)
        return self.components[name]

    # -- trouble ---------------------------------------------------------------------------------------------------

    def restart_apiserver(self, *, down_for: float = 0.0) -> None:
        """Stops the API server, keeps it down for `down_for` seconds, starts it on the same port, waits until ready."""
        apiserver = self.components["kube-apiserver"]
        apiserver.stop(grace=1.0)  # it would wait for its watchers for much longer
        time.sleep(down_for)
        apiserver.start()
        self.wait_ready()

    def kill(self, name: str) -> None:
        """SIGKILL for one component: etcd, kube-apiserver, kube-scheduler or kube-controller-manager."""
        self.components[name].kill()

    @contextlib.contextmanager
    def without(self, name: str) -> Iterator[None]:
        """One component is stopped within the block and started again after it."""
        self.components[name].stop()
        try:
            yield
        finally:
            self.components[name].start()
            self.wait_ready()

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """One component hangs (SIGSTOP) within the block and goes on after it."""
        self.components[name].pause()
        try:
            yield
        finally:
            self.components[name].resume()

    # -- measures --------------------------------------------------------------------------------------------------

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of each component since its first start, restarts included."""
        return {name: component.cpu_seconds() for name, component in self.components.items()}

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of each component now."""
        return {name: component.memory_bytes() for name, component in self.components.items()}

    def audit_log(self) -> list[dict[str, Any]]:
        """The requests of the users `audited` that were answered so far, as audit.k8s.io/v1 Events;
        watches once they end.
        """
        return [json.loads(line) for line in self._audit_path.read_text().splitlines()]

    # -- identities ------------------------------------------------------------------------------------------------

    def kubeconfig_for(self, token: str, name: str = "") -> Path:
        """A kubeconfig file for a bearer token."""
        path = self.directory / f"{name or 'token-' + secrets.token_hex(4)}.kubeconfig"
        return write_kubeconfig(path, url=self.url, ca_file=self.ca_file, token=token)

    def kubeconfig_for_user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file for any user with any groups (a client certificate); no restart needed."""
        path = self.directory / f"{name.replace(':', '-').replace('/', '-')}.kubeconfig"
        user = self._authority.user(name, groups)
        return write_kubeconfig(path, url=self.url, ca_file=self.ca_file, user=user)

    def certificate_for_server(self, name: str) -> KeyPair:
        """A serving certificate for 127.0.0.1, signed by the authority in `ca_file`."""
        return self._authority.server(name, ["127.0.0.1"])

    def token_for_service_account(self, namespace: str, name: str, *, seconds: int = 24 * 3600) -> str:
        """A token of a service account by TokenRequest, as a pod would get it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        token: str = self.api.create(path, request)["status"]["token"]
        return token

    def api_as(self, token: str) -> Api:
        """A client with another token; the caller closes it."""
        return Api(self.url, self.ca_file, token)

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        folder = self.directory
        self._authority = Authority(folder)
        self.ca_file = self._authority.ca_file
        self._tokens = {name: secrets.token_hex(16) for name in _TOKEN_USERS}
        rows = (f'{self._tokens[name]},{user},{user},"{groups}"' for name, (user, groups) in _TOKEN_USERS.items())
        write_private(folder / "tokens.csv", "\n".join(rows) + "\n")
        signing_key(folder / "service-accounts.key")
        self.admin_kubeconfig = self.kubeconfig_for(self._tokens["admin"], "admin")
        for name, arguments in {
            "etcd": self._etcd(),
            "kube-apiserver": self._apiserver(),
            "kube-scheduler": self._scheduler(),
            "kube-controller-manager": self._controller_manager(),
        }.items():
            command = [str(self._binaries / name), *arguments, *self._extra.get(name, [])]
            self.components[name] = Component(name, command, self.logs / f"{name}.log", self._guardian)

    def _etcd(self) -> list[str]:
        client, peer = self.etcd_url, self.etcd_peer_url
        return [
            "--name=default",
            f"--data-dir={self.etcd_folder}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # a lost test cluster is no loss, and an fsync costs milliseconds a write
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        serving = self._authority.server(
            "apiserver",
            ["127.0.0.1", _FIRST_SERVICE, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
        )
        key = self.directory / "service-accounts.key"
        return [
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            # No Endpoints of our own: they may not be loopback addresses, and there may be no other interface.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.ca_file}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={_SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            *self._gate_flags(),
            *([f"--runtime-config={_switches(self._runtime_config)}"] if self._runtime_config else []),
            *(self._audit_flags() if self._audited else []),
        ]

    def _audit_flags(self) -> list[str]:
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": self._audited}, {"level": "None"}],
        }
        path = write_private(self.directory / "audit-policy.yaml", json.dumps(policy, indent=1))
        return [f"--audit-policy-file={path}", f"--audit-log-path={self._audit_path}", "--audit-log-mode=blocking"]

    def _scheduler(self) -> list[str]:
        kubeconfig = self.kubeconfig_for(self._tokens["kube-scheduler"], "kube-scheduler")
        connection: dict[str, Any] = {"kubeconfig": str(kubeconfig)}
        if self._qps:
            connection |= {"qps": self._qps, "burst": self._qps}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": connection,
            "leaderElection": {"leaderElect": False},
            **self._scheduler_config,
        }
        path = write_private(self.directory / "kube-scheduler.yaml", json.dumps(config, indent=1))
        return [f"--config={path}", "--secure-port=0", *self._gate_flags()]

    def _controller_manager(self) -> list[str]:
        kubeconfig = self.kubeconfig_for(self._tokens["kube-controller-manager"], "kube-controller-manager")
        return [
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--root-ca-file={self.ca_file}",
            f"--service-account-private-key-file={self.directory / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            *([f"--kube-api-qps={self._qps}", f"--kube-api-burst={self._qps}"] if self._qps else []),
            *self._gate_flags(),
        ]

    def _gate_flags(self) -> list[str]:
        return [f"--feature-gates={_switches(self._gates)}"] if self._gates else []

    def _wait(self, what: str, path: str) -> None:
        def there() -> bool:
            for component in self.components.values():
                component.check()
            return bool(self.api.get(path))

        self.api.wait_for(what, there, seconds=60)


def _switches(values: Mapping[str, bool]) -> str:
    return ",".join(f"{name}={str(on).lower()}" for name, on in values.items())
