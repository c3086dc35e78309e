"""A stream of small pods on a real control plane: the large job gets its place after its wait, and without that it starves.

Times and ranks are played in virtual time (tests/unit/reconcile/preemption/test_reservations.py).
"""

import json
import subprocess
import sys
import time

import pytest

from hack.installation import QUICK
from tests.e2e.lab import T4
from tests.e2e.objects import pod, request, template
from tests.support.gang_objects import in_labelled_group

WAIT = 6


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_controller(*QUICK, f"--save-after={WAIT}s")
    installation.wait_ready()
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


def status(lab):
    """What `hami-dra status` says is reserved for the large job: pod → node, number of devices, whether it says until when."""
    command = [
        sys.executable,
        "-m",
        "controller.cli.main",
        "status",
        "-o",
        "json",
        "--kubeconfig",
        str(lab.plane.admin_kubeconfig),
    ]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    kept = [each for each in shown["reservations"] if each["kind"] == "reserved" and "/large" in each["pod"]]
    return {each["pod"].partition("/")[2]: (each["node"], len(each["devices"]), bool(each["until"])) for each in kept}


def large(lab, *, is_gang=False, is_asked=True):
    """What was created beside the stream, which of it runs in the end, and what `hami-dra status`, if asked, said before."""
    lab.machines(T4, "n0")
    lab.create(template("card", request(count=1)), template("node", request(count=4)))
    jobs = (
        [in_labelled_group(small(f"large-{i}"), "g", 4) for i in range(4)]
        if is_gang
        else [pod("large-0", templates=["node"])]
    )
    runs, reserved = [], {}
    for number in stream(lab, 4 * WAIT):
        if number == 6:
            lab.create(*jobs)
        elif number > 6 + WAIT / 2 and is_asked:
            reserved = status(lab) or reserved
        runs = [
            each for each in lab.pods() if each["metadata"]["name"].startswith("large") and each["spec"].get("nodeName")
        ]
        if runs:
            break
    return [each["metadata"]["name"] for each in jobs], runs, reserved


@pytest.mark.on_1_36
@pytest.mark.parametrize("is_gang", [False, True], ids=["pod", "gang"])
def test_a_large_job_beside_a_stream_of_small_ones_gets_a_place(lab, is_gang):
    names, _, reserved = large(lab, is_gang=is_gang)
    lab.wait_running(names=names, seconds=30)
    assert "its place on node n0 is reserved" in lab.wait_event("large-0", "PlaceReserved")
    assert reserved == {name: ("n0", 4 // len(names), True) for name in names}
    assert lab.events(reason="Preempted") == []
    assert lab.overcommitted() == []


def test_control_without_reservations_it_starves(lab):
    with lab.other_controller(*QUICK, "--save-after=0s"):
        assert large(lab, is_asked=False)[1] == []
