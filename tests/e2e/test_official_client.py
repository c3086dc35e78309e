"""hami-dra as the official Python client sees it: its typed models create pods, claims and templates, watch them, and read
every object that hami-dra writes without losing a field. And a user who logs in by OIDC, with a token that has expired.
"""

import datetime as dt
import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import yaml
from kubernetes import client, watch
from kubernetes.config import new_client_from_config

from hami_dra.api import names
from tests.e2e.lab import T4
from tests.e2e.objects import CLASS, legacy_pod
from tests.support.identity_provider import CLIENT_ID, IdentityProvider

CONTAINER = "main"
OWN_NAME = client.ResourceV1ResourceClaim
"""The client's watch looks for a `V1ResourceClaim`; version 37.0.2 has none."""


@pytest.fixture
def official(control_plane):
    """An `ApiClient` of the administrator."""
    with new_client_from_config(str(control_plane.admin_kubeconfig)) as api_client:
        yield api_client


def devices(memory):
    exactly = client.V1ExactDeviceRequest(
        device_class_name=CLASS,
        capacity=client.V1CapacityRequirements(requests={"memory": memory, "cores": "0"}),
    )
    return client.V1DeviceClaim(requests=[client.V1DeviceRequest(name="gpu", exactly=exactly)])


def typed_pod(name, **source):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"hami.io/dra": "true"}),
        spec=client.V1PodSpec(
            containers=[
                client.V1Container(
                    name=CONTAINER,
                    image="none",
                    resources=client.V1ResourceRequirements(claims=[client.CoreV1ResourceClaim(name="gpu")]),
                )
            ],
            resource_claims=[client.V1PodResourceClaim(name="gpu", **source)],
        ),
    )


def without_empty(value):
    """Plain JSON without what is not set, and times as numbers: both sides spell them in ways of their own."""
    if isinstance(value, dict):
        kept = {key: without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, {}, [], "", 0, False)}
    if isinstance(value, list):
        return [without_empty(each) for each in value]
    if isinstance(value, str) and len(value) >= 20 and value[10] == "T":
        try:
            return dt.datetime.fromisoformat(value).timestamp()
        except ValueError:
            return value
    return value


def test_what_typed_models_create_is_placed_and_watched(lab, official):
    lab.machines(T4, "n1")
    core, resources = client.CoreV1Api(official), client.ResourceV1Api(official)
    seen = {"pods": [], "claims": []}

    def follow(what, listing, kind=None):
        for event in watch.Watch(kind).stream(listing, lab.namespace, timeout_seconds=30):
            seen[what].append((event["type"], event["object"]))
            if what == "pods" and len({p.metadata.name for _, p in seen["pods"] if p.spec.node_name}) == 2:
                return
            if what == "claims" and sum(bool(c.status and c.status.allocation) for _, c in seen["claims"]) >= 2:
                return

    watchers = [
        threading.Thread(target=follow, args=("pods", core.list_namespaced_pod)),
        threading.Thread(target=follow, args=("claims", resources.list_namespaced_resource_claim, OWN_NAME)),
    ]
    for each in watchers:
        each.start()
    resources.create_namespaced_resource_claim(
        lab.namespace,
        client.ResourceV1ResourceClaim(
            metadata=client.V1ObjectMeta(name="own"), spec=client.V1ResourceClaimSpec(devices=devices("4Gi"))
        ),
    )
    resources.create_namespaced_resource_claim_template(
        lab.namespace,
        client.V1ResourceClaimTemplate(
            metadata=client.V1ObjectMeta(name="part"),
            spec=client.V1ResourceClaimTemplateSpec(spec=client.V1ResourceClaimSpec(devices=devices("2Gi"))),
        ),
    )
    core.create_namespaced_pod(lab.namespace, typed_pod("a", resource_claim_name="own"))
    core.create_namespaced_pod(lab.namespace, typed_pod("b", resource_claim_template_name="part"))
    lab.wait_running(names=["a", "b"])
    for each in watchers:
        each.join(30)
        assert not each.is_alive()
    first = next(pod for kind, pod in seen["pods"] if kind == "ADDED" and pod.metadata.name == "a")
    assert [gate.name for gate in first.spec.scheduling_gates] == [names.GATE]
    last = {pod.metadata.name: pod for _, pod in seen["pods"]}
    assert {pod.spec.node_name for pod in last.values()} == {"n1"}
    allocated = {claim.metadata.name: claim for _, claim in seen["claims"] if claim.status and claim.status.allocation}
    [result] = allocated["own"].status.allocation.devices.results
    assert result.pool == "n1"
    assert result.consumed_capacity["memory"] == "4Gi"
    assert result.share_id


def test_every_object_that_hami_dra_writes_is_read_without_losing_a_field(lab, official):
    lab.machines(T4, "n1")
    lab.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {"hard": {"limits.nvidia.com/gpu": "2"}},
        }
    )
    lab.create(legacy_pod("fits", gpu=1, gpumem=4000))
    lab.create(legacy_pod("never", gpu=1, gpumem=400_000))
    lab.wait_running(names=["fits"])
    lab.wait_event("never", "FilteringFailed")
    lab.hami.wait_for(
        "the quota's usage",
        lambda: (
            "hami.io/quota-used"
            in lab.api.get(f"/api/v1/namespaces/{lab.namespace}/resourcequotas/q")["metadata"].get("annotations", {})
        ),
    )
    core, resources, events = client.CoreV1Api(official), client.ResourceV1Api(official), client.EventsV1Api(official)
    admission, leases = client.AdmissionregistrationV1Api(official), client.CoordinationV1Api(official)
    rbac, apps = client.RbacAuthorizationV1Api(official), client.AppsV1Api(official)
    admissions = "/apis/admissionregistration.k8s.io/v1"
    written = {
        "/apis/resource.k8s.io/v1/resourceslices": resources.list_resource_slice,
        "/apis/resource.k8s.io/v1/deviceclasses": resources.list_device_class,
        "/apis/resource.k8s.io/v1/resourceclaims": resources.list_resource_claim_for_all_namespaces,
        "/api/v1/pods": core.list_pod_for_all_namespaces,
        "/api/v1/resourcequotas": core.list_resource_quota_for_all_namespaces,
        "/api/v1/serviceaccounts": core.list_service_account_for_all_namespaces,
        "/api/v1/services": core.list_service_for_all_namespaces,
        "/apis/apps/v1/deployments": apps.list_deployment_for_all_namespaces,
        f"/apis/events.k8s.io/v1/namespaces/{lab.namespace}/events": partial(
            events.list_namespaced_event, lab.namespace
        ),
        "/apis/coordination.k8s.io/v1/leases": leases.list_lease_for_all_namespaces,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles": rbac.list_cluster_role,
        f"{admissions}/validatingadmissionpolicies": admission.list_validating_admission_policy,
        f"{admissions}/validatingadmissionpolicybindings": admission.list_validating_admission_policy_binding,
        f"{admissions}/mutatingwebhookconfigurations": admission.list_mutating_webhook_configuration,
        f"{admissions}/validatingwebhookconfigurations": admission.list_validating_webhook_configuration,
    }
    counts = {}
    for path, listing in written.items():
        raw = {item["metadata"]["uid"]: item for item in lab.api.list(path)}
        for typed in listing().items:
            item = raw.get(typed.metadata.uid)
            plain = official.sanitize_for_serialization(typed)
            if item is None or item["metadata"]["resourceVersion"] != plain["metadata"]["resourceVersion"]:
                continue  # it came or changed between the two lists
            counts[path] = counts.get(path, 0) + 1
            assert without_empty(plain) == without_empty({**item, "apiVersion": None, "kind": None}), path
    for path in (
        "resourceslices",
        "deviceclasses",
        "resourceclaims",
        "pods",
        "resourcequotas",
        "events",
        "leases",
        "clusterroles",
    ):
        assert any(known.endswith(f"/{path}") for known in counts), path
    assert counts[f"{admissions}/validatingadmissionpolicies"] > 3
    assert counts[f"{admissions}/mutatingwebhookconfigurations"] == 1
    refused = next(
        each
        for each in events.list_namespaced_event(lab.namespace).items
        if each.reason == "FilteringFailed" and each.regarding.name == "never"
    )
    assert refused.note.startswith("no node fits: needs 400000 MiB on one device; the largest has 15360 MiB")
    assert json.loads(
        core.read_namespaced_resource_quota("q", lab.namespace).metadata.annotations["hami.io/quota-used"]
    )


def test_a_user_whose_oidc_token_has_expired_stays_logged_in(make_control_plane, tmp_path):
    with IdentityProvider(tmp_path) as provider:
        authority = tmp_path / "idp.crt"
        authority.write_text(provider.authority)
        plane = make_control_plane(
            extra_args={
                "kube-apiserver": [
                    f"--oidc-issuer-url={provider.url}",
                    f"--oidc-client-id={CLIENT_ID}",
                    f"--oidc-ca-file={authority}",
                    "--oidc-username-claim=sub",
                    "--oidc-username-prefix=oidc:",
                ]
            }
        )
        plane.api.add(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "jane"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "User", "name": "oidc:jane", "apiGroup": "rbac.authorization.k8s.io"}],
            }
        )
        plane.nodes.create("n1")
        kubeconfig = tmp_path / "kubeconfig"
        document = yaml.safe_load(Path(plane.admin_kubeconfig).read_text())
        document["users"] = [{"name": document["contexts"][0]["context"]["user"], "user": provider.user()}]
        kubeconfig.write_text(yaml.safe_dump(document))

        def status():
            command = [str(Path(sys.executable).with_name("hami-dra")), "status", "--kubeconfig", str(kubeconfig)]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        # its first look at the identity provider may come later than that it is ready
        done = plane.api.wait_for("jane to be let in", lambda: (one := status()).returncode == 0 and one, every=1)
        assert "n1" in done.stdout or "no devices" in done.stdout.lower()
        assert provider.refreshed[0] == "refresh-0"
        [user] = yaml.safe_load(kubeconfig.read_text())["users"]
        kept = user["user"]["auth-provider"]["config"]
        assert kept["refresh-token"] == provider.refresh_token
        before = len(provider.refreshed)
        assert status().returncode == 0
        assert len(provider.refreshed) == before, "the stored token is used"
