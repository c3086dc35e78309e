"""The chart on a control plane of hack/controlplane, handled by the scripts of hack/kind: used by test_chart_on_cluster.py.

Pods of the chart run on nodes that kwok plays, and the programs run beside them: with the arguments that the chart gives them, as
the accounts that it makes for them; a driver with a token that is bound to its own pod, so that it writes slices of its node.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from hack.controlplane import build
from hack.controlplane.credentials import write_kubeconfig
from hack.controlplane.kwok_nodes import Kwok
from hack.controlplane.processes import free_port
from hack.installation import Installation, service_account_token
from hami_dra.api import names

ROOT = Path(__file__).resolve().parents[2]
KIND = ROOT / "hack/kind"
SYSTEM = names.SYSTEM_NAMESPACE
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
MACHINES = {"worker-0": "g4dn.12xlarge", "worker-1": "g5.12xlarge"}
OURS = (
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "rbac.authorization.k8s.io/v1/clusterroles",
    "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "rbac.authorization.k8s.io/v1/roles",
    "rbac.authorization.k8s.io/v1/rolebindings",
    "resource.k8s.io/v1/deviceclasses",
    "resource.k8s.io/v1/resourceslices",
    "resource.k8s.io/v1/resourceclaims",
    "resource.k8s.io/v1/resourceclaimtemplates",
)


def helm_home(home):
    """An environment in which Helm keeps what it keeps in a folder of the test."""
    folders = {name: str(home / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    return {**os.environ, **folders}


def containers(objects):
    """(object, pod spec, container) of everything that runs."""
    for raw in objects:
        pod = raw.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield raw, pod, container


class Story:
    def __init__(self, plane, helm, folder, rendered):
        """`rendered`: the objects of a chart with all programs but drivers, for their arguments."""
        self.plane, self.api, self.folder = plane, plane.api, folder
        self.rendered = rendered
        self.kwok = Kwok(plane).start()
        self.hami = Installation(plane)
        self.port = self.hami._webhook_port
        self.kubelets = Path(tempfile.mkdtemp(prefix="hami-"))  # short, for the paths of sockets
        self.environment = {
            **helm_home(helm.home),
            "HELM": str(helm.program),
            "KUBECTL": str(build.ensure("kubectl") / "kubectl"),
            "KUBECONFIG": str(plane.admin_kubeconfig),
            "TIMEOUT": "120",
        }
        for name, machine in MACHINES.items():
            labels = {"node.kubernetes.io/instance-type": machine}
            self.api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})

    def close(self):
        for program in self.hami.programs.values():
            program.process.stop()
        shutil.rmtree(self.kubelets)

    # --- scripts -----------------------------------------------------------------------------------------------------

    def begin(self, script, *arguments):
        with (self.folder / f"{script}.log").open("w") as log:
            return subprocess.Popen(
                [str(KIND / script), *arguments], env=self.environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT
            )

    def finish(self, script, process):
        """What it printed; it ended well, and no program ended meanwhile."""
        try:
            self.hami.wait_for(f"the end of {script}", lambda: process.poll() is not None, seconds=240)
        finally:
            process.kill()
            process.wait()
        text = (self.folder / f"{script}.log").read_text()
        assert process.returncode == 0, text
        return text

    def run(self, script, *arguments):
        return self.finish(script, self.begin(script, *arguments))

    def differences(self, objects, *options):
        """What `kubectl diff` finds between the objects and the cluster: its lines by `group.version.Kind.namespace.name`."""
        file = self.folder / "wanted.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        command = [self.environment["KUBECTL"], "diff", "-f", str(file), *options]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 1}, done.stderr
        parts = re.split(r"^diff -u -N \S*/LIVE-\d+/(\S+) \S+$", done.stdout, flags=re.MULTILINE)[1:]
        return {
            name: [line for line in text.splitlines() if re.match(r"[+-][^+-]", line)]
            for name, text in zip(parts[::2], parts[1::2], strict=True)
        }

    # --- programs ----------------------------------------------------------------------------------------------------

    def start(self, name, *overrides, port=0, tls=False, number=1):
        """The program of a Deployment or Job of that name, which is that of its account too. `number`: which of its replicas."""
        account = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{name}"
        self.api.wait_for(f"the account {name}", lambda: self.api.get(account), seconds=90)
        (arguments,) = [one["args"] for raw, _, one in containers(self.rendered) if raw["metadata"]["name"] == name]
        token = service_account_token(self.api, name)
        program = name.removeprefix("hami-dra-") + (f"-{number}" if number > 1 else "")
        return self._program(program, [*arguments, *overrides], token, port, tls=tls)

    def _program(self, name, arguments, token, port, *, tls=False):
        kubeconfig = self.folder / f"{name}.kubeconfig"
        write_kubeconfig(kubeconfig, url=self.plane.url, ca_file=self.plane.ca_file, token=token)
        listen = ["--host=127.0.0.1", f"--port={port}"] if port else []
        if name.startswith("controller"):
            listen.append("--dashboard-bind=127.0.0.1:0")  # this machine has only one port 8090
        command = [sys.executable, "-m", "controller.cli.main", *arguments, *listen, f"--kubeconfig={kubeconfig}"]
        return self.hami._run(name, command, port, tls=tls)

    def start_fleet(self):
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps/hami-dra-fleet"
        config = self.api.wait_for("the fleet file", lambda: self.api.get(path))
        fleet = self.folder / "fleet.yaml"
        fleet.write_text(config["data"]["fleet.yaml"])
        return self.start("hami-dra-fleet", f"--fleet={fleet}")

    def start_drivers(self):
        """What the pods of the DaemonSets should run, each with a kubelet's folder of its own. The nodes that have one."""

        def bound():
            found = self.api.list(PODS, labelSelector="app.kubernetes.io/component=driver")
            return [pod for pod in found if pod["spec"].get("nodeName")]

        pods = self.api.wait_for("a driver on each node", lambda: len(bound()) == len(MACHINES) and bound(), seconds=90)
        return [self._start_driver(pod) for pod in pods]

    def _start_driver(self, pod):
        node, port = pod["spec"]["nodeName"], free_port()
        (container,) = pod["spec"]["containers"]
        fields = {"spec.nodeName": node, "metadata.uid": pod["metadata"]["uid"]}
        env = {each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
        arguments = [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word) for word in container["args"]]
        token = service_account_token(self.api, pod["spec"]["serviceAccountName"], bound_to=pod)
        root = self.kubelets / node
        root.mkdir()
        here = [f"--root={root}", f"--cdi-dir={root}/cdi"]
        self._program(f"driver-{node}", [*arguments, *here], token, port)
        return node

    # --- the end -----------------------------------------------------------------------------------------------------

    def take_down(self):
        """down.sh, at work, and what the program in its Job said. Kubelets stand still until that has ended."""
        self.kwok.component.pause()
        down = self.begin("down.sh", "--keep-cluster")

        def bound():
            found = self.api.list(PODS, labelSelector="job-name=hami-dra-uninstall")
            return next((pod for pod in found if pod["spec"].get("nodeName")), None)

        pod = self.api.wait_for("the pod of the hook", bound, seconds=90)
        assert pod["spec"]["serviceAccountName"] == names.UNINSTALL
        program = self.start(names.UNINSTALL)
        del self.hami.programs[program.name]  # it may end
        self.api.wait_for("the end of the hook", lambda: not program.process.running, seconds=90)
        self.plane.nodes.finish_pod(SYSTEM, pod["metadata"]["name"])
        self.kwok.component.resume()
        for name in [name for name in self.hami.programs if name.startswith(("fleet", "driver"))]:
            self.hami.programs.pop(name).process.stop()
        for node in MACHINES:  # as kubelet does half a minute after its driver has gone
            self.api.delete(f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={node}")
        return down, program.process.log.read_text()

    def left_of_us(self):
        listed = [item["metadata"]["name"] for kind in OURS for item in self.api.list(f"/apis/{kind}")]
        return [name for name in listed if "hami" in name] + self.hami.fence_rules()
