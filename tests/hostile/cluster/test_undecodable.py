"""C1, H1, M2: what a tenant with the edit role stores ends no process; it is named, and everything else goes on.

On commit b4104f8 each of these objects kept the controller from ever starting again.
"""

import contextlib
import json
import subprocess
import sys
import uuid

import pytest

from hack.controlplane.api import ApiError
from hack.installation import DRIVER, QUICK, Installation
from tests.e2e.lab import EVENTS, T4, Lab
from tests.e2e.objects import claim, part, pod, template
from tests.hostile.cluster.tenant import Tenant

FORGED = 9_993
"""Levels of a forged field set; the API server takes 10,000 in an object."""
PARAMETERS = 5_050
"""Levels that fit into the 10 KiB of opaque parameters."""
EVIL_CLAIMS = {
    "deep": b'{"a":' + b"[" * PARAMETERS + b"]" * PARAMETERS + b"}",
    "surrogate": rb'{"a":"\ud800"}',
    "no-text": b'{"a":"\xff"}',
}
REASONS = {
    "deep": "nested more than 50 levels deep",
    "surrogate": "characters that are not Unicode",
    "no-text": "characters that are not Unicode",
}
PLACE = b'"here"'


def encoded(item, hole):
    """The object as JSON with these bytes in place of the text "here"."""
    return json.dumps(item).encode().replace(PLACE, hole)


def evil_claim(name):
    config = [{"opaque": {"driver": DRIVER, "parameters": "here"}}]
    return encoded(claim(name, part("1Gi"), config=config), EVIL_CLAIMS[name])


def evil_template():
    config = [{"opaque": {"driver": DRIVER, "parameters": "here"}}]
    return encoded(template("deep", part("1Gi"), config=config), EVIL_CLAIMS["deep"])


def forged_pod():
    body = pod("forged", gated=False)
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "here"}
    body["metadata"]["managedFields"] = [{**entry, "time": "2026-01-01T00:00:00Z"}]
    return encoded(body, b'{"f:x":' * FORGED + b"{}" + b"}" * FORGED)


def annotated_pod(name, levels):
    cards = '{"count":1,"alternatives":[' * levels + '{"count":2}' + "]}" * levels
    request = f'{{"requests":[{{"name":"nvidia-0","vendor":"nvidia","cards":{cards}}}]}}'
    body = pod(
        name, templates=["hami-0000000000000000"], gated=False, annotations={"hami.io/converted-request": request}
    )
    return json.dumps(body).encode()


@pytest.fixture
def lab(control_plane, namespace):
    """An installation of the test's own: controllers are stopped, started and uninstalled."""
    hami = Installation(control_plane)
    hami.install()
    one = Lab(control_plane, hami, namespace)
    try:
        hami.start_controller(*QUICK)
        hami.wait_ready()
        yield one
    finally:
        one.close()
        hami.remove()


@pytest.fixture
def evil(control_plane):
    """A namespace that only mallory writes to, and nobody lists through Python's parsers."""
    api = control_plane.api
    name = f"evil-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    api.wait_for("its account", lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    tenant = Tenant(control_plane, name)
    yield tenant
    tenant.send("DELETE", tenant.pods(), json.dumps({"gracePeriodSeconds": 0}).encode())
    tenant.send("DELETE", tenant.claims(), b"")
    for held in ("deep", *EVIL_CLAIMS):
        status(api, tenant.claims(), held, {"status": {"allocation": None, "reservedFor": None}})
    api.delete(f"/api/v1/namespaces/{name}")
    tenant.close()


def status(api, path, name, patch, subresource="/status"):
    """As the administrator; an object that is gone is fine."""
    with contextlib.suppress(ApiError):
        api.patch(f"{path}/{name}{subresource}", patch)


def store_everything(evil):
    """C1's three objects and its variants b and c, and the pods of H1. Returns the status of each."""
    sent = {name: evil.send("POST", evil.claims(), evil_claim(name)) for name in EVIL_CLAIMS}
    sent["template"] = evil.send("POST", evil.templates(), evil_template())
    sent["forged"] = evil.send("POST", evil.pods(), forged_pod())
    sent["annotated"] = evil.send("POST", evil.pods(), annotated_pod("annotated", 5_300))
    sent["shorter"] = evil.send("POST", evil.pods(), annotated_pod("shorter", 450))
    sent["asks"] = evil.send("POST", evil.pods(), json.dumps(pod("asks", claims=["deep"])).encode())
    return sent


def place_one(lab, name, memory="1Gi"):
    lab.create(claim(name, part(memory)), pod(name, claims=[name]))
    lab.wait_running(names=[name])


def notes(lab, namespace, name, reason):
    found = lab.api.list(EVENTS.format(namespace))
    return [each["note"] for each in found if each["regarding"]["name"] == name and each["reason"] == reason]


def wait_note(lab, namespace, name, reason, text):
    lab.hami.wait_for(
        f"{reason} about {name}", lambda: any(text in note for note in notes(lab, namespace, name, reason))
    )


def hami_dra(lab, *words):
    command = [sys.executable, "-m", "controller.cli.main", *words, "--kubeconfig", str(lab.plane.admin_kubeconfig)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def test_controllers_go_on_name_the_objects_and_place_honest_pods(lab, evil, tmp_path):
    lab.machines(T4, "t4")
    assert set(store_everything(evil).values()) == {200}
    place_one(lab, "while-it-runs")
    for name, reason in REASONS.items():
        wait_note(lab, evil.namespace, name, "Unreadable", reason)
    wait_note(lab, evil.namespace, "asks", "FilteringFailed", f"ResourceClaim {evil.namespace}/deep")
    wait_note(lab, evil.namespace, "annotated", "InvalidClaim", "hami.io/converted-request")
    wait_note(lab, evil.namespace, "shorter", "InvalidClaim", "hami.io/converted-request")
    first = lab.hami.programs["controller"]
    assert first.metric("hami_dra_unreadable_objects", resource="resourceclaims") == len(EVIL_CLAIMS)
    first.process.stop()
    fresh = lab.hami.start_controller(*QUICK)
    lab.hami.wait_ready()
    place_one(lab, "after-a-restart")
    assert fresh.metric("hami_dra_unreadable_objects", resource="resourceclaims") == len(EVIL_CLAIMS)
    for words in (
        ("status",),
        ("doctor",),
        ("snapshot", "-o", str(tmp_path / "state.json")),
        ("whatif", "--node-policy", "spread"),
    ):
        ended = hami_dra(lab, *words)
        assert ended.returncode in ((0, 1) if words == ("doctor",) else (0,)), ended.stdout + ended.stderr
        for name in EVIL_CLAIMS:
            assert f"ResourceClaim {evil.namespace}/{name}" in ended.stderr, words
    read = hami_dra(lab, "explain", "while-it-runs", "-n", lab.namespace)
    assert "while-it-runs" in read.stdout
    offline = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", "status", "-f", str(tmp_path / "state.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert offline.returncode == 0, offline.stderr


def test_a_claim_that_nobody_can_read_keeps_its_devices(lab, evil):
    lab.machines(T4, "t4")
    assert evil.send("POST", evil.claims(), evil_claim("deep")) == 200
    cards = sorted(device["name"] for item in lab.slices() for device in item["spec"]["devices"])
    status(
        lab.api, evil.claims(), "deep", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}, ""
    )
    status(lab.api, evil.claims(), "deep", {"status": {"allocation": allocation(cards, "t4")}})
    lab.create(claim("honest", part("1Gi")), pod("honest", claims=["honest"]))
    wait_note(lab, lab.namespace, "honest", "FilteringFailed", "CardTimeSlicingExhausted")
    lab.hami.programs["controller"].process.stop()
    lab.hami.start_controller(*QUICK)
    lab.hami.wait_ready()
    assert "allocation" not in lab.claim("honest").get("status", {})
    status(lab.api, evil.claims(), "deep", {"status": {"allocation": None}})
    lab.wait_running(names=["honest"])


def allocation(cards, node):
    """All shares of all cards, as kube-scheduler would write it."""
    results = [
        {
            "request": "gpu", "driver": DRIVER, "pool": node, "device": card, "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"memory": "1Gi", "cores": "0", "shares": "10"},
        }
        for card in cards
    ]  # fmt: skip
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [pinned]}}


def test_uninstall_takes_everything_off_and_names_what_it_cannot_read(lab, evil):
    lab.machines(T4, "t4")
    place_one(lab, "runs")
    assert set(store_everything(evil).values()) == {200}
    lab.hami.programs["controller"].process.stop()
    token = lab.hami.uninstall_token()
    command = [
        sys.executable,
        "-m",
        "controller.cli.main",
        "uninstall",
        "--yes",
        "--kubeconfig",
        str(lab.plane.kubeconfig_for(token)),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("done:")
    assert lab.hami.fence_rules() == []
    assert lab.claim("runs")["status"]["allocation"], "running pods keep their devices"
