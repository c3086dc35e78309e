"""What every other test here takes for granted: the control plane is a real Kubernetes that allocates by itself."""

import itertools

import pytest

from hack.controlplane.api import ApiError

pytestmark = pytest.mark.on_1_36

DRIVER = "nvidia.hami.io"


def device_class():
    selector = {"cel": {"expression": f"device.driver == {DRIVER!r}"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "shared"},
        "spec": {"selectors": [selector]},
    }


def one_shared_card(node):
    card = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "16Gi"}, "cores": {"value": "100"}},
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-nvidia"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [card]},
    }


def claim(name, memory="4Gi"):
    exactly = {"deviceClassName": "shared", "capacity": {"requests": {"memory": memory, "cores": "10"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(name, claim_name=None):
    container = {"name": "main", "image": "none"}
    spec = {"containers": [container]}
    if claim_name:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def runs(api, item):
    """The pod once it is Running."""
    return api.wait_for(
        f"{item['metadata']['name']} Running", lambda: (now := api.read(item))["status"]["phase"] == "Running" and now
    )


def refusal(api, item):
    """The scheduler's message once it has refused the pod."""

    def message():
        conditions = api.read(item)["status"].get("conditions", ())
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")

    return api.wait_for(f"{item['metadata']['name']} refused", message)


def test_kube_scheduler_allocates_shared_capacity_and_deletion_frees_it(api, nodes, create):
    nodes.create("real-1")
    create(device_class())
    create(one_shared_card("real-1"))
    claims = [create(claim(f"c{i}", "8Gi")) for i in range(3)]
    pods = [create(pod(f"p{i}", f"c{i}")) for i in range(2)]
    for item in pods:
        assert runs(api, item)["spec"]["nodeName"] == "real-1"
    results = [api.read(item)["status"]["allocation"]["devices"]["results"][0] for item in claims[:2]]
    assert {result["device"] for result in results} == {"gpu-0"}
    assert all(result["consumedCapacity"] == {"memory": "8Gi", "cores": "10"} for result in results)

    third = create(pod("p2", "c2"))
    assert "cannot allocate all claims" in refusal(api, third)
    api.remove(pods[0])
    assert runs(api, third)
    api.wait_for("the claim of the deleted pod free", lambda: not api.read(claims[0]).get("status"))


def test_a_taint_rule_fences_the_driver_where_the_api_is_on_by_default(control_plane, api, nodes, create):
    nodes.create("real-1")
    create(device_class())
    create(one_shared_card("real-1"))
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "fence"},
        "spec": {
            "deviceSelector": {"driver": DRIVER},
            "taint": {"key": "hami.io/controller-allocates", "effect": "NoSchedule"},
        },
    }
    if control_plane.version.startswith("1.36."):
        with pytest.raises(ApiError) as refused:
            create(rule)
        assert refused.value.status == 404
        return
    create(rule)

    def fenced():
        """One more pod is refused; the scheduler sees the rule a moment later than its author."""
        name = f"fenced-{next(numbers)}"
        create(claim(name, "1Gi"))
        item = create(pod(name, name))
        decided = api.wait_for(
            f"{name} decided",
            lambda: next(
                (c for c in api.read(item)["status"].get("conditions", ()) if c["type"] == "PodScheduled"), None
            ),
        )
        return "cannot allocate all claims" in decided.get("message", "")

    numbers = itertools.count()
    assert any(fenced() for _ in range(5))  # five would fit the card


def test_a_node_that_is_not_ready_or_cordoned_gets_no_pods(api, nodes, create):
    nodes.create("real-1")
    nodes.set_ready("real-1", "False")
    api.wait_for("the taint", lambda: api.get("/api/v1/nodes/real-1")["spec"].get("taints"))
    waiting = create(pod("p0"))
    assert "untolerated taint" in refusal(api, waiting)
    nodes.cordon("real-1")
    nodes.set_ready("real-1")
    nodes.wait_schedulable(["real-1"])
    assert api.read(waiting)["status"]["phase"] == "Pending"
    nodes.uncordon("real-1")
    assert runs(api, waiting)


def test_nodes_and_pods_survive_a_restart_of_the_api_server(control_plane, api, nodes, create):
    nodes.create("real-1")
    before = runs(api, create(pod("p0")))
    control_plane.restart_apiserver(down_for=0.5)
    assert api.read(before)["metadata"]["uid"] == before["metadata"]["uid"]
    assert runs(api, create(pod("p1")))


def test_identities_are_judged_by_rbac(control_plane, api, namespace):
    account = control_plane.api_as(control_plane.token_for_service_account(namespace, "default"))
    try:
        with pytest.raises(ApiError) as refused:
            account.get("/api/v1/nodes")
    finally:
        account.close()
    assert refused.value.status == 403
    assert f"system:serviceaccount:{namespace}:default" in refused.value.message
