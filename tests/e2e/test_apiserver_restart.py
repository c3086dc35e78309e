"""The API server goes down and comes back while pods are being placed: nothing is lost, nothing is given twice."""

from tests.e2e.lab import T4
from tests.e2e.objects import part, pod, template


def test_pods_are_placed_over_a_restart_of_the_api_server(lab, control_plane):
    lab.machines(T4, "n0", "n1")
    lab.create(template("half", part("7500Mi")))
    names = [f"web-{number:02}" for number in range(16)]  # two on a card: all cards of both nodes
    for number, name in enumerate(names):
        if number == 6:
            control_plane.restart_apiserver()  # the first ones are on their way
        lab.create(pod(name, templates=["half"], gated=number % 2 == 0))
    lab.wait_running(names=names, seconds=120)
    assert lab.overcommitted() == []
    # Not of all pods: kube-scheduler does not send an event again that the stopping server refused,
    # nor one about a binding whose answer it did not get.
    assert {event["reportingController"] for event in lab.events(reason="Scheduled")} == {"default-scheduler"}
    assert not any(item["spec"].get("schedulingGates") for item in lab.pods())
    # and it goes on: a card that is freed is given to the one that waits
    lab.create(pod("late", templates=["half"]))
    lab.wait_event("late", "FilteringFailed", "CardInsufficientMemory")
    lab.delete_pod(names[0])
    lab.wait_running(names=["late"])
    assert lab.overcommitted() == []
