"""N2, N3, S1: objects of a megabyte, as the API server stores them. They are refused by name, honest pods are placed beside them, and
the controller stays as large as it was.
"""

import json
import logging
import uuid
from pathlib import Path

import pytest

from tests.e2e.lab import EVENTS, T4
from tests.e2e.objects import claim, part, pod
from tests.hostile.cluster.tenant import Tenant

log = logging.getLogger(__name__)

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MUCH = 9_000
VOLUME_CLAIMS = "/api/v1/namespaces/{}/persistentvolumeclaims"


@pytest.fixture
def evil(control_plane):
    api = control_plane.api
    name = f"evil-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    api.wait_for("its account", lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    tenant = Tenant(control_plane, name)
    yield tenant
    tenant.send("DELETE", tenant.pods(), json.dumps({"gracePeriodSeconds": 0}).encode())
    api.delete(f"/api/v1/namespaces/{name}")
    tenant.close()


def names(count=MUCH):
    return [f"{number}-".ljust(50, "x") + "x" for number in range(count)]


def anti_affinity(*requirements):
    term = {"topologyKey": HOST, "namespaceSelector": {}, "labelSelector": {"matchExpressions": list(requirements)}}
    return {"podAntiAffinity": {REQUIRED: [term]}}


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 1_200_000, "uid": "gone", "controller": True}
SPECS = {
    "values": {"affinity": anti_affinity({"key": "app", "operator": "In", "values": names(15_000)})},
    "requirements": {"affinity": anti_affinity(*[{"key": each, "operator": "Exists"} for each in names()])},
    "tolerations": {"tolerations": [{"key": each, "operator": "Exists"} for each in names()]},
    "node-selector": {"nodeSelector": dict.fromkeys(names(), "x")},
    "volumes": {"volumes": [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in names(4_000)]},
}
METADATA = {
    "labels": {"labels": dict.fromkeys(names(), "x")},
    "owner": {"ownerReferences": [OWNER]},
}


def large_pods():
    for name, spec in SPECS.items():
        yield pod(name, claims=["honest"], **spec)
    for name, more in METADATA.items():
        body = pod(name, claims=["honest"])
        body["metadata"] |= more
        yield body


def resident(process):
    """MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def send(evil, body):
    return evil.send("POST", evil.pods(), json.dumps(body).encode())


def events(lab, namespace, reason):
    found = lab.api.list(EVENTS.format(namespace))
    return {each["regarding"]["name"]: each["note"] for each in found if each["reason"] == reason}


@pytest.mark.timeout(600)
def test_objects_of_a_megabyte_are_refused_by_name_and_cost_nothing(lab, evil):
    lab.machines(T4, "t4")
    lab.create(claim("first", part("1Gi")), pod("first", claims=["first"]))
    lab.wait_running(names=["first"])
    process = lab.hami.programs["controller"].process
    before = resident(process)
    bodies = {body["metadata"]["name"]: body for body in large_pods()}
    sent = {name: send(evil, body) for name, body in bodies.items()}
    stored = [name for name, status in sent.items() if status in (200, 201)]
    assert {"values", "requirements", "tolerations", "labels"} <= {*stored}, sent
    lab.create(claim("honest", part("1Gi")), pod("honest", claims=["honest"]))
    lab.wait_running(names=["honest"])
    lab.hami.wait_for("their names", lambda: {*stored} <= {*events(lab, evil.namespace, "Unreadable")})
    notes = events(lab, evil.namespace, "Unreadable")
    assert all("too large: " in notes[name] for name in stored), notes
    lab.create(claim("last", part("1Gi")), pod("last", claims=["last"]))
    lab.wait_running(names=["last"])
    after = resident(process)
    log.info("%.0f MiB; with %d large pods %.0f", before, len(stored), after)
    assert after - before < 16, (before, after)
