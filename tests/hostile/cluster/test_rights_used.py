"""Every right that ships is used: what the roles allow against what the programs asked for, by the API server's audit log.

One story in which each program does all its work, under its own account: exclusive mode, uninstall in the cluster, native mode. A right
that no request of the story needed is too much; a request that was refused for want of a right is one too few. Rights whose
use takes minutes or a rare race are listed with the test that shows them.
"""

import asyncio
import contextlib
import http.client
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import pytest

from controller.reconcile.fence.probe import probe_bodies
from controller.reconcile.fence.rules import rule_body
from controller.webhook.convert import convert_pod
from controller.webhook.templates import TemplateCollector
from hack.controlplane.processes import free_port
from hack.controlplane.variants import GANGS
from hack.installation import QUICK, Installation
from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.driver.kubelet.proto import dra_v1_pb2, dra_v1_pb2_grpc
from hami_dra.kube.http import connect
from tests.e2e.lab import T4, Lab
from tests.e2e.objects import budget, claim, legacy_pod, opaque, part, pod, priority_class, request, template
from tests.support.gang_objects import COSCHEDULING_CRD, VOLCANO_CRD
from tests.unit.webhook.test_manifests import EVERYTHING, rules

ROOT = Path(__file__).parents[3]
NODE = "driven"
DRIVER = "nvidia.hami.io"
ACCOUNTS = (names.CONTROLLER, names.WEBHOOK, names.DRIVER, names.UNINSTALL)
SYNTHETIC = {("resource.k8s.io", "resourceclaims/binding"), ("resource.k8s.io", "resourceclaims/driver")}
"""Checked by the API server within writes of the status: tests/e2e/test_slice_writers.py."""
ELSEWHERE = {
    (
        names.CONTROLLER,
        "patch",
        "events.k8s.io",
        "events",
    ): "tests/unit/reconcile/runtime/test_events.py",  # once a minute
    (names.DRIVER, "list", "", "pods"): "tests/unit/driver/prepare/test_calls.py",  # claims of PodGroups
    (names.UNINSTALL, "get", "", "pods"): "tests/unit/reconcile/repair/test_uninstall.py",  # after a conflict
    (
        names.UNINSTALL,
        "create",
        "coordination.k8s.io",
        "leases",
    ): "tests/unit/reconcile/repair/test_uninstall.py",  # no election
    (names.UNINSTALL, "delete", "coordination.k8s.io", "leases"): "tests/e2e/test_uninstall.py",  # ten minutes later
}


def user(account):
    return f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account}"


def granted():
    """(account, verb, group, resource) of all that the shipped roles allow."""
    return {
        (account, verb, group, resource)
        for account in ACCOUNTS
        for verbs, group, resource, _, _ in rules(account, EVERYTHING)
        for verb in verbs
        if (group, resource) not in SYNTHETIC
    }


def asked(log):
    """The same of the requests in an audit log, and those that were refused by RBAC."""
    used, refused = set(), []
    for entry in log:
        about = entry.get("objectRef", {})
        if not about.get("resource"):
            continue  # discovery, /version
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        account = entry["user"]["username"].rpartition(":")[2]
        used.add((account, entry["verb"], about.get("apiGroup", ""), resource))
        if "sendInitialEvents=true" in entry["requestURI"]:  # in place of a list, where the API server can
            used.add((account, "list", about.get("apiGroup", ""), resource))
        if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
            refused.append((account, entry["verb"], entry["requestURI"]))
    return used, refused


class Story:
    """All of it on one control plane."""

    def __init__(self, plane, folder):
        self.plane, self.api = plane, plane.api
        self.folder = folder
        self.root = Path(tempfile.mkdtemp(prefix="hami-"))  # the path of a socket has 107 bytes at most
        self.hami = Installation(plane)
        self.hami.install(refuse_over_quota=True, preemption="best-effort")
        self.api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
        account = "/api/v1/namespaces/team/serviceaccounts/default"
        self.api.wait_for("the account of the namespace", lambda: self.api.get(account))
        self.lab = Lab(plane, self.hami, "team")
        plane.nodes.create(NODE)

    def close(self):
        for program in self.hami.programs.values():
            program.process.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def serve_pod_groups(self):
        """Those of projects; Kubernetes' own are served by the control plane."""
        for crd in (COSCHEDULING_CRD, VOLCANO_CRD):
            self.plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)

            def is_served(crd=crd):
                conditions = self.plane.api.read(crd).get("status", {}).get("conditions") or ()
                return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

            self.plane.api.wait_for(f"{crd['metadata']['name']} is served", is_served)

    def start_driver(self, mode, name):
        flags = (f"--mode={mode}", f"--machine={T4}", f"--root={self.root}", f"--cdi-dir={self.folder / 'cdi'}")
        self.hami.start_driver(NODE, *flags, "--device-policy=binpack", name=name)
        self.hami.wait_for("the slices of the driver", self.lab.slices)

    # --- exclusive mode ------------------------------------------------------------------------------------------------------

    def place_pods(self):
        """Templates, gates, marks, allocations, nominations, the use of a quota, events; a claim that cannot be patched."""
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpu": "9"}}}
        self.api.create("/api/v1/namespaces/team/resourcequotas", quota)
        self.lab.create(legacy_pod("legacy", gpu=1, gpumem=1000))
        self.lab.create_spaced(claim("spaced", part("1Gi"), config=[opaque("other.example.com", note="a < b")]))
        self.lab.create(pod("spaced", claims=["spaced"]))
        self.lab.wait_running(names=["legacy", "spaced"])
        stays = {names.PREEMPTIBLE: "false"}  # else the youngest goes, if it began in a later second than the others
        bound = pod("bound", claims=["bound"], gated=False, nodeName=NODE, annotations=stays)
        self.lab.create(claim("bound", part("1Gi")), bound)
        self.lab.wait_allocated("bound")
        path = "/api/v1/namespaces/team/resourcequotas/q"
        self.hami.wait_for("the use of the quota", lambda: names.QUOTA_USED in annotations(self.api.get(path)))

    def leave_an_orphan(self):
        """As a reservation that was dropped by hand: allocated by us, and nobody refers to it."""
        orphan = claim("orphan", part("1Gi"))
        orphan["metadata"]["finalizers"] = [names.DELETE_PROTECTION]
        self.lab.create(orphan)
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gone"}
        allocation = with_allocator({"devices": {"results": [result]}}, names.MANAGED_BY)
        self.api.patch(f"{self.lab.claims_path}/orphan/status", {"status": {"allocation": allocation}})
        self.hami.wait_for("the orphan freed", lambda: "allocation" not in self.lab.claim("orphan").get("status", {}))

    def preempt(self):
        """A tenant whose budget allows no eviction: it is asked for, refused, and the pod is deleted."""
        self.lab.create(priority_class("urgent", 1000), claim("first", request()), claim("second", request()))
        self.lab.create(pod("tenant", claims=["first"], labels={"app": "tenant"}), budget("tenant", "tenant", 1))
        self.lab.wait_running(names=["tenant"])
        self.lab.create(pod("urgent", claims=["second"], priorityClassName="urgent"))
        self.lab.wait_running(names=["urgent"])
        self.lab.delete_pod("urgent", gracePeriodSeconds=0)

    def look_at_the_page(self, port):
        token = self.plane.token_for_service_account("team", "default")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
            assert connection.getresponse().status == 403

    def prepare_as_kubelet(self):
        stored = self.lab.claim("bound")
        (socket,) = (self.root / "plugins" / DRIVER).glob("dra*.sock")
        asked_for = dra_v1_pb2.Claim(namespace="team", name="bound", uid=stored["metadata"]["uid"])
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[asked_for])
            answer = dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=30)
        assert [each.error for each in answer.claims.values()] == [""]
        self.hami.wait_for("status.devices", lambda: "devices" in self.lab.claim("bound")["status"])

    def trouble_the_driver(self):
        """An event about a cordon of nothing, a slice that is written again, and one that is not its own in its pool."""
        path = f"/api/v1/nodes/{NODE}"
        self.api.patch(path, {"metadata": {"annotations": {"hami.io/device-cordon": "3,17"}}})
        self.hami.wait_for("a cordoned card", lambda: "hami.io/cordoned" in str(self.lab.slices()))
        events = "/apis/events.k8s.io/v1/namespaces/default/events"
        self.hami.wait_for(
            "an event of the driver",
            lambda: [each for each in self.api.list(events) if each.get("reportingController") == "hami.io/driver"],
        )
        (own,) = self.lab.slices()
        extra = {"metadata": {"name": "extra"}, "spec": {**own["spec"], "devices": [{"name": "not-ours"}]}}
        self.api.create("/apis/resource.k8s.io/v1/resourceslices", extra)
        self.hami.wait_for("the extra slice gone", lambda: len(self.lab.slices()) == 1)

    def collect_templates(self):
        """What the controller does after a minute."""
        for name in ("short", "legacy"):
            converted = convert_pod(legacy_pod(f"{name}-of-file", gpu=1, gpumem=7 + len(name)), "team")
            self.lab.create(converted.pod)
        templates = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
        self.hami.wait_for("both templates", lambda: len(self.api.list(templates)) == 2)
        self.lab.delete_pod("short-of-file", gracePeriodSeconds=0)
        token = self.plane.token_for_service_account(names.SYSTEM_NAMESPACE, names.CONTROLLER)

        async def collect():
            cluster = connect(str(self.plane.kubeconfig_for(token)))
            stored = (await cluster.list(kinds.RESOURCE_CLAIM_TEMPLATE)).items
            legacy = self.lab.pod("legacy-of-file")["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
            used = {f"team/{legacy}"}
            await TemplateCollector(cluster, lambda: stored, lambda key: key in used, after=0.0).once()
            await cluster.close()

        asyncio.run(collect())
        assert len(self.api.list(templates)) == 1

    # --- uninstall -----------------------------------------------------------------------------------------------------------

    def uninstall(self):
        """In full swing, with something of everything to take away."""
        self.lab.create(template("huge", part("900Gi")), pod("waiting", templates=["huge"]))
        self.lab.create(legacy_pod("gone", gpu=1, gpumem=9))
        self.hami.wait_for("its claim", lambda: any("gone" in each["metadata"]["name"] for each in self.lab.claims()))
        for name in ("controller", "webhook"):
            self.hami.programs.pop(name).process.stop()
        self.lab.delete_pod("gone", gracePeriodSeconds=0)
        probe = probe_bodies(names.PROBE, DRIVER, names.PROBE_IMAGE)
        self.api.create("/apis/resource.k8s.io/v1/deviceclasses", probe["DeviceClass"])
        folder = f"namespaces/{names.PROBE_NAMESPACE}"
        self.api.create(f"/apis/resource.k8s.io/v1/{folder}/resourceclaims", probe["ResourceClaim"])
        self.api.create(
            f"/api/v1/{folder}/pods", {**probe["Pod"], "spec": {**probe["Pod"]["spec"], "schedulerName": "x"}}
        )
        kubeconfig = self.plane.kubeconfig_for(self.hami.uninstall_token())
        command = [sys.executable, "-m", "controller.cli.main", "uninstall", "--yes", "--kubeconfig", str(kubeconfig)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    # --- native mode -----------------------------------------------------------------------------------------------------------

    def go_native(self):
        """Rules of exclusive mode that somebody left are taken away; devices are ordered by what is in use."""
        self.hami.programs.pop("driver").process.stop()
        self.api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/leases/{names.CONTROLLER}")
        self.hami.install(mode="native")
        self.api.create("/apis/resource.k8s.io/v1/devicetaintrules", rule_body("left.example.com"))
        self.hami.start_controller(*QUICK, name="controller-native")
        self.hami.start_webhook(name="webhook")
        self.start_driver("native", "driver-native")
        self.hami.wait_ready()
        self.hami.wait_for("the rule gone", lambda: not self.hami.fence_rules())
        self.lab.create(legacy_pod("plain", gpu=1))
        self.hami.wait_for("claims watched", lambda: self.hami.programs["driver-native"].get("/healthz")[0] == 200)


def annotations(item):
    return item["metadata"].get("annotations", {})


@pytest.mark.timeout(420)
def test_every_right_is_used_and_none_is_missing(make_control_plane, tmp_path):
    plane = make_control_plane(GANGS, audited=[user(account) for account in ACCOUNTS])
    story = Story(plane, tmp_path)
    try:
        port = free_port()
        story.serve_pod_groups()
        story.start_driver("exclusive", "driver")
        preemption = ("--preemption=devices", "--preemption-pdb=best-effort")
        story.hami.start_controller(*QUICK, *preemption, f"--dashboard-bind=127.0.0.1:{port}", "--gangs-of=volcano")
        story.hami.start_webhook()
        story.hami.wait_ready()
        story.place_pods()
        story.preempt()
        story.leave_an_orphan()
        story.look_at_the_page(port)
        story.prepare_as_kubelet()
        story.trouble_the_driver()
        story.collect_templates()
        story.uninstall()
        story.go_native()
    finally:
        story.close()  # a watch is logged when it ends
    used, refused = asked(plane.audit_log())
    assert refused == []
    unused = granted() - used - set(ELSEWHERE)
    assert unused == set()
    assert {right for right in ELSEWHERE if right not in granted()} == set()
    assert all((ROOT / path).is_file() for path in ELSEWHERE.values())
