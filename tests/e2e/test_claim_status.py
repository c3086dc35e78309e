"""`status.devices` on a real API server: written with the driver's own rights, beside what other drivers say, and gone with the allocation."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime

import msgspec
import pytest
import yaml

from hack.installation import service_account_token
from hami_dra.api import names
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.driver.prepare.claim_status import ClaimStatusWriter
from hami_dra.driver.prepare.records import GrantedDevice, Record
from hami_dra.kube.http import connect
from hami_dra.kube.manifests import shipped_folder
from tests.e2e.objects import claim, request

pytestmark = pytest.mark.on_1_36

DRIVER, OTHER, NODE = "nvidia.hami.io", "other.example.com", "gpu-1"
SHARES = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")
PODS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/pods"


@pytest.fixture(scope="module")
def token(control_plane):
    """Of a driver pod on the node."""
    api = control_plane.api
    objects = [
        raw
        for name in ("namespace.yaml", "rbac-driver.yaml")
        for raw in yaml.safe_load_all((shipped_folder("manifests") / name).read_text())
    ]
    for raw in objects:
        api.apply(raw)
    account = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/serviceaccounts/{names.DRIVER}"
    api.wait_for("the driver's account", lambda: api.get(account))
    spec = {"serviceAccountName": names.DRIVER, "nodeName": NODE, "containers": [{"name": "driver", "image": "none"}]}
    pod = api.create(PODS, {"metadata": {"name": "driver-of-statuses"}, "spec": spec})
    yield service_account_token(api, names.DRIVER, bound_to=pod)
    api.delete(f"{PODS}/driver-of-statuses", gracePeriodSeconds=0)
    for raw in reversed(objects):
        if raw["kind"] != "Namespace":
            api.remove(raw)


@pytest.fixture
async def cluster(control_plane, token):
    found = connect(str(control_plane.kubeconfig_for(token, "driver-of-statuses")))
    yield found
    await found.close()


@pytest.fixture
def allocated(control_plane, create):
    """Two shares of one of our cards and a device of another driver, which has said something of it already."""
    api = control_plane.api
    item = create(claim("one", request("a"), request("b"), request("c")))
    path = api.path_of(item)
    api.patch(path, {"metadata": {"finalizers": [names.DELETE_PROTECTION]}})
    ours = [
        {
            "request": name,
            "driver": DRIVER,
            "pool": NODE,
            "device": "gpu-0",
            "shareID": share,
            "consumedCapacity": {"memory": "1Gi"},
        }
        for name, share in zip("ab", SHARES, strict=True)
    ]
    theirs = {"request": "c", "driver": OTHER, "pool": NODE, "device": "nic-0"}
    field = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    allocation = {
        "devices": {"results": [*ours, theirs]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    api.patch(f"{path}/status", {"status": {"allocation": allocation}})
    said = {"driver": OTHER, "pool": NODE, "device": "nic-0", "data": {"speed": 100}}
    api.patch(f"{path}/status", {"status": {"devices": [said]}})
    yield path
    api.patch(f"{path}/status", {"status": {"allocation": None, "devices": None}})


def held(request_name, share_id):
    return GrantedDevice(
        request=request_name,
        pool=NODE,
        device="gpu-0",
        card="GPU-0",
        share_id=share_id,
        shared=True,
        consumed={"memory": 1 << 30},
    )


def record_of(found):
    return Record(
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        uid=found.metadata.uid,
        allocation="",
        state="prepared",
        held=tuple(held(name, share) for name, share in zip("ab", SHARES, strict=True)),
    )


@contextlib.asynccontextmanager
async def writing(cluster):
    writer = ClaimStatusWriter(cluster, DRIVER, lambda: datetime.now(UTC))
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def statuses(cluster, found, done):
    async with asyncio.timeout(30):
        while True:
            raw = await cluster.get_raw(RESOURCE_CLAIM, found.metadata.name, found.metadata.namespace)
            devices = raw["status"].get("devices", [])
            if done(devices):
                return devices
            await asyncio.sleep(0.1)


async def test_devices_are_told_beside_those_of_other_drivers(control_plane, cluster, allocated):
    raw = control_plane.api.get(allocated)
    found = await cluster.get(RESOURCE_CLAIM, raw["metadata"]["name"], raw["metadata"]["namespace"])
    async with writing(cluster) as writer:
        uid = found.metadata.uid
        writer.add({uid: found}, {uid: record_of(found)})
        devices = await statuses(cluster, found, lambda devices: len(devices) == 3)
        by_key = {(entry["driver"], entry.get("shareID", "")): entry for entry in devices}
        assert by_key[OTHER, ""]["data"] == {"speed": 100}
        for share in SHARES:
            entry = by_key[DRIVER, share]
            assert entry["data"] == {"uuid": "GPU-0", "limits": {"memory": "1Gi"}}
            assert entry["conditions"][0]["type"] == "Ready"
            assert entry["conditions"][0]["status"] == "True"

        writer.add({uid: found}, {uid: "the disk is full"})
        devices = await statuses(cluster, found, lambda devices: "data" not in devices[-1] or "data" not in devices[0])
        ours = [entry for entry in devices if entry["driver"] == DRIVER]
        assert [entry["conditions"][0]["message"] for entry in ours] == ["the disk is full"] * 2
        assert any(entry["driver"] == OTHER and entry["data"] == {"speed": 100} for entry in devices)

    control_plane.api.patch(f"{allocated}/status", {"status": {"allocation": None}})
    assert "devices" not in control_plane.api.get(allocated).get("status", {})


async def test_a_claim_that_was_made_again_is_left_alone(control_plane, cluster, allocated):
    raw = control_plane.api.get(allocated)
    found = await cluster.get(RESOURCE_CLAIM, raw["metadata"]["name"], raw["metadata"]["namespace"])
    before = msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, uid="another"))
    async with writing(cluster) as writer:
        writer.add({"another": before}, {"another": record_of(before)})
        await asyncio.sleep(0.5)
        devices = control_plane.api.get(allocated)["status"]["devices"]
        assert [entry["driver"] for entry in devices] == [OTHER]


async def test_an_allocation_with_spaced_parameters_goes_without(control_plane, cluster, allocated, caplog):
    """As kube-scheduler copies them from a claim: bytes that the API server keeps, and writes anew when it merges any patch, which it
    then refuses for a changed allocation. Said in the log, once, and nothing else is the worse for it.
    """
    raw = control_plane.api.get(allocated)
    parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "priority": 1}
    control_plane.api.patch(f"{allocated}/status", {"status": {"allocation": None}})
    raw = control_plane.api.get(allocated) | {"status": raw["status"]}
    raw["status"].pop("devices")
    raw["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    ]
    spaced = json.dumps(raw).encode()
    control_plane.api._raw("PUT", f"{allocated}/status", spaced, "application/json")
    found = await cluster.get(RESOURCE_CLAIM, raw["metadata"]["name"], raw["metadata"]["namespace"])
    async with writing(cluster) as writer:
        for _ in range(2):
            writer.add({found.metadata.uid: found}, {found.metadata.uid: record_of(found)})
        for _ in range(300):
            if "status.devices is not written" in caplog.text:
                break
            await asyncio.sleep(0.1)
    assert caplog.text.count("status.devices is not written") == 1
    assert "devices" not in control_plane.api.get(allocated)["status"]
