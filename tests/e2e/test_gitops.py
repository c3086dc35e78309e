"""docs/gitops.md: its objects are what Argo CD and Flux take, and a running installation stays as the repository has it.

`make soak` lets it run for an hour.
"""

import copy
import logging
import os
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

from hack.controlplane.api import ApiError
from hack.controlplane.processes import free_port
from hami_dra.api import names
from hami_dra.api.config import FleetFile
from tests.e2e import gitops_story as gitops
from tests.e2e.chart_story import SYSTEM
from tests.e2e.objects import legacy_pod, part, pod, template

MINUTES = float(os.environ.get("HAMI_DRA_DIFF_MINUTES", "60"))
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/hami-dra-webhook-certificate"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PODS = "/api/v1/namespaces/default/pods"
OTHERS = ["c500-8", "trn1.32xlarge", "s60-8", "p800-oam-8"]
"""Machines of other vendors."""
log = logging.getLogger(__name__)


SCHEMAS = Path(__file__).parents[1] / "fixtures/gitops"
"""CustomResourceDefinitions of Argo CD and Flux."""


def is_served(api, path):
    try:
        return api.get(path)
    except ApiError as error:
        if error.status not in {404, 429}:  # 429: the storage of a new kind is not ready yet
            raise
        return None


@pytest.fixture
def tools(api):
    """The kinds of both tools, served without the tools."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted(SCHEMAS.glob("*-crd.yaml"))]
    for crd in crds:
        api.apply(crd)
    for crd in crds:
        version, plural = crd["spec"]["versions"][0]["name"], crd["spec"]["names"]["plural"]
        path = f"/apis/{crd['spec']['group']}/{version}/namespaces/default/{plural}"
        api.wait_for(f"{plural} served", partial(is_served, api, path))
    yield
    for crd in crds:
        api.remove(crd)


def objects_of_the_page():
    """Those of docs/gitops.md; the snippet about orphaned resources in the AppProject that it belongs to."""
    found = gitops.page()
    project = {"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": {"name": "default"}}
    orphaned = {"orphanedResources": found.pop("orphanedResources")["orphanedResources"]}
    return {**found, "AppProject": {**project, "spec": orphaned}}


def test_what_the_page_shows_is_what_argo_cd_and_flux_take(api, tools):
    objects = objects_of_the_page()
    assert objects.keys() == {"Application", "AppProject", "GitRepository", "HelmRelease", "Kustomization"}

    def create(item):
        body = {**item, "metadata": {**item["metadata"], "namespace": "default"}}
        return api.create(api.path_of(body, collection=True), body, dryRun="All", fieldValidation="Strict")

    for item in objects.values():
        create(item)
    misspelt = copy.deepcopy(objects["Application"])
    misspelt["spec"]["ignoreDifferences"][0]["jqPathExpression"] = [".data"]
    with pytest.raises(ApiError, match="unknown field"):
        create(misspelt)


class Life:
    """What happens to an installation in a long time, in small portions."""

    def __init__(self, story):
        self.story, self.api, self.hami = story, story.api, story.hami
        self.pods = self.leaders = self.certificates = self.rules = 0
        self.api.add(template("whole", part("8Gi")))

    def __str__(self):
        return f"{self.pods} pods, {self.leaders} leaders, {self.certificates} certificates, {self.rules} rules"

    def pods_come_and_go(self):
        made = [legacy_pod(gpu=1, gpumem=4000), legacy_pod(gpu=2, gpumem=1000), pod(templates=["whole"])]
        known = {self.api.add(each)["metadata"]["name"] for each in made}

        def running():
            found = {each["metadata"]["name"] for each in self.api.list(PODS) if each["status"]["phase"] == "Running"}
            return known <= found

        self.hami.wait_for("pods that run", running, seconds=120)
        for name in known:
            self.api.delete(f"{PODS}/{name}")
        self.hami.wait_for("pods gone", lambda: not self.api.list(PODS), seconds=120)
        self.pods += len(known)

    def leader_changes(self):
        """The leader is killed; the other replica leads, and the first one comes back as the second."""
        leader = self.hami.wait_for("a leader", self.hami.leader)
        leader.process.kill()
        self.hami.wait_for("another leader", lambda: self.hami.leader() not in (None, leader), seconds=120)
        leader.process.start()
        self.hami.wait_for("a controller that decides", self.hami.is_deciding)
        self.leaders += 1

    def certificate_is_rotated(self):
        """The Secret's content is taken away: the webhook makes another authority."""
        before = self.api.get(SECRET)["data"]
        self.api.patch(SECRET, {"data": None})
        self.hami.wait_for(
            "another certificate", lambda: self.api.get(SECRET).get("data", before) != before, seconds=180
        )
        self.hami.wait_for("legacy pods converted", self.hami.is_converting, seconds=120)
        self.certificates += 1

    def fence_rules_appear(self):
        """A rule is deleted by hand, and another vendor's first machine joins: rules of the fence come (back)."""
        rules = self.hami.fence_rules()
        self.api.remove(rules[0])
        if OTHERS:
            machine = OTHERS.pop()
            file = {"name": machine, "nodes": [{"machine": machine, "name": machine}]}
            self.hami.publish(FleetFile.model_validate(file))
        names_before = {rule["metadata"]["uid"] for rule in rules}

        def others():
            return {rule["metadata"]["uid"] for rule in self.hami.fence_rules()} - names_before

        self.rules += len(self.hami.wait_for("new rules of the fence", others, seconds=120))


@pytest.mark.e2e
@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 900)
def test_after_an_hour_of_running_nothing_differs(story, render):
    """$HAMI_DRA_DIFF_MINUTES: how long. What differed, with the time, is in the log (-o log_cli_level=INFO)."""
    options = ["--set", f"webhook.url=https://127.0.0.1:{story.port}/mutate", "--set", "simulatedFleet.enabled=true"]
    install = story.begin("install.sh", *options)
    for number in (1, 2):
        story.start(names.CONTROLLER, port=free_port(), number=number)
    story.start(names.WEBHOOK, "--certificate-host=127.0.0.1", port=story.port, tls=True)
    story.start_fleet()
    story.finish("install.sh", install)
    objects = gitops.repository(render, options)
    life = Life(story)
    actions = (life.fence_rules_appear, life.leader_changes, life.certificate_is_rotated)
    begun, rounds, found = time.monotonic(), 0, []
    while time.monotonic() < begun + MINUTES * 60 or rounds < 4 * len(actions):
        life.pods_come_and_go()
        if rounds % 4 == 3:
            actions[rounds // 4 % len(actions)]()
            minutes, different = (time.monotonic() - begun) / 60, gitops.differences(story, objects)
            log.info("after %.0f minutes: %s; %s", minutes, different or "no difference", life)
            found += [(minutes, different)] if different else []
        rounds += 1
        time.sleep(15)  # so that the machine has time for others
    pairs = gitops.replaced(story, objects)
    log.info("replacing would change %s", [(raw["kind"], raw["metadata"]["name"]) for raw, _ in pairs])
    log.info("%d objects are in no repository", gitops.untracked(story, objects))
    assert found == []
    assert gitops.differences(story, objects) == {}
    gitops.check_ignores(pairs)
