"""The webhook was killed: what happens to legacy pods is what failurePolicy says, and everybody is told what to do.

That unconverted pods are refused or pass is shown for every kind of pod in test_webhook.py; here a whole installation runs.
"""

import secrets

import pytest

from hack.controlplane.api import ApiError
from tests.e2e.lab import T4
from tests.e2e.objects import deployment, legacy_pod, part, pod, template

CALL_FAILED = 'failed calling webhook "convert.webhook.hami.io"'


@pytest.fixture
def webhook(lab):
    """The running webhook's process, to be killed; it runs again after the test, with failurePolicy Fail."""
    process = lab.hami.programs["webhook"].process
    yield process
    lab.hami.install()
    process.start()
    lab.hami.wait_ready()


def passes(lab):
    """Whether a legacy pod would be let in as it is."""
    try:
        lab.api.create(lab.pods_path, legacy_pod(f"dry-{secrets.token_hex(4)}", gpu=1), dryRun="All")
    except ApiError as error:
        if CALL_FAILED not in error.message:
            raise
        return False
    return True


def check_claim_pods(lab):
    """Neither gate nor allocation needs the webhook."""
    lab.create(template("part", part("4Gi")))
    stored = lab.create(pod("claims", templates=["part"]))
    assert stored["spec"]["schedulingGates"] == [{"name": "hami.io/allocation"}]
    (placement,) = lab.wait_running(names=["claims"])
    assert len(placement.devices) == 1
    assert lab.bound_by("claims") == "default-scheduler"


def test_legacy_pods_are_refused_and_come_by_themselves_when_it_is_back(lab, webhook):
    lab.machines(T4, "t4")
    webhook.kill()
    with pytest.raises(ApiError) as refused:
        lab.create(legacy_pod("alone", gpu=1, gpumem=7500))
    assert CALL_FAILED in refused.value.message
    assert refused.value.status == 500
    lab.create(deployment("web", 2, legacy_pod(gpu=1, gpumem=7500)))

    def replica_set_says_so():
        return [event for event in lab.events(reason="FailedCreate") if CALL_FAILED in event["note"]]

    lab.hami.wait_for("an event of the ReplicaSet that names the webhook", replica_set_says_so)
    check_claim_pods(lab)
    assert [item["metadata"]["name"] for item in lab.pods()] == ["claims"]

    webhook.start()
    # the ReplicaSet tries again after as long a pause as it has tried in vain so far
    placed = lab.wait_running(3, seconds=180)
    assert [each.memory for each in placed if each.pod != "claims"] == [[7500 << 20]] * 2
    lab.create(legacy_pod("alone", gpu=1, gpumem=7500))
    lab.wait_running(4)
    assert lab.overcommitted() == []


def test_legacy_pods_pass_where_that_was_chosen_and_are_told_what_to_do(lab, webhook):
    lab.machines(T4, "t4")
    lab.hami.install(failure_policy="Ignore")
    webhook.kill()
    lab.hami.wait_for("failurePolicy Ignore in force", lambda: passes(lab))
    pods = {
        "whole": legacy_pod("whole", gpu=1),
        "part": legacy_pod("part", gpu=1, gpumem=7500),
        "share": legacy_pod("share", gpu=1, gpucores=30),
    }
    for name, item in pods.items():
        stored = lab.create(item)
        assert "resourceClaims" not in stored["spec"]
        assert "schedulingGates" not in stored["spec"]
        note = lab.wait_event(name, "WebhookBypassed", "did not pass hami-dra's webhook")
        assert 'container "main" asks for nvidia.com/gpu' in note
        assert "hami.io/webhook=enabled --overwrite) and check that it runs (hami-dra doctor). Delete the pod" in note
    check_claim_pods(lab)

    webhook.start()
    lab.hami.wait_for("conversion again", lab.hami.is_converting)
    assert all("nodeName" not in lab.pod(name)["spec"] for name in pods)
    for name, item in pods.items():  # as the event says
        lab.delete_pod(name)
        lab.create(item)
    placed = {each.pod: each for each in lab.wait_running(names=["claims", *pods])}
    assert placed["part"].memory == [7500 << 20]
    assert placed["whole"].memory == [15 << 30]
    assert lab.overcommitted() == []
