"""Who may write ResourceSlices, and what else the driver may do, on a real API server: manifests/slice-policy.yaml and
manifests/rbac-driver.yaml, with tokens as kubelet gives them to pods.
"""

import contextlib

import pytest
import yaml

from hack.controlplane.api import ApiError
from hack.installation import service_account_token
from hami_dra.api import names
from hami_dra.kube.manifests import shipped_folder
from tests.e2e.objects import claim, part

pytestmark = pytest.mark.on_1_36

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/pods"
FILES = ("namespace.yaml", "rbac-driver.yaml", "slice-policy.yaml")
MINE, OTHER = "gpu-1", "gpu-2"


def resource_slice(name, node=MINE, driver="nvidia.hami.io", pool=""):
    pool = {"name": pool or node or "network", "generation": 1, "resourceSliceCount": 1}
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, **where, "devices": [{"name": "gpu-0"}]},
    }


def refusal(action, *arguments, status=403):
    """The message of the API server, which refuses it."""
    with pytest.raises(ApiError) as caught:
        action(*arguments)
    assert caught.value.status == status, caught.value
    return caught.value.message


def known_to_the_authorizer(api, kubelet, name):
    """Wait for the node authorizer: it learns through a watch which slices are a node's, so a moment after they are made."""

    def may_read():
        try:
            return kubelet.get(f"{SLICES}/{name}")
        except ApiError as error:
            if "no relationship found" not in error.message:
                raise
            return None

    api.wait_for(f"the node authorizer knows slice {name}", may_read)


@pytest.fixture(scope="module")
def driver_on(control_plane):
    """`driver_on(node)`: a client with the token of a driver pod there; `None`: with one that is bound to nothing."""
    api = control_plane.api
    objects = [raw for name in FILES for raw in yaml.safe_load_all((shipped_folder("manifests") / name).read_text())]
    for raw in objects:
        api.apply(raw)
    clients = {}

    def client(node):
        if node not in clients:
            bound_to = _driver_pod(api, node) if node else None
            clients[node] = control_plane.api_as(service_account_token(api, names.DRIVER, bound_to=bound_to))
        return clients[node]

    # a policy takes some seconds until it is in force
    anyone = client(None)
    probe = resource_slice("probe")

    def refused():
        try:
            anyone.create(SLICES, probe, dryRun="All")
        except ApiError as error:
            return error.status == 403
        return False

    api.wait_for("the policy in force", refused)
    yield client
    for one in clients.values():
        one.close()
    for raw in reversed(objects):
        if raw["kind"] != "Namespace":
            api.remove(raw)
    api.delete(PODS, gracePeriodSeconds=0)


def _driver_pod(api, node):
    """As the DaemonSet makes it, bound to the node by the scheduler's own hand."""
    account = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/serviceaccounts/{names.DRIVER}"
    api.wait_for("the driver's account", lambda: api.get(account))
    container = {"name": "driver", "image": "none"}
    spec = {"serviceAccountName": names.DRIVER, "nodeName": node, "containers": [container]}
    return api.create(PODS, {"metadata": {"name": f"driver-{node}"}, "spec": spec})


@pytest.fixture
def slices(control_plane):
    """`slices(item)` adds one as the administrator; all are removed after the test."""
    api = control_plane.api
    yield lambda item: api.create(SLICES, item)
    for item in api.list(SLICES):
        api.delete(f"{SLICES}/{item['metadata']['name']}")


def test_the_driver_writes_the_slices_of_its_own_node(driver_on, slices):
    driver = driver_on(MINE)
    path = f"{SLICES}/own"
    driver.create(SLICES, resource_slice("own"))
    tainted = [{"name": "gpu-0", "taints": [{"key": "hami.io/unhealthy", "effect": "NoSchedule"}]}]
    driver.patch(path, {"spec": {"devices": tainted}})
    driver.delete(path, missing_ok=False)
    assert driver.list(SLICES) == []


def test_a_token_that_is_bound_to_the_node_itself_does_as_well(control_plane, driver_on, nodes, slices):
    nodes.create("gpu-3", wait=False)
    node = control_plane.api.get("/api/v1/nodes/gpu-3")
    token = service_account_token(control_plane.api, names.DRIVER, bound_to=node)
    with contextlib.closing(control_plane.api_as(token)) as driver:
        driver.create(SLICES, resource_slice("third", "gpu-3"))
        assert "must not write" in refusal(driver.create, SLICES, resource_slice("own", MINE))


def test_the_slices_of_another_node_are_refused(driver_on, slices):
    slices(resource_slice("other", OTHER))
    driver, path = driver_on(MINE), f"{SLICES}/other"
    wanted = f"the driver on node {MINE} must not write slices of node {OTHER}"
    assert wanted in refusal(driver.create, SLICES, resource_slice("more", OTHER))
    assert wanted in refusal(driver.patch, path, {"metadata": {"labels": {"a": "b"}}})
    assert wanted in refusal(driver.delete, path)
    driver_on(OTHER).delete(path, missing_ok=False)


def test_slices_in_the_pool_of_another_node_are_refused(driver_on, slices):
    """Devices are known by driver, pool and name: such a slice would offer another node's cards."""
    forged = resource_slice("forged", MINE, pool=OTHER)
    message = refusal(driver_on(MINE).create, SLICES, forged)
    assert f"the driver on node {MINE} must not write slices of pool {OTHER}" in message
    slices(forged)
    path = f"{SLICES}/forged"
    assert f"of pool {OTHER}" in refusal(driver_on(MINE).patch, path, {"metadata": {"labels": {"a": "b"}}})
    assert "must not write" in refusal(driver_on(OTHER).delete, path)
    driver_on(MINE).delete(path, missing_ok=False)


def test_a_kubelet_cannot_do_what_its_driver_must_not(control_plane, driver_on, nodes, slices):
    """Who has taken over a node has its kubelet's credentials too."""
    nodes.create(MINE, wait=False)
    with contextlib.closing(control_plane.api.as_user(f"system:node:{MINE}", "system:nodes")) as kubelet:
        message = refusal(kubelet.create, SLICES, resource_slice("forged", MINE, pool=OTHER))
        assert f"node {MINE} must not write slices of pool {OTHER}" in message
        kubelet.create(SLICES, resource_slice("own", MINE))
        known_to_the_authorizer(control_plane.api, kubelet, "own")
        kubelet.delete(f"{SLICES}/own", missing_ok=False)
        kubelet.create(SLICES, resource_slice("theirs", MINE, driver="gpu.nvidia.com", pool="network"))
        slices(resource_slice("forged", MINE, pool=OTHER))
        kubelet.delete(f"{SLICES}?fieldSelector=spec.nodeName={MINE}", missing_ok=False)
        assert control_plane.api.list(SLICES) == []


def test_slices_of_no_single_node_are_refused(driver_on, slices):
    message = refusal(driver_on(MINE).create, SLICES, resource_slice("everywhere", node=""))
    assert "must not write slices of no single node" in message


def test_slices_of_other_drivers_are_refused(driver_on, slices):
    slices(resource_slice("theirs", driver="gpu.nvidia.com"))
    driver = driver_on(MINE)
    wanted = "the slice is of gpu.nvidia.com, which is no driver of hami-dra"
    assert wanted in refusal(driver.create, SLICES, resource_slice("forged", driver="gpu.nvidia.com"))
    assert wanted in refusal(driver.delete, f"{SLICES}/theirs")


def test_a_token_without_a_node_writes_nothing(driver_on, slices):
    slices(resource_slice("own"))
    nobody = driver_on(None)
    for attempt in (
        lambda: nobody.create(SLICES, resource_slice("new")),
        lambda: nobody.create(SLICES, resource_slice("everywhere", node="")),
        lambda: nobody.delete(f"{SLICES}/own"),
    ):
        assert "the token of the driver names no node" in refusal(attempt)
    assert len(nobody.list(SLICES)) == 1


def test_an_allocation_cannot_be_written_but_the_status_of_devices_on_its_node_can(
    control_plane, driver_on, create, namespace
):
    """The last line between a node and the ledger: what a driver may say is what its devices do, never who has them."""
    item = create(claim("one", part("1Gi")))
    path = control_plane.api.path_of(item)
    allocation = {
        "devices": {"results": [{"request": "gpu", "driver": "nvidia.hami.io", "pool": MINE, "device": "gpu-0"}]},
        "nodeSelector": _only(MINE),
    }
    mine, other = driver_on(MINE), driver_on(OTHER)

    def write(driver, **status):
        return refusal(driver.patch, f"{path}/status", {"status": status}, status=422)

    assert 'cannot patch resource "resourceclaims/binding"' in write(mine, allocation=allocation)
    control_plane.api.patch(path, {"metadata": {"finalizers": [names.DELETE_PROTECTION]}})
    control_plane.api.patch(f"{path}/status", {"status": {"allocation": allocation}})

    device = {"driver": "nvidia.hami.io", "pool": MINE, "device": "gpu-0", "data": {"uuid": "GPU-1"}}
    mine.patch(f"{path}/status", {"status": {"devices": [device]}})
    (reported,) = mine.get(path)["status"]["devices"]
    assert reported["data"] == {"uuid": "GPU-1"}
    assert "resourceclaims/binding" in write(mine, allocation=None, devices=None)
    assert "resourceclaims/driver" in write(other, devices=[{**device, "data": {"uuid": "GPU-2"}}])
    control_plane.api.patch(f"{path}/status", {"status": {"allocation": None, "devices": None}})


def _only(node):
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def test_what_else_the_driver_may_not_do(driver_on, namespace):
    driver = driver_on(MINE)
    for method, path in (
        ("list", "/api/v1/pods"),
        ("list", f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/secrets"),
        ("delete", f"/api/v1/nodes/{MINE}"),
        ("delete", SLICES),
        ("get", f"{SLICES}/own"),
        ("list", "/apis/resource.k8s.io/v1/resourceclaims"),
    ):
        assert "cannot" in refusal(getattr(driver, method), path)


def test_others_are_left_alone(control_plane, driver_on, slices):
    """An administrator, a fleet under an account of its own, a driver of another vendor."""
    slices(resource_slice("one"))
    slices(resource_slice("two", OTHER, driver="gpu.nvidia.com"))
    assert len(control_plane.api.list(SLICES)) == 2
