"""The story of the finding on a real control plane: quota 1, the claim of a running pod is stripped and deleted, and the tenant
has the same card allocated once more.

First the policy refuses it. Then an administrator takes the policy away, and the ledger holds: device and quota count until
the pod is over, also for a controller that was restarted meanwhile, which knows it from the node's driver.
"""

import shutil
import tempfile
from pathlib import Path

import grpc
import pytest

from hack.controlplane.api import ApiError
from hack.installation import DRIVER, QUICK
from hami_dra.api import names
from hami_dra.driver.kubelet.proto import dra_v1_pb2, dra_v1_pb2_grpc, registration_pb2, registration_pb2_grpc
from tests.e2e import observe
from tests.e2e.lab import T4
from tests.e2e.objects import claim, pod, request
from tests.hostile.cluster.tenant import Tenant

NODE = "stolen-card"
POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/claims.hami.io"
STRIPPED = {"metadata": {"finalizers": None}}


def whole_card(name, index):
    """A claim for one card of the node, so that tenants meet only where they are meant to."""
    selector = f'device.attributes["hami.io"].index == {index}'
    return claim(name, request(device_class="nvidia-gpu.hami.io", selector=selector))


@pytest.fixture(scope="module")
def hami(make_installation):
    """One of its own: its policy is taken away and its controller killed."""
    installation = make_installation(webhook=False)
    installation.start_controller(*QUICK)
    installation.wait_ready()
    return installation


@pytest.fixture
def kubelet(lab):
    """The driver of a node with four cards as a process of its own, and what kubelet would say to it."""
    root = Path(tempfile.mkdtemp(prefix="hami-"))  # the path of a socket has 107 bytes at most
    lab.plane.nodes.create(NODE)
    flags = (f"--machine={T4}", f"--root={root}", f"--cdi-dir={root / 'cdi'}", "--check-claims-every=1s")
    program = lab.hami.start_driver(NODE, *flags)
    one = Kubelet(lab, root)
    yield one
    program.process.stop()
    shutil.rmtree(root)
    lab.api.delete(observe.SLICES, fieldSelector=f"spec.nodeName={NODE}")


class Kubelet:
    def __init__(self, lab, root):
        socket = lab.hami.wait_for(
            "the driver's socket", lambda: next((root / "plugins_registry").glob("*-reg.sock"), None)
        )
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            self._service = stub.GetInfo(registration_pb2.InfoRequest(), wait_for_ready=True).endpoint
            stub.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(plugin_registered=True))

    def prepare(self, item):
        meta = item["metadata"]
        wanted = dra_v1_pb2.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        with grpc.insecure_channel(f"unix://{self._service}") as channel:
            plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)
            answer = plugin.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[wanted]))
        assert answer.claims[meta["uid"]].error == ""

    def unprepare(self, item):
        meta = item["metadata"]
        wanted = dra_v1_pb2.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        with grpc.insecure_channel(f"unix://{self._service}") as channel:
            plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)
            answer = plugin.NodeUnprepareResources(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[wanted]))
        assert answer.claims[meta["uid"]].error == ""


@pytest.fixture
def no_policy(lab):
    """`no_policy()`: an administrator takes the policy away; it is back after the test."""
    kept = lab.api.get(POLICY)
    yield lambda: lab.api.delete(POLICY)
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        kept["metadata"].pop(field, None)
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding"}
    lab.api.apply({**kind, **kept})


@pytest.fixture
def another_namespace(lab):
    """Of another tenant, without a quota."""
    name = f"{lab.namespace}-victim"
    lab.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    lab.api.wait_for("its account", lambda: lab.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    yield name
    for path in (
        f"/api/v1/namespaces/{name}/pods",
        observe.CLAIMS.replace("resourceclaims", f"namespaces/{name}/resourceclaims"),
    ):
        lab.api.delete(path, gracePeriodSeconds=0)
    lab.api.delete(f"/api/v1/namespaces/{name}")


def held_metric(lab):
    return lab.hami.leader().metric("hami_dra_held_by_vanished_claims", driver=DRIVER)


def reported(lab):
    """What the driver's slice says it holds for claims that are gone."""
    mine = [item for item in lab.slices() if item["spec"].get("nodeName") == NODE]
    return [item["metadata"].get("annotations", {}).get(names.HELD_CLAIMS) for item in mine]


@pytest.fixture
def mallory(lab):
    tenant = Tenant(lab.plane, lab.namespace)
    yield tenant
    tenant.close()


def test_a_card_in_use_is_not_given_away_again(lab, kubelet, no_policy, mallory, another_namespace):
    api = lab.api

    def add_to(namespace, *items):
        for item in items:
            api.add({**item, "metadata": {**item["metadata"], "namespace": namespace}})

    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpu": "1"}}}
    api.create(f"/api/v1/namespaces/{lab.namespace}/resourcequotas", quota)
    lab.create(whole_card("c0", 0), pod("a0", claims=["c0"]))
    lab.wait_running(names=["a0"])
    taken = lab.claim("c0")
    kubelet.prepare(taken)

    path = f"{mallory.claims()}/c0"
    with pytest.raises(ApiError, match=names.DELETE_PROTECTION):
        mallory.api.patch(path, STRIPPED)
    mallory.api.patch(path, {"metadata": {"labels": {"still": "mine"}}})

    no_policy()

    def stripped():
        try:
            return mallory.api.patch(path, STRIPPED)
        except ApiError:
            return None

    lab.hami.wait_for("the policy to be out of force", stripped)
    mallory.api.delete(path)
    lab.hami.wait_for("one device held", lambda: held_metric(lab) == 1)
    lab.wait_event("a0", "ClaimVanished", f"ResourceClaim {lab.namespace}/c0 is gone")

    # over the quota, and, for others, on the same card
    lab.create(whole_card("c1", 3), pod("a1", claims=["c1"]))
    lab.wait_event("a1", "FilteringFailed", "ResourceQuotaNotFit")
    add_to(another_namespace, whole_card("c2", 0), pod("b0", claims=["c2"]))

    def is_placed(namespace, name):
        found = api.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
        return "allocation" in found.get("status", {})

    lab.hami.wait_for("the driver to tell", lambda: any(reported(lab)))
    controller = lab.hami.programs["controller"].process
    controller.kill()
    controller.start()
    lab.hami.wait_ready()
    lab.hami.wait_for("the restarted controller to know", lambda: held_metric(lab) == 1)

    # it has decided on both anew: a pod that fits is placed after them
    lab.create(whole_card("c3", 3), pod("a2", claims=["c3"]))
    add_to(another_namespace, whole_card("c4", 2), pod("b1", claims=["c4"]))
    lab.hami.wait_for("a pod that fits", lambda: is_placed(another_namespace, "c4"))
    assert not is_placed(another_namespace, "c2")
    assert not is_placed(lab.namespace, "c1")
    assert not is_placed(lab.namespace, "c3")

    kubelet.unprepare(taken)
    lab.delete_pod("a0")
    lab.hami.wait_for("nothing held", lambda: held_metric(lab) == 0 and not any(reported(lab)))
    lab.hami.wait_for("the card free for others", lambda: is_placed(another_namespace, "c2"))
    lab.hami.wait_for("one more of the quota", lambda: is_placed(lab.namespace, "c1") or is_placed(lab.namespace, "c3"))
