"""A stream of small pods on a real control plane: the large job gets its place after its wait, and without that it starves.

Times and ranks are played in virtual time (tests/unit/reconcile/preemption/test_reservations.py).
"""

import time

import pytest

from hack.installation import QUICK
from tests.e2e.lab import T4
from tests.e2e.objects import pod, request, template
from tests.support.gang_objects import in_labelled_group

pytestmark = pytest.mark.on_1_36
WAIT = 6


@pytest.fixture(scope="module", params=[f"{WAIT}s", "0s"], ids=["reserved", "control"])
def hami(request, make_installation):
    installation = make_installation()
    installation.start_controller(*QUICK, f"--save-after={request.param}")
    installation.wait_ready()
    installation.reserves = request.param != "0s"
    return installation


def small(name):
    return pod(name, templates=["card"])


def stream(lab, seconds):
    """One pod more than there are cards; each second the oldest that runs is gone, and a new one comes."""
    lab.create(*(small(f"small-{number}") for number in range(5)))
    for number in range(5, 5 + seconds):
        time.sleep(1)
        running = sorted(
            (each["metadata"]["creationTimestamp"], each["metadata"]["name"])
            for each in lab.pods()
            if each["metadata"]["name"].startswith("small") and each["spec"].get("nodeName")
        )
        if running:
            lab.delete_pod(running[0][1])
        lab.create(small(f"small-{number}"))
        yield number


@pytest.mark.parametrize("is_gang", [False, True], ids=["pod", "gang"])
def test_a_large_job_beside_a_stream_of_small_ones(lab, is_gang):
    lab.machines(T4, "n0")
    lab.create(template("card", request(count=1)), template("node", request(count=4)))
    jobs = (
        [in_labelled_group(small(f"large-{i}"), "g", 4) for i in range(4)]
        if is_gang
        else [pod("large-0", templates=["node"])]
    )
    for number in stream(lab, 4 * WAIT):
        if number == 6:
            lab.create(*jobs)
        runs = [
            each for each in lab.pods() if each["metadata"]["name"].startswith("large") and each["spec"].get("nodeName")
        ]
        if runs:
            break
    if lab.hami.reserves:
        lab.wait_running(names=[each["metadata"]["name"] for each in jobs], seconds=30)
        note = lab.wait_event("large-0", "PlaceReserved")
        assert "its place on node n0 is reserved" in note
        assert lab.events(reason="Preempted") == []
        assert lab.overcommitted() == []
    else:
        assert runs == []
