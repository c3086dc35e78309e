"""kubelet, containerd and the driver come and go at any moment: every pod ends up running exactly once, and nothing leaks."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.objects import part, pod, template

T4 = "g4dn.12xlarge"
KILLS = int(os.environ.get("HAMI_DRA_KILLS", "6"))
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


def _come_and_go(bench, ending):
    """Pods that start all the time, the oldest deleted once they ran; returns how many there were."""
    waiting, running, count = [], [], 0
    while not ending.wait(0.1):
        if len(waiting) < 10:
            waiting.append(f"p{count}")
            bench.create(_pod(waiting[-1]))
            count += 1
        started = {each["metadata"]["name"] for each in bench.pods() if each["status"]["phase"] == "Running"}
        running += [name for name in waiting if name in started]
        waiting = [name for name in waiting if name not in started]
        bench.delete(*running[:-10])
        running = running[-10:]
    return count


def test_an_update_of_the_driver_fails_nothing(bench):
    """Two instances at once, the new one comes and the old one goes, twice; pods start and end all the while."""
    old = bench.start_driver(T4, "--instance-uid=0", name="driver-0")
    bench.create(_TEMPLATE)
    ending = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        pods = executor.submit(_come_and_go, bench, ending)
        try:
            for turn in range(1, 3):
                new = bench.start_driver(T4, f"--instance-uid={turn}", name=f"driver-{turn}")
                bench.hami.programs.pop(old.name)  # from here on it may end
                old.process.stop(grace=60)
                old = new
        finally:
            ending.set()
        assert pods.result() > 10
    left = [each["metadata"]["name"] for each in bench.pods() if "deletionTimestamp" not in each["metadata"]]
    bench.wait_running(*left)
    for name in left:
        bench.got(name)
    bench.delete_all()
    bench.wait_nothing_left()
    failed = [line for line in bench.events().splitlines() if "FailedPrepare" in line and _OWN_RACE not in line]
    assert failed == []


def test_wiped_slices_are_back(bench):
    bench.start_driver(T4)
    for item in bench.slices():
        bench.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
    bench.hami.wait_for("the slices again", lambda: set(bench.devices()) == SHARES, seconds=5)
