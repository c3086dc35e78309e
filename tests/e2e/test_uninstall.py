"""`hami-dra uninstall` as its own ServiceAccount: who runs goes on running, the rest is kube-scheduler's, nothing of ours stays."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from controller.reconcile.fence.probe import probe_bodies
from controller.webhook.convert import convert_pod
from controller.webhook.installation import manifests
from hack.installation import QUICK, Installation
from hami_dra.api import names
from hami_dra.kube.manifests import shipped
from tests.e2e.holder import Holder
from tests.e2e.lab import T4
from tests.e2e.objects import claim, legacy_pod, opaque, part, pod, request, template

pytestmark = pytest.mark.on_1_36

SYSTEM, PROBE = "hami-dra-system", "hami-dra-probe"
KIND_OF_POD = {"apiVersion": "v1", "kind": "Pod"}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/hami-dra-controller"
LEAVING = "hami.io/leaving-until"
FENCE = "hami.io/controller-allocates"
GATE = {"name": "hami.io/allocation"}
DONE = "done: running pods keep their devices, pending claims are kube-scheduler's now"
# Kubernetes puts these into every namespace, some time after it is there.
_IN_EVERY_NAMESPACE = {("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")}
_PASSING = {"events", "ipaddresses"}


@pytest.fixture
def before(control_plane):
    """What the cluster had before hami-dra came."""
    return everything(control_plane.api)


@pytest.fixture
def hami(control_plane, before):
    """An installation for each test: every test takes it out. A gate stays on for as long as there is no room."""
    installation = Installation(control_plane)
    installation.install()
    try:
        installation.start_controller(*QUICK, "--gate-patience=10m")
        installation.start_webhook()
        installation.wait_ready()
        yield installation
    finally:
        installation.remove()


def everything(api):
    """(resource, namespace, name) of every object of every kind that the API server serves."""
    roots = ["/api/v1"]
    roots += [f"/apis/{group['preferredVersion']['groupVersion']}" for group in api.get("/apis")["groups"]]
    found = set()
    for root in roots:
        for resource in api.get(root)["resources"]:
            if "/" not in resource["name"] and "list" in resource["verbs"] and resource["name"] not in _PASSING:
                for item in api.list(f"{root}/{resource['name']}"):
                    metadata = item["metadata"]
                    found.add((resource["name"], metadata.get("namespace", ""), metadata["name"]))
    return found


def command(lab, *words):
    """An uninstall with the rights of its own ServiceAccount."""
    token = lab.hami.uninstall_token()
    kubeconfig = str(lab.plane.kubeconfig_for(token))
    return [sys.executable, "-m", "controller.cli.main", "uninstall", *words, "--kubeconfig", kubeconfig]


def answered_no(lab):
    """What it printed on a terminal, where the answer to its question is no."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(lab), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # the terminal's other end is gone
        while more := os.read(ours, 65536):
            printed += more
            if printed.endswith(b"[y/N]: "):
                os.write(ours, b"n\n")
    os.close(ours)
    assert process.wait(30) == 1
    return printed.decode()


def check_it_can_be_looked_at_first(lab):
    """A dry run, and a no on a terminal, list what is there and change nothing."""
    ending = {
        each["metadata"]["name"]
        for each in lab.api.list("/api/v1/namespaces")
        if "deletionTimestamp" in each["metadata"]
    }
    present = {each for each in everything(lab.api) if not ending.intersection(each)}
    ran = subprocess.run(command(lab, "--dry-run"), capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    for line in ("MutatingAdmissionPolicy gate.hami.io", f"Lease {SYSTEM}/hami-dra-controller"):
        assert f"  {line}\n" in ran.stdout
    printed = answered_no(lab)
    assert printed.replace("\r\n", "\n").startswith(ran.stdout)
    assert "nothing was removed" in printed
    assert is_gated(lab)
    assert present <= everything(lab.api)


def uninstall(lab):
    """What it printed, line by line; it ends well, and complains about nothing."""
    ran = subprocess.run(
        command(lab, "--yes"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def left_behind(lab, before):
    """What is in the cluster because hami-dra was, once its manifests are deleted: neither the test's own objects nor its nodes."""
    for program in lab.hami.programs.values():
        program.process.stop()
    for item in [
        *manifests(lab.hami.choices),
        *shipped("manifests/optional/uninstall.yaml"),
        *shipped("deviceclasses"),
    ]:
        if item["kind"] != "Namespace":
            lab.api.remove(item)
    return {
        (resource, namespace, name)
        for resource, namespace, name in everything(lab.api) - before
        if lab.namespace not in (namespace, name)
        and not namespace.startswith("kube-")
        and resource not in ("nodes", "resourceslices")
        and (resource, name) not in {*_IN_EVERY_NAMESPACE, ("namespaces", SYSTEM), ("namespaces", PROBE)}
    }


def is_gated(lab):
    """Whether a pod has our gate."""
    return any(GATE in item["spec"].get("schedulingGates", ()) for item in lab.pods())


def admission_of_ours(lab):
    kinds = (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    )
    listed = [item for kind in kinds for item in lab.api.list(f"/apis/admissionregistration.k8s.io/v1/{kind}")]
    return [item["metadata"]["name"] for item in listed if "hami" in item["metadata"]["name"]]


def fenced_slices(lab):
    return [
        device["name"]
        for item in lab.slices()
        for device in item["spec"]["devices"]
        if any(taint["key"] == FENCE for taint in device.get("taints", ()))
    ]


def leave_to_kube_scheduler(lab, said):
    """Devices that carry the fence themselves are named; their publisher takes it off, as an administrator tells it to."""
    if lab.plane.version.startswith("1.36."):
        assert any(f"slices of nvidia.hami.io still carry the taint {FENCE}" in line for line in said)
        assert fenced_slices(lab)
        lab.republish(fence="off")
    assert fenced_slices(lab) == []


def check_native(lab, name):
    """A claim that says that it is ours, as before: nobody gates its pod, and kube-scheduler allocates."""
    lab.create(template(name, part("1Gi")))
    assert "schedulingGates" not in lab.create(pod(name, templates=[name]))["spec"]
    lab.wait_running(names=[name])
    assert lab.bound_by(name) == "default-scheduler"
    assert lab.overcommitted() == []
    assert not is_gated(lab)


def test_in_full_swing(lab, before):
    """Controller and webhook run, and go on running, as when a chart is taken out: they put nothing back."""
    lab.machines(T4, "t4")
    # with spaces in its parameters, so that no patch of its claims' metadata works
    lab.create_spaced(template("whole", request(), config=[opaque("another.example.com", note="a < b")]))
    lab.create(pod("a", templates=["whole"]), pod("b", templates=["whole"]))
    of_file = convert_pod(legacy_pod("c", gpu=1), lab.namespace).pod
    lab.create(of_file, legacy_pod("d", gpu=1, gpumem=15360))
    running = ["a", "b", "c", "d"]
    placed = lab.wait_running(names=running)
    lab.create(pod("waiting", templates=["whole"]))
    lab.wait_event("waiting", "FilteringFailed")
    assert GATE in lab.pod("waiting")["spec"]["schedulingGates"]
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in lab.pods()}
    rules = lab.hami.fence_rules()

    said = uninstall(lab)
    assert said[-1] == DONE
    assert any(line.startswith("waiting for the controller ") for line in said)
    assert any(line.startswith("the controller stood down; none acts before ") for line in said)
    for line in (
        "MutatingAdmissionPolicy gate.hami.io deleted",
        "MutatingAdmissionPolicy protect.hami.io deleted",
        "MutatingAdmissionPolicyBinding gate.hami.io deleted",
        "MutatingWebhookConfiguration hami-dra-webhook deleted",
        "ValidatingWebhookConfiguration hami-dra-webhook deleted",
        "ValidatingAdmissionPolicy fence.hami.io deleted",
        "ValidatingAdmissionPolicyBinding fence.hami.io deleted",
        f"gate {GATE['name']} lifted from 1 pod",
        f"Secret {SYSTEM}/hami-dra-webhook-certificate deleted",
    ):
        assert line in said
    assert all(f"DeviceTaintRule {rule['metadata']['name']} deleted" in said for rule in rules)
    assert (
        sum(f"ResourceClaimTemplate {lab.namespace}/" in line for line in said) == 1
    )  # of the converted file, not the user's
    leave_to_kube_scheduler(lab, said)

    assert (admission_of_ours(lab), lab.hami.fence_rules(), is_gated(lab)) == ([], [], False)
    assert [each for each in lab.placements() if each.pod in running] == placed
    assert {item["metadata"]["name"]: item["metadata"]["uid"] for item in lab.pods()} == uids

    lab.delete_pod("a")  # its card is free, and the pod that waited for one gets it without us
    lab.wait_running(names=["b", "c", "d", "waiting"])
    assert lab.bound_by("waiting") == "default-scheduler"
    lab.delete_pod("d")
    lab.wait_running(names=["b", "c", "waiting"])
    check_native(lab, "native")

    again = uninstall(lab)
    assert again[0].startswith("cluster: ")
    assert [line for line in again[1:] if "still carry" not in line] == [DONE]
    assert (admission_of_ours(lab), lab.hami.fence_rules(), is_gated(lab)) == ([], [], False)
    # The mark that keeps the controller quiet is the one thing that stays, until it is over.
    lab.hami.programs["controller"].process.stop()
    lab.api.patch(LEASE, {"metadata": {"annotations": {LEAVING: "2020-01-01T00:00:00Z"}}})
    assert f"Lease {SYSTEM}/hami-dra-controller deleted" in uninstall(lab)
    assert left_behind(lab, before) == set()


def test_after_a_crash(lab, before):
    """The controller died between two writes, and in the middle of a probe; a pod is gated that nobody will ever place."""
    lab.machines(T4, "t4")
    lab.create(claim("held", part("5Gi")), claim("half", part("3Gi")))
    lab.create(pod("running", claims=["held"]))
    placed = lab.wait_running(names=["running"])
    with Holder(lab.plane, "resourceclaims/status") as holder:
        holder.arm()
        lab.create(pod("stuck", claims=["half"]))
        holder.wait_caught()
        lab.hami.programs["controller"].process.kill()
        holder.drop()
    lab.hami.programs["webhook"].process.kill()
    lab.create(claim("later", part("2Gi")))
    lab.create(pod("gated", claims=["later"]))
    assert GATE in lab.pod("gated")["spec"]["schedulingGates"]
    create_probe(lab)
    for rule in lab.hami.fence_rules():
        lab.api.remove(rule)  # in vain: no controller lets it go

    check_it_can_be_looked_at_first(lab)
    said = uninstall(lab)
    assert said[-1] == DONE
    for line in (
        f"gate {GATE['name']} lifted from 2 pods",
        f"Pod {PROBE}/hami-dra-probe deleted",
        f"ResourceClaim {PROBE}/hami-dra-probe deleted",
        "DeviceClass hami-dra-probe deleted",
        f"Lease {SYSTEM}/hami-dra-controller deleted",
    ):
        assert line in said
    leave_to_kube_scheduler(lab, said)
    found = {each.pod: each for each in lab.wait_running(names=["running", "stuck", "gated"])}
    assert found["running"] == placed[0]
    assert {lab.bound_by(name) for name in found} == {"default-scheduler"}
    check_native(lab, "native")
    assert left_behind(lab, before) == set()


def create_probe(lab):
    """As the controller makes one, to see whether kube-scheduler respects the fence."""
    metadata = {"name": "hami-dra-probe", "labels": {"hami.io/probe": "true"}}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": {}}
    placed = {**metadata, "namespace": PROBE}
    for item in (
        device_class,
        {**claim("hami-dra-probe", request(device_class="hami-dra-probe")), "metadata": placed},
        {
            **KIND_OF_POD,
            **probe_bodies("hami-dra-probe", "nvidia.hami.io", names.PROBE_IMAGE)["Pod"],
            "metadata": placed,
        },
    ):
        lab.api.add(item)
