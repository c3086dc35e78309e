"""`hami-dra doctor` and `hami-dra status` on a real control plane: a healthy cluster, then one that is broken in several places."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from hack.installation import QUICK, Installation
from tests.e2e.lab import T4, Lab
from tests.e2e.objects import claim, part, pod

SYSTEM = "hami-dra-system"
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"
WEBHOOK = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "hami-dra-webhook",
        "labels": {"app.kubernetes.io/part-of": "hami-dra", "app.kubernetes.io/version": "0.9.1"},
    },
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "none"}},
        "template": {
            "metadata": {"labels": {"app": "none"}},
            "spec": {
                "containers": [
                    {"name": "main", "image": "none", "args": ["webhook", "--runtime-class=nvidia=not-there"]}
                ]
            },
        },
    },
}
"""As the chart makes it with `vendors.nvidia.podRuntimeClassName`."""
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OTHER_SCREEN, FIRST_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
def lab(control_plane, namespace):
    """An installation of the test's own: it is broken in the end."""
    hami = Installation(control_plane)
    hami.install()
    lab = Lab(control_plane, hami, namespace)
    try:
        hami.start_controller(*QUICK)
        lab.webhook = hami.start_webhook()
        hami.wait_ready()
        yield lab
    finally:
        lab.close()
        hami.remove()


def hami_dra(*words, kubeconfig):
    """Exit status, and stdout as JSON."""
    command = [sys.executable, "-m", "controller.cli.main", *words, "-o", "json", "--kubeconfig", str(kubeconfig)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else ended.stderr


def viewer_kubeconfig(lab, tmp_path):
    """Of a ServiceAccount that has nothing but the role hami-dra-viewer."""
    lab.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "looks-on"}})
    subject = {"kind": "ServiceAccount", "name": "looks-on", "namespace": lab.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hami-dra-viewer"}
    binding = {"metadata": {"name": f"viewer-{lab.namespace}"}, "roleRef": role, "subjects": [subject]}
    lab.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **binding})
    path = f"/api/v1/namespaces/{lab.namespace}/serviceaccounts/looks-on/token"
    answer = lab.api.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    cluster = {"server": lab.plane.url, "certificate-authority": str(lab.plane.ca_file)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "viewer",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "viewer", "user": {"token": answer["status"]["token"]}}],
        "contexts": [{"name": "viewer", "context": {"cluster": "lab", "user": "viewer"}}],
    }
    file = tmp_path / "viewer.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def is_proven(rules):
    return any("hami.io/fence-proven" in rule["metadata"].get("annotations", {}) for rule in rules)


def found(report):
    return {(each["check"], each["object"]) for each in report["findings"]}


def test_a_healthy_cluster_then_its_faults(lab, tmp_path):
    lab.machines(T4, "n1")
    lab.create(claim("share", part(memory="4Gi", cores="30")), pod("train", claims=["share"]))
    lab.wait_running(names=["train"])
    admin = lab.plane.admin_kubeconfig
    # devices that came after the fence was made are probed some seconds later
    lab.hami.wait_for("the fence proven", lambda: is_proven(lab.hami.fence_rules("nvidia.hami.io")))

    code, report = hami_dra("doctor", kubeconfig=admin)
    assert (code, report["findings"], report["skipped"]) == (0, [], {}), report
    viewer = viewer_kubeconfig(lab, tmp_path)
    code, report = hami_dra("doctor", kubeconfig=viewer)
    assert (code, report["findings"]) == (0, []), report
    assert "rights" in report["skipped"]

    code, status = hami_dra("status", "-n", lab.namespace, kubeconfig=viewer)
    (card,) = status["cards"]
    (tenant,) = card["tenants"]
    assert (card["node"], tenant["pod"], tenant["memory"], tenant["cores"]) == ("n1", "train", 4 << 30, 30)
    assert status["packing"][0]["freeCards"] == 3

    watched(lab, viewer)
    watched_on_a_terminal(viewer)

    # nobody puts anything back any more
    lab.hami.leader().process.stop()
    lab.webhook.process.stop()
    lab.api.delete(f"{RULES}/hami-dra-fence-nvidia.hami.io")
    lab.api.delete(f"{RBAC}/clusterrolebindings/hami-dra-controller")
    lab.api.delete(f"{ADMISSION}/validatingadmissionpolicybindings/fence.hami.io")
    for name in ("one", "two"):
        lab.create({**CLASS, "metadata": {"name": f"{lab.namespace}-{name}"}})
    lab.create(HALF_A_POOL, NIGHTLY)
    lab.api.create(DEPLOYMENTS, WEBHOOK)
    expected = {
        ("webhook", "RuntimeClass not-there"),
        ("controller", f"Lease {SYSTEM}/hami-dra-controller"),
        ("fence", "DeviceTaintRule hami-dra-fence-nvidia.hami.io"),
        ("rights", f"ServiceAccount {SYSTEM}/hami-dra-controller"),
        ("policies", "ValidatingAdmissionPolicyBinding fence.hami.io"),
        ("webhook", "MutatingWebhookConfiguration hami-dra-webhook"),
        ("classes", f"DeviceClass {lab.namespace}-one, {lab.namespace}-two"),
        ("slices", "Pool gpu.example.com/half"),
        ("notices", f"CronJob {lab.namespace}/nightly"),
    }

    def reported():
        """The API server's authorizer hears of the binding a moment later."""
        code, report = hami_dra("doctor", kubeconfig=admin)
        return code == 1 and expected <= found(report) and report

    try:
        report = lab.api.wait_for(f"findings {expected}", reported, seconds=30)
        code, versions = hami_dra("version", kubeconfig=admin)
        assert (code, versions["webhook"]["version"], versions["controller"]) == (0, "0.9.1", None)
        assert versions["kubernetes"].startswith(f"v{lab.plane.version}")
    finally:
        lab.api.delete(f"{DEPLOYMENTS}/hami-dra-webhook")
    assert all(each["fix"] for each in report["findings"])


def watched(lab, kubeconfig):
    """A line now, another when a second pod has its share; Ctrl-C ends it in peace."""
    command = [
        sys.executable,
        "-m",
        "controller.cli.main",
        "status",
        "--watch",
        "-o",
        "json",
        "--kubeconfig",
        str(kubeconfig),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert pods_in(process.stdout.readline()) == {"train"}
        lab.create(claim("more", part(memory="1Gi")), pod("second", claims=["more"]))
        while pods_in(process.stdout.readline()) != {"train", "second"}:
            pass  # lines about other changes; pytest's time limit ends a wait in vain
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=30)
        assert (process.returncode, problems) == (0, "")
    finally:
        process.kill()


def watched_on_a_terminal(kubeconfig):
    """Drawn on the second screen; Ctrl-C gives the first one back."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "controller.cli.main", "status", "--watch", "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    try:
        drawn = b""
        while b"train" not in drawn:
            drawn += os.read(ours, 65536)
        assert OTHER_SCREEN in drawn
        process.send_signal(signal.SIGINT)
        rest = b""
        with contextlib.suppress(OSError):  # the terminal's other end is gone
            while more := os.read(ours, 65536):
                rest += more
        assert process.wait(30) == 0
        assert FIRST_SCREEN in drawn + rest
        assert b"Traceback" not in rest
    finally:
        process.kill()
        os.close(ours)


def pods_in(line):
    return {tenant["pod"] for card in json.loads(line)["cards"] for tenant in card["tenants"]}


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "spec": {"extendedResourceName": "example.com/doctor", "selectors": [{"cel": {"expression": "false"}}]},
}
NIGHTLY = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "nightly", "annotations": {"hami.io/gpu-scheduler-policy": "binpack"}},
    "spec": {
        "schedule": "0 0 1 1 *",
        "jobTemplate": {
            "spec": {
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}
            }
        },
    },
}
"""Its policy stands where nothing reads it."""
HALF_A_POOL = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "half-a-pool"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "half", "generation": 1, "resourceSliceCount": 2},
        "devices": [{"name": "gpu-0"}],
    },
}
