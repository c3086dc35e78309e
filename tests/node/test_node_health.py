"""A card fails, or an operator takes it out of service: what the slice says, what the pods' status says, where new pods go.

The pods run on a real kubelet; the fault comes from the simulated machine's file.
"""

from tests.e2e.objects import part, pod, template
from tests.node.cards import health, use_cards, wait_health, wait_taints

T4 = "g4dn.12xlarge"
CORDON = "hami.io/device-cordon"


def wait_one_refused(bench, *names):
    """Until one of these pods was refused and the others run; returns its name."""

    def refused():
        reported = {
            event["involvedObject"]["name"]
            for event in bench.api.list(f"/api/v1/namespaces/{bench.namespace}/events")
            if event["reason"] == "FilteringFailed"
        }
        found = [pod["metadata"]["name"] for pod in bench.pods() if "nodeName" not in pod["spec"]]
        return found if len(found) == 1 and set(found) <= reported & set(names) else None

    (found,) = bench.hami.wait_for("one pod that finds no card", refused)
    bench.wait_running(*(name for name in names if name != found))
    return found


def four_large(bench):
    """Four pods, of which no two fit on one card; returns their names."""
    names = [f"large-{number}" for number in range(4)]
    bench.create(template("large", part("9Gi")), *(pod(name, templates=["large"]) for name in names))
    return names


def test_a_card_fails_and_recovers(bench):
    bench.start_driver(T4)
    use_cards(bench, ill=2, well=1)
    wait_health(bench, ill="Healthy", well="Healthy")

    bench.faults.write_text("2 xid-48 double bit ECC error\n")
    wait_taints(bench, ("gpu-2", "hami.io/xid", "NoSchedule"))
    wait_health(bench, ill="Unhealthy", well="Healthy")
    ((_, message),) = health(bench, "ill")
    assert message == "xid-48: double bit ECC error"

    names = four_large(bench)
    waiting = wait_one_refused(bench, *names)
    assert {bench.allocated(name)[0] for name in names if name != waiting} == {"gpu-0", "gpu-1", "gpu-3"}

    bench.faults.unlink()
    wait_taints(bench)
    wait_health(bench, ill="Healthy", well="Healthy")
    bench.wait_running(waiting)
    assert bench.allocated(waiting) == ["gpu-2"]
    for name in ("ill", "well", *names):
        bench.got(name)  # once: a fault of this kind drives nobody out
    bench.delete_all()
    bench.wait_nothing_left()


def test_pods_leave_a_card_that_is_lost_and_nothing_of_them_stays(bench):
    bench.start_driver(T4)
    use_cards(bench, gone=2, well=1)
    (claim_of_gone,) = [item for item in bench.claims() if item["metadata"]["name"] == "gone"]
    bench.faults.write_text("2 lost\n")
    wait_taints(bench, ("gpu-2", "hami.io/lost", "NoExecute"))
    bench.hami.wait_for("the pod gone", lambda: [item["metadata"]["name"] for item in bench.pods()] == ["well"])
    bench.hami.wait_for("its claim put back", lambda: claim_of_gone["metadata"]["uid"] not in bench.prepared())
    assert len(bench.cdi_files()) == 1
    bench.got("well")

    bench.faults.unlink()
    wait_taints(bench)
    use_cards(bench, back=2)
    wait_health(bench, back="Healthy", well="Healthy")
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_card_is_taken_out_of_service_and_put_back(bench):
    """Its pods go on, and it is not called ill."""
    bench.start_driver(T4)
    use_cards(bench, stays=2)
    node = f"/api/v1/nodes/{bench.node.name}"
    bench.api.patch(node, {"metadata": {"annotations": {CORDON: bench.cards(T4)[2].uuid}}})
    wait_taints(bench, ("gpu-2", "hami.io/cordoned", "NoSchedule"))
    names = four_large(bench)
    waiting = wait_one_refused(bench, *names)
    wait_health(bench, stays="Healthy")

    bench.api.patch(node, {"metadata": {"annotations": {CORDON: None}}})
    wait_taints(bench)
    bench.wait_running("stays", *names)
    assert bench.allocated(waiting) == ["gpu-2"]
    for name in ("stays", *names):
        bench.got(name)
    bench.delete_all()
    bench.wait_nothing_left()
