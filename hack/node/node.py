"""A real node beside a control plane: kubelet 1.37.1, containerd, runc, CDI. Used by tests/node.

In: a running `ControlPlane` and a name. Out: a Node that is Ready and runs pods of one image
(image.py), the folders that a DRA driver needs, and a handle on each process. It runs in a cell of
its own (cell.py): nodes live side by side, and nothing is left behind. Pods need `hostNetwork:
true` (there is no network plugin but loopback) and an image named by image.py. Needs root and
cgroups, v1 or v2: see requirements.py. It must not import the product.

    with ControlPlane("1.37.1") as plane, Node(plane, "n1") as node:
        plane.api.add(pod)
        node.outputs(plane.api.read(pod))
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import grpc

from hack.controlplane import build
from hack.controlplane.api import ApiError, NotReached, Object
from hack.controlplane.cluster import ControlPlane
from hack.controlplane.processes import Component, Guardian
from hack.node.cell import Cell, cgroup_folders
from hack.node.image import PAUSE, Image, of_guest, write_archive

TARGETS: Final = ("kubelet", "containerd", "runc", "node-programs")
"""Of hack/controlplane/build.py."""

_MARK: Final = "guest: "
_NULL: Final = os.makedev(1, 3)


class Node:
    """One node; start() and stop(), or a `with` block, inside that of its control plane.

    `kubelet_config` is merged into the KubeletConfiguration. `network_plugins`: a folder with ptp
    and host-local of containernetworking/plugins; then pods have a network of their own, where the
    machine is 10.96.0.1, the address of the Service `kubernetes`. One node at a time may.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "",
        *,
        kubelet_config: Mapping[str, Any] | None = None,
        network_plugins: Path | None = None,
    ) -> None:
        binaries = {target: build.ensure(target) for target in TARGETS}
        self.plane = plane
        self.name = name or f"node-{secrets.token_hex(3)}"
        # short: the paths of unix sockets in it may have 107 characters
        self.folder = Path(tempfile.mkdtemp(prefix="hami-node-"))
        self.root = self.folder / "kubelet"
        """kubelet's root folder, with plugins/ and plugins_registry/."""
        self.cdi_dir = self.folder / "cdi"
        self.device_folder = self.folder / "dev"
        """For the device nodes of simulated cards; see add_device()."""
        self._pod_logs = self.folder / "pods"
        self._socket = self.folder / "containerd.sock"
        for folder in (self.root, self.cdi_dir, self.device_folder, self._pod_logs):
            folder.mkdir()
        self._cgroup = self.folder.name
        self._guardian = Guardian()
        self._cell = Cell(self.folder, self._cgroup)
        self._ctr = binaries["containerd"] / "ctr"
        self._guest = binaries["node-programs"] / "guest"
        self._stopped = False
        atexit.register(self.stop)
        containerd: list[str | Path] = [
            binaries["containerd"] / "containerd",
            "--config",
            self._containerd_config(binaries, network_plugins),
        ]
        kubelet: list[str | Path] = [
            binaries["kubelet"] / "kubelet",
            f"--config={self._kubelet_config(kubelet_config or {})}",
            f"--kubeconfig={plane.kubeconfig_for_user(f'system:node:{self.name}', ['system:nodes'])}",
            f"--root-dir={self.root}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--hostname-override={self.name}",
        ]
        path = os.pathsep.join([str(binaries["runc"]), str(binaries["containerd"]), os.environ.get("PATH", "")])
        self._commands = {"containerd": containerd, "kubelet": kubelet}
        self._path = path
        self._make_components()

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts both, imports the image and returns when the node is Ready. Raises ComponentDied or TimeoutError."""
        try:
            self.containerd.start()
            self._wait_for_runtime()
            self.add_images(of_guest(self._guest))
            since = time.time()
            self.kubelet.start()
            self.wait_ready(since=since)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all processes, containers included, and takes the Node out of the cluster. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        self.kubelet.kill()
        self.containerd.kill()
        self._cell.close()
        self._guardian.close()
        with contextlib.suppress(NotReached, ApiError):
            for pod in self.pods():
                metadata = pod["metadata"]
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                self.plane.api.delete(path, gracePeriodSeconds=0)
            self.plane.api.delete(f"/api/v1/nodes/{self.name}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self, seconds: float = 90.0, *, since: float = 0.0) -> None:
        """Until kubelet says Ready, and said so after `since` (Unix seconds)."""

        def ready() -> bool:
            self.containerd.check()
            self.kubelet.check()
            status = self.plane.api.get(f"/api/v1/nodes/{self.name}")["status"]
            return any(
                condition["type"] == "Ready"
                and condition["status"] == "True"
                and condition["lastHeartbeatTime"] >= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
                for condition in status.get("conditions", ())
            )

        try:
            self.plane.api.wait_for(f"node {self.name} is Ready", ready, seconds=seconds, every=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the end of kubelet's log:\n{self.kubelet.tail(40)}") from error

    # -- trouble ---------------------------------------------------------------------------------------------------

    def restart_kubelet(self, *, kill: bool = False, wait: bool = True) -> None:
        """Containers go on. With `kill` it gets no chance to finish what it does."""
        self._restart(self.kubelet, kill=kill, wait=wait)

    def restart_containerd(self, *, kill: bool = False, wait: bool = True) -> None:
        """Containers go on: each has a shim of its own."""
        self._restart(self.containerd, kill=kill, wait=wait)

    def _restart(self, component: Component, *, kill: bool, wait: bool) -> None:
        if kill:
            component.kill()
        else:
            component.stop(grace=20.0)
        since = time.time() + 1  # heartbeats are whole seconds
        if component is self.kubelet:
            self._wait_for_runtime()
        component.start()
        if wait:
            self._wait_for_runtime()
            self.wait_ready(since=since if component is self.kubelet else 0.0)

    def reboot(self) -> None:
        """Power off and on: all processes end at once, with mounts and all that is kept in memory, CDI files among it."""
        self.kubelet.kill()
        self.containerd.kill()
        self._cell.close(keep_folder=True)
        for folder in (self.folder / "state", self.folder / "runc", self.cdi_dir):
            shutil.rmtree(folder, ignore_errors=True)
        self.cdi_dir.mkdir()
        self._cell = Cell(self.folder, self._cgroup)
        self._make_components()
        self.containerd.start()
        self._wait_for_runtime()
        since = time.time() + 1  # heartbeats are whole seconds
        self.kubelet.start()
        self.wait_ready(since=since)

    # -- what a driver needs -----------------------------------------------------------------------------------------

    def add_device(self, name: str) -> Path:
        """A harmless character device (that of /dev/null) in `device_folder`."""
        path = self.device_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o666, _NULL)
            path.chmod(0o666)
        return path

    def add_images(self, images: Mapping[str, Image]) -> None:
        """Images that pods of this node may name."""
        archive = self.folder / "images.tar"
        write_archive(images, archive)
        self.import_images(archive)
        archive.unlink()

    def import_images(self, archive: Path) -> None:
        """Import the images of an OCI archive under their names."""
        self._containerd("images", "import", archive)

    # -- containers ------------------------------------------------------------------------------------------------------

    def execute(self, container_id: str, *command: str) -> Object:
        """What another program of the guests' kind prints that runs in a running container, with
        its environment and limits.

        `container_id`: as in the status of its pod. Raises CalledProcessError.
        """
        session = secrets.token_hex(4)
        # ctr closes its pipes when the program ends, with what is still in them
        output = self.folder / f"{session}.out"
        to_file = f"--log-uri=file://{output}"
        self._containerd("tasks", "exec", "--exec-id", session, to_file, _bare(container_id), *command)
        found: Object = json.loads(_first_printed(output.read_text()))
        output.unlink()
        return found

    def kill_container(self, container_id: str) -> None:
        """As the kernel does when it has no memory left: its processes get SIGKILL."""
        self._containerd("tasks", "kill", "-s", "SIGKILL", _bare(container_id))

    def freeze_container(self, container_id: str) -> None:
        """Its processes stand still, and nothing but SIGKILL ends them: kubelet waits for the whole grace period."""
        self._containerd("tasks", "kill", "-s", "SIGSTOP", _bare(container_id))

    # -- what there is -----------------------------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        """The pods that are bound to this node, as the API server has them."""
        return self.plane.api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")

    def outputs(self, pod: Object, container: str = "") -> list[Object]:
        """What the guests of a container (default: the first) printed: one entry for each time it was started."""
        metadata = pod["metadata"]
        container = container or pod["spec"]["containers"][0]["name"]
        folder = self._pod_logs / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}" / container
        return [
            json.loads(line)
            for file in sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
            if (line := _printed(file.read_text()))
        ]

    def containers(self) -> list[str]:
        """Ids of the containers (sandboxes included) that containerd knows."""
        return self._containerd("containers", "list", "-q").split()

    def mounts(self) -> list[str]:
        """Mount points below the node's folder, as the node sees them: volumes and root file systems of pods."""
        table = Path(f"/proc/{self._cell.pid}/mountinfo").read_text().splitlines()
        points = (line.split()[4] for line in table)
        return [point for point in points if point.startswith(f"{self.folder}/") and point != str(self.root)]

    def cgroups(self) -> list[Path]:
        """The cgroups of containers on this node."""
        return [path for top in cgroup_folders(self._cgroup) for path in top.glob("k8s.io/*/")]

    def _containerd(self, *command: str | Path) -> str:
        return self.run(self._ctr, "-a", self._socket, "-n", "k8s.io", *command)

    def run(self, *command: str | Path) -> str:
        """The output of a command that runs on the node. Raises CalledProcessError with the output
        of both kinds in it.
        """
        done = subprocess.run(self._cell.command(command), capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
        return done.stdout

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _make_components(self) -> None:
        self.containerd, self.kubelet = (
            Component(
                name,
                self._cell.command(command),
                self.plane.logs / f"{self.name}-{name}.log",
                self._guardian,
                {"PATH": self._path},
            )
            for name, command in self._commands.items()
        )

    def _wait_for_runtime(self, seconds: float = 60.0) -> None:
        """Until containerd answers calls of kubelet's.

        Its socket is there, and other calls work, a moment earlier than the part that serves
        kubelet, and kubelet ends ("server is not initialized yet") when it comes in that moment; on
        a machine an init system would start it again.
        """
        deadline = time.monotonic() + seconds
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            version: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/runtime.v1.RuntimeService/Version"
            )
            while True:
                self.containerd.check()
                try:
                    version(b"", timeout=5.0)
                except grpc.RpcError as error:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"containerd does not answer: {error}\n{self.containerd.tail()}") from error
                    time.sleep(0.1)
                else:
                    return

    def _kubelet_config(self, changes: Mapping[str, Any]) -> Path:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "podLogsDir": str(self._pod_logs),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "resolvConf": "",
            "enableServer": False,  # logs are read from files; two nodes would want the same port
            "healthzPort": 0,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                             "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100,  # never: nothing could bring the images back
            "maxPods": 250,
            # How soon it tries again to prepare devices (kubelet 1.37 does not take their failure for an error, so there is no back-off).
            # A minute where nobody says: too long for tests, and it does fail now and then, when kubelet hears of a pod sooner than
            # the API server's own authorizer does.
            "syncFrequency": "3s",
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "2s",
            "kubeAPIQPS": 1000,
            "kubeAPIBurst": 1000,
            "eventRecordQPS": 0,
            **changes,
        }  # fmt: skip
        path = self.folder / "kubelet.json"
        path.write_text(json.dumps(config, indent=1))
        return path

    def _containerd_config(self, binaries: Mapping[str, Path], network_plugins: Path | None) -> Path:
        networks, plugins = self.folder / "networks", self.folder / "network-plugins"
        networks.mkdir()
        plugins.mkdir()
        (plugins / "loopback").symlink_to(binaries["containerd"] / "loopback")
        network: dict[str, Any] = {"type": "loopback"}
        if network_plugins:
            for name in ("ptp", "host-local"):
                (plugins / name).symlink_to(network_plugins / name)
            addresses = {"subnet": "10.96.0.0/16", "rangeStart": "10.96.200.1", "rangeEnd": "10.96.250.250"}
            ipam = {"type": "host-local", "ranges": [[addresses]], "routes": [{"dst": "0.0.0.0/0"}]}
            network = {"type": "ptp", "ipam": ipam}
        conflist = {"cniVersion": "1.0.0", "name": network["type"], "plugins": [network]}
        (networks / "10-network.conflist").write_text(json.dumps(conflist))
        runc = {
            "BinaryName": str(binaries["node-programs"] / "unconfined"),
            "SystemdCgroup": False,
            "Root": str(self.folder / "runc"),
        }
        settings: dict[str, dict[str, Any]] = {
            '"io.containerd.cri.v1.images"': {"snapshotter": _snapshotter(self.folder)},
            '"io.containerd.cri.v1.images".pinned_images': {"sandbox": PAUSE},
            '"io.containerd.cri.v1.runtime"': {
                "enable_cdi": True,
                "cdi_spec_dirs": [str(self.cdi_dir)],
                # Machines that lack CAP_SYS_RESOURCE may not lower it, and runc then dies without a clear word.
                "restrict_oom_score_adj": True,
                "tolerate_missing_hugetlb_controller": True,
                "disable_apparmor": True,
            },
            '"io.containerd.cri.v1.runtime".cni': {"bin_dirs": [str(plugins)], "conf_dir": str(networks)},
            '"io.containerd.cri.v1.runtime".containerd.runtimes.runc': {
                "runtime_type": "io.containerd.runc.v2",
                "runtime_path": str(binaries["containerd"] / "containerd-shim-runc-v2"),
            },
            '"io.containerd.cri.v1.runtime".containerd.runtimes.runc.options': runc,
            '"io.containerd.nri.v1.nri"': {"disable": True},
        }
        lines = [
            "version = 3",
            f"root = {json.dumps(str(self.folder / 'containerd'))}",
            f"state = {json.dumps(str(self.folder / 'state'))}",
            "[grpc]",
            f"address = {json.dumps(str(self._socket))}",
        ]
        for table, values in settings.items():
            lines.append(f"[plugins.{table}]")
            lines += [
                f"{key} = {json.dumps(value)}" for key, value in values.items()
            ]  # JSON scalars and lists are TOML
        path = self.folder / "containerd.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


def _printed(log: str) -> str:
    """The line of the guest in a log file of kubelet's format; long lines are written in parts,
    marked P, the last F.
    """
    text = ""
    for line in log.splitlines():
        _, _, flag, content = [*line.split(" ", 3), "", "", ""][:4]
        text += content if flag == "P" else f"{content}\n"
    return _first_printed(text)


def _first_printed(text: str) -> str:
    return next((line.removeprefix(_MARK) for line in text.splitlines() if line.startswith(_MARK)), "")


def _bare(container_id: str) -> str:
    """The pod's status names the runtime in front of it."""
    return container_id.rpartition("/")[2]


def _snapshotter(folder: Path) -> str:
    """overlayfs, unless the folder is on one itself (a container): then plain copies."""
    kinds = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kinds[Path(before.split()[4])] = after.split()[0]
    holder = next(path for path in (folder, *folder.parents) if path in kinds)
    return "native" if kinds[holder] == "overlay" else "overlayfs"
