"""Who may take the finalizer off an allocated claim (manifests/claim-policy.yaml), on a real API server.

Before this policy a tenant stripped the claim of a running pod, deleted it, and had the same device allocated once more.
"""

import contextlib

import pytest
import yaml

from hack.controlplane.api import ApiError
from hami_dra.api import names
from hami_dra.api.allocator import with_allocator
from hami_dra.kube.manifests import shipped_folder
from tests.e2e.objects import claim, part, pod
from tests.hostile.cluster.tenant import CLAIMS, PODS, Tenant

pytestmark = pytest.mark.on_1_36

FILES = ("namespace.yaml", "rbac-controller.yaml", "optional/uninstall.yaml", "claim-policy.yaml")
STRIPPED = {"metadata": {"finalizers": None}}
SYSTEM = "system:serviceaccount:kube-system:"
MAY_ALLOCATE = {
    "kube-scheduler": "system:kube-scheduler",
    "claim controller": f"{SYSTEM}resource-claim-controller",
    "hami-dra's controller": f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.CONTROLLER}",
}
UNINSTALL = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.UNINSTALL}"


def refusal(action, *arguments, **options):
    """The message of the API server, which refuses it."""
    with pytest.raises(ApiError) as caught:
        action(*arguments, **options)
    assert caught.value.status in (403, 422), caught.value
    return caught.value.message


def allocate(api, path, driver, by, *reserved):
    api.patch(path, {"metadata": {"finalizers": [names.DELETE_PROTECTION]}})
    allocation = {"devices": {"results": [{"request": "gpu", "driver": driver, "pool": "n1", "device": "gpu-0"}]}}
    allocation = with_allocator(allocation, by) if by else allocation
    api.patch(f"{path}/status", {"status": {"allocation": allocation, "reservedFor": list(reserved)}})


def release(api, path):
    api.patch(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
    api.patch(path, STRIPPED)


@pytest.fixture(scope="module")
def policy(control_plane):
    """The policy in force, with the accounts it speaks of."""
    api = control_plane.api
    objects = [raw for name in FILES for raw in yaml.safe_load_all((shipped_folder("manifests") / name).read_text())]
    for raw in objects:
        api.apply(raw)
    canary = f"{CLAIMS.format('default')}/canary"
    api.create(CLAIMS.format("default"), claim("canary", part("1Gi")))
    allocate(api, canary, "nvidia.hami.io", "hami-dra")
    with contextlib.closing(api.as_user("mallory", "nobody")) as mallory:
        name = "mallory-may-edit-claims"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        binding = api.create(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            {"metadata": {"name": name}, "roleRef": role, "subjects": [{**role, "kind": "User", "name": "mallory"}]},
        )

        def refused():
            try:
                mallory.patch(canary, STRIPPED, dryRun="All")
            except ApiError as error:
                return names.DELETE_PROTECTION in error.message
            return False

        api.wait_for("the policy in force", refused)
    release(api, canary)
    api.delete(canary)
    yield
    api.remove({**binding, "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"})
    for raw in reversed(objects):
        if raw["kind"] != "Namespace":
            api.remove(raw)


@pytest.fixture
def mallory(control_plane, policy, namespace):
    tenant = Tenant(control_plane, namespace)
    yield tenant
    tenant.close()


@pytest.fixture
def user(control_plane):
    """`user(name, group)`: a client of somebody else."""
    with contextlib.ExitStack() as clients:
        yield lambda *who: clients.enter_context(contextlib.closing(control_plane.api.as_user(*who)))


@pytest.fixture
def held(control_plane, namespace):
    """`held(name, driver=..., by=...)`: a claim that is allocated for a pod; returns its path."""
    api, made = control_plane.api, []

    def hold(name="held", driver="nvidia.hami.io", by="hami-dra"):
        user = api.create(
            PODS.format(namespace), pod(f"user-of-{name}", claims=[name], schedulingGates=[{"name": "x/y"}])
        )
        reserved = {"resource": "pods", "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]}
        made.append(api.create(CLAIMS.format(namespace), claim(name, part("1Gi"))))
        path = f"{CLAIMS.format(namespace)}/{name}"
        allocate(api, path, driver, by, reserved)
        return path

    yield hold
    for one in made:
        path = f"{CLAIMS.format(namespace)}/{one['metadata']['name']}"
        with contextlib.suppress(ApiError):
            release(api, path)


def test_a_tenant_cannot_strip_a_claim_that_holds_devices(mallory, held):
    """The finding: strip, delete, and the card under the running pod is free."""
    path = held()
    message = refusal(mallory.api.patch, path, STRIPPED)
    assert names.DELETE_PROTECTION in message
    assert "delete them" in message
    current = mallory.api.get(path)
    bare = {**current, "metadata": {**current["metadata"], "finalizers": []}}
    assert names.DELETE_PROTECTION in refusal(mallory.api.replace, path, bare)
    mallory.api.delete(path)
    assert mallory.api.get(path)["metadata"]["deletionTimestamp"], "it waits for its pods"
    assert names.DELETE_PROTECTION in refusal(mallory.api.patch, path, STRIPPED)


def test_what_else_a_tenant_does_to_the_claim_goes_on(mallory, held):
    path = held()
    mallory.api.patch(path, {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    mallory.api.patch(path, {"metadata": {"finalizers": [names.DELETE_PROTECTION, "mallory.example/mine"]}})
    mallory.api.patch(path, {"metadata": {"finalizers": [names.DELETE_PROTECTION]}})


def test_a_claim_that_kube_scheduler_allocated_is_kept_if_its_device_is_of_our_drivers(mallory, held):
    """Native mode: no mark in the allocation, and the device would be given away again just the same."""
    assert names.DELETE_PROTECTION in refusal(mallory.api.patch, held(by=""), STRIPPED)
    mallory.api.patch(held("other", driver="gpu.example.com", by=""), STRIPPED)


@pytest.mark.parametrize("name", MAY_ALLOCATE)
def test_who_may_allocate_may_take_it_off(user, policy, held, name):
    """By right and not by name, so a KCM without --use-service-account-credentials is let through as well."""
    user(MAY_ALLOCATE[name]).patch(held(), STRIPPED)


def test_so_may_a_controller_manager_with_one_account_for_all(control_plane, user, policy, held, create):
    """Without --use-service-account-credentials its roles are bound to its own user."""
    create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "kcm-with-one-account"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:controller:resource-claim-controller",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-controller-manager"}
            ],
        }
    )
    path, manager = held(), user("system:kube-controller-manager")

    def freed():
        try:
            return manager.patch(path, STRIPPED)
        except ApiError:
            return None

    control_plane.api.wait_for("the role binding", freed, seconds=10)


def test_an_administrator_may_repair_by_hand(user, policy, held):
    user("root", "system:masters").patch(held(), STRIPPED)


def test_the_garbage_collector_needs_no_exemption(control_plane, policy, held, mallory):
    """The finalizer that it takes off is another one."""
    path = held()
    mallory.api.delete(path, propagationPolicy="Foreground")
    control_plane.api.wait_for(
        "the garbage collector's own finalizer to be gone",
        lambda: mallory.api.get(path)["metadata"]["finalizers"] == [names.DELETE_PROTECTION],
        seconds=30,
    )
