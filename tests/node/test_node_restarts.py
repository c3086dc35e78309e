"""kubelet, containerd and the driver come and go at any moment: every pod ends up running exactly once, and nothing leaks."""

import os
import random
import time

import pytest

from tests.e2e.objects import part, pod, template

T4 = "g4dn.12xlarge"
KILLS = int(os.environ.get("HAMI_DRA_KILLS", "10"))
"""50 in `make soak`."""
_OWN_RACE = "no relationship found between node"
"""Kubernetes' own: kubelet hears of a pod before the authorizer does, is refused its claim, and asks again."""
SHARES = {f"gpu-{index}" for index in range(4)}
_TEMPLATE = template("one", part("1Gi", "5"))


def _pod(name):
    return pod(name, templates=["one"])


def test_restarts_of_kubelet_and_driver(bench):
    """One after the other, and both at once; what runs goes on, what is new starts, what is gone while they are away is tidied up."""
    driver = bench.start_driver(T4)
    bench.run(_TEMPLATE, _pod("a"), _pod("b"))

    bench.node.restart_kubelet()  # it wipes the slices of its node
    bench.wait_driver(driver)
    bench.run(_pod("after-kubelet"))

    driver.process.stop()
    driver.process.start()
    bench.wait_driver(driver)
    bench.run(_pod("after-driver"))

    driver.process.kill()
    bench.delete("a")
    bench.node.restart_kubelet(kill=True, wait=False)
    bench.create(_pod("meanwhile"))
    driver.process.start()
    bench.wait_driver(driver)
    bench.node.wait_ready()
    bench.wait_running("meanwhile")

    bench.node.restart_containerd(kill=True)
    bench.run(_pod("after-containerd"))

    bench.api.wait_for(
        "the deleted one is gone", lambda: "a" not in {each["metadata"]["name"] for each in bench.pods()}
    )
    for name in ("b", "after-kubelet", "after-driver", "meanwhile", "after-containerd"):
        bench.got(name)  # was started once
    assert set(bench.devices()) == SHARES
    bench.delete_all()
    bench.wait_nothing_left()


@pytest.mark.timeout(1800)
def test_killed_in_the_middle_of_preparing(bench):
    """The driver dies by SIGKILL a random moment after a pod was bound, again and again."""
    dice = random.Random(6)  # the moments differ anyway: the machine does not repeat itself
    driver = bench.start_driver(T4)
    bench.create(_TEMPLATE)
    waiting = []
    for turn in range(KILLS):
        names = [f"p{turn}-{index}" for index in range(2)]
        bench.create(*map(_pod, names))
        waiting += names

        def bound(name=names[0]):
            return bench.pod(name)["spec"].get("nodeName")

        bench.hami.wait_for("a pod is bound", bound)
        time.sleep(dice.uniform(0, 0.15))
        driver.process.kill()
        driver.process.start()
        bench.wait_driver(driver)
        if len(waiting) > 20:  # and unpreparing is what the next kill may hit
            bench.wait_running(*waiting[:10], seconds=120)
            for name in waiting[:10]:
                bench.got(name)
            bench.delete(*waiting[:10])
            waiting = waiting[10:]
    bench.wait_running(*waiting, seconds=120)
    for name in waiting:
        bench.got(name)
    assert len(bench.prepared()) >= len(waiting)
    bench.delete_all()
    bench.wait_nothing_left()


def test_an_update_of_the_driver_fails_nothing(bench):
    """Two instances at once: the new one comes, the old one goes, and pods start all the time."""
    old = bench.start_driver(T4, "--instance-uid=old", name="driver-old")
    bench.create(_TEMPLATE)
    names = [f"p{index}" for index in range(12)]
    bench.create(*map(_pod, names[:4]))
    new = bench.start_driver(T4, "--instance-uid=new", name="driver-new", wait=False)
    bench.create(*map(_pod, names[4:8]))
    bench.wait_driver(new)
    bench.hami.programs.pop(old.name)  # from here on it may end
    old.process.ask_to_stop()
    bench.create(*map(_pod, names[8:]))
    bench.wait_running(*names)
    old.process.stop(grace=60)
    bench.create(_pod("last"))
    bench.wait_running("last")
    bench.delete_all()
    bench.wait_nothing_left()
    assert [line for line in bench.events().splitlines() if "Failed" in line and _OWN_RACE not in line] == []


def test_wiped_slices_are_back(bench):
    bench.start_driver(T4)
    for item in bench.slices():
        bench.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
    bench.hami.wait_for("the slices again", lambda: set(bench.devices()) == SHARES, seconds=5)
