"""Hostile objects of all kinds beside honest pods: every honest pod is bound, about as soon as in a clean cluster, in the same memory.

Rounds of honest pods alternate between a clean cluster and one full of hostile objects (tests/hostile/objects.py), on the same control
plane and machine, so that whatever else slows the machine slows both. `make soak` plays it with 2,000 hostile objects
and 200 honest pods in a round (HAMI_DRA_LOAD=2000).
"""

import contextlib
import json
import logging
import os
import secrets
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hack.controlplane.api import ApiError, NotReached
from hack.installation import QUICK
from tests.e2e.objects import part, pod, template
from tests.hostile.cluster.tenant import Tenant
from tests.hostile.objects import assortment, lying_slice

log = logging.getLogger(__name__)

HOSTILE = int(os.environ.get("HAMI_DRA_LOAD", "300"))
HONEST = max(HOSTILE // 10, 40)
ROUNDS = 2 if "HAMI_DRA_LOAD" in os.environ else 1
MOST_ROUNDS = 5  # of either kind: what else runs on the machine may spoil some, and does not spoil one kind alone
PACE = 0.05  # seconds between two honest pods: their waits are measured, not how fast a crowd is worked off
NODES = [f"node-{number}" for number in range(10)]
PODS = "/api/v1/namespaces/{}/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
# kube-scheduler is not under test: what hami-dra has no room for stays behind the gate
FLAGS = (*QUICK, "--gate-patience=300s")


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_controller(*FLAGS)
    installation.wait_ready()
    return installation


@pytest.mark.timeout(1_800)
def test_honest_pods_do_not_notice_hostile_objects(lab, control_plane, record_property):
    lab.machines("dgx-h100", *NODES)
    honest, attack = Honest(lab), Attack(lab, control_plane)
    try:
        honest.stand(HONEST)
        memory = {"clean": memory_of_a_fresh_controller(lab.hami)}
        waits = {"clean": [], "hostile": []}
        for number in range(MOST_ROUNDS):
            attack.end()
            waits["clean"] += honest.round(HONEST)
            attack.begin(seed=number)
            waits["hostile"] += honest.round(HONEST)
            if number + 1 >= ROUNDS and are_alike(waits):
                break
        memory["hostile"] = memory_of_a_fresh_controller(lab.hami)
        honest.round(5)
    finally:
        attack.end()
        attack.close()
    figures = {name: [round(quantile(found), 2) for quantile in QUANTILES] for name, found in waits.items()}
    said = (
        f"waits in s (median, 95 %) {figures}, {len(waits['clean'])} pods each; RSS {memory}; "
        f"{attack.made} hostile objects, {attack.refused} refused"
    )
    record_property("load", said)
    log.info(said)
    assert attack.refused < 0.1 * attack.made, said
    assert are_alike(waits), said
    assert memory["hostile"] <= 1.1 * memory["clean"], said


def are_alike(waits):
    """Median and 95th percentile beside hostile objects are at most twice those of a clean cluster."""
    return all(quantile(waits["hostile"]) <= 2 * quantile(waits["clean"]) for quantile in QUANTILES)


def percentile_95(values):
    return sorted(values)[min(len(values) * 95 // 100, len(values) - 1)]


QUANTILES = (statistics.median, percentile_95)


# --- honest tenants --------------------------------------------------------------------------------------------------


class Honest:
    """Pods that ask for a part of a card, each with a claim of its own."""

    def __init__(self, lab):
        self._lab, self._api = lab, lab.api
        lab.create(template("part", part("1Gi")))

    def stand(self, count):
        """Pods that stay for the whole test."""
        self._bound("standing", count)

    def round(self, count):
        """Seconds from the creation of each pod to its binding, as a watch shows it; the pods are gone afterwards."""
        name = f"round-{secrets.token_hex(3)}"
        waits = self._bound(name, count)
        delete_all(self._api, f"{self._lab.pods_path}?labelSelector=round%3D{name}")
        self._api.wait_for("its claims gone", lambda: len(self._lab.claims()) <= HONEST, seconds=120, every=0.5)
        return waits

    def _bound(self, name, count):
        watching, made = Bindings(self._lab.plane, self._lab.namespace, name), {}
        for number in range(count):
            started = time.monotonic()
            self._lab.create(pod(f"{name}-{number}", templates=["part"], labels={"round": name}))
            made[f"{name}-{number}"] = started
            time.sleep(max(0.0, PACE - (time.monotonic() - started)))
        try:
            return watching.wait(made, seconds=180)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self._lab.describe()[-6000:]}") from None


class Bindings:
    """When each pod of a round was first seen on a node."""

    def __init__(self, plane, namespace, name):
        self._api = plane.api
        self._path, self._selector = PODS.format(namespace), f"round={name}"
        self.seen = {}
        self.over = False
        version = self._api.get(self._path, limit="1")["metadata"]["resourceVersion"]
        threading.Thread(target=self._watch, args=(version,), daemon=True).start()

    def _watch(self, version):
        for event in self._api.watch(self._path, seconds=200, labelSelector=self._selector, resourceVersion=version):
            found = event["object"]
            if self.over or event["type"] == "DELETED":
                return
            if found["spec"].get("nodeName"):
                self.seen.setdefault(found["metadata"]["name"], time.monotonic())

    def wait(self, made, seconds):
        self._api.wait_for(f"{len(made)} pods bound", lambda: made.keys() <= self.seen.keys(), seconds=seconds)
        self.over = True
        return [self.seen[name] - started for name, started in made.items()]


# --- hostile ones ----------------------------------------------------------------------------------------------------


class Attack:
    """Two tenants who create whatever does harm and go on changing it, and a publisher who lies."""

    def __init__(self, lab, control_plane):
        self._api = lab.api
        self._names = [f"{lab.namespace}-evil-{number}" for number in range(2)]
        for name in self._names:
            self._api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._tenants = [Tenant(control_plane, name) for name in self._names]
        self._over = threading.Event()
        self._changing = None
        self.made = self.refused = 0

    def begin(self, seed):
        share = HOSTILE // len(self._tenants)
        with ThreadPoolExecutor(4) as pool:
            for tenant in self._tenants:
                for status in pool.map(lambda item, by=tenant: self._send(by, item), assortment(share, seed)):
                    self._count(200 <= status < 300)
        for number in range(max(HOSTILE // 50, 5)):
            [item] = lying_slice(number, "liar", NODES)
            try:
                self._api._raw("POST", SLICES, item.body, "application/json")
            except ApiError:
                self._count(False)
            else:
                self._count(True)
        self._over.clear()
        self._changing = threading.Thread(target=self._go_on, daemon=True)
        self._changing.start()

    def _send(self, tenant, item):
        path = {"pods": PODS, "resourceclaims": CLAIMS, "resourceclaimtemplates": TEMPLATES}[item.kind]
        try:
            return tenant.send("POST", path.format(tenant.namespace), item.body)
        except NotReached as error:
            log.info("%s: %s", item.name, error)
            return 0

    def _count(self, created):
        self.made += created
        self.refused += not created

    def _go_on(self):
        """What of H2 costs a tenant nothing: a change of the claim that many pods wait for, again and again."""
        number = 0
        while not self._over.wait(1.0):
            number += 1
            body = json.dumps({"metadata": {"annotations": {"example.com/again": str(number)}}}).encode()
            for tenant in self._tenants:
                for item in ("impossible-7", "impossible-8"):
                    path = f"{CLAIMS.format(tenant.namespace)}/{item}"
                    tenant.send("PATCH", path, body, "application/merge-patch+json")

    def end(self):
        """Nothing hostile is left."""
        self._over.set()
        if self._changing is not None:
            self._changing.join()
        delete_all(self._api, f"{SLICES}?labelSelector=hostile%3Dlie")
        for path in [path.format(name) for name in self._names for path in (PODS, CLAIMS, TEMPLATES)]:
            delete_all(self._api, path)

    def close(self):
        for tenant, name in zip(self._tenants, self._names, strict=True):
            tenant.close()
            self._api.delete(f"/api/v1/namespaces/{name}")


def delete_all(api, path):
    """Delete a collection, however long it takes. No answer is decoded: it has the objects, which Python cannot all read."""

    def empty():
        with contextlib.suppress(NotReached):  # a busy API server is still at it
            api._raw("DELETE", path, b'{"gracePeriodSeconds": 0}', "application/json")
            return b'"items":[]' in api._raw("GET", f"{path}{'&' if '?' in path else '?'}limit=1", None, "")
        return False

    api.wait_for(f"nothing left at {path}", empty, seconds=300, every=0.5)


# --- the controller --------------------------------------------------------------------------------------------------


def memory_of_a_fresh_controller(hami):
    """Bytes of RSS once it does not grow any more."""
    for program in hami.controllers():
        program.process.stop()
        del hami.programs[program.name]
    program = hami.start_controller(*FLAGS, name=f"controller-{secrets.token_hex(2)}")
    hami.wait_for("a controller that decides", hami.is_deciding)
    before, steady = 0, 0
    for _ in range(60):
        time.sleep(0.5)
        now = resident(program.process.pid)
        steady = steady + 1 if abs(now - before) < 0.01 * now else 0
        before = now
        if steady == 4:
            break
    return before


def resident(pid):
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
