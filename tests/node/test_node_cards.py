"""Which card is which, on a real node: the driver's real back ends, with a vendor's tool that fails, says less, and numbers cards again.

A pod that runs is driven out only when its card is gone, and a card is not given out a second time because it is called otherwise.
"""

import json

import pytest

from tests.e2e.objects import claim, part, pod, request, template
from tests.node.cards import on_card, wait_taints
from tests.support.nvml.fake import FakeNvml, gpu, machine
from tests.support.pretended_cards import VENDORS

GCU = VENDORS["enflame"]
CLASS = "enflame-gcu.hami.io"
LOST = "hami.io/lost"


class Tool:
    """A pretended `efsmi`: prints what the files say, or fails while there is a file `fails`."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "bin").mkdir()
        path = folder / "bin/efsmi"
        path.write_text(
            f'#!/bin/sh\ncd "{folder}"\n[ "$*" = -q ] && echo >> looks\n[ -e fails ] && exit 1\n'
            'case "$*" in -q) cat query ;; "") cat table ;; *) exit 2 ;; esac\n'
        )
        path.chmod(0o755)

    def shows(self, cards, query=None):
        """In one step each, so that no look sees half a listing."""
        for name, text in (("query", query or GCU.listing(("-q",), cards)), ("table", GCU.listing((), cards))):
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.rename(self.folder / name)

    def fails(self, fails):
        file = self.folder / "fails"
        if fails:
            file.touch()
        else:
            file.unlink()

    def looks(self):
        return len((self.folder / "looks").read_text().splitlines())


@pytest.fixture
def gcus(bench, tmp_path):
    """(tool, driver) on a node with four cards."""
    for number in range(4):
        bench.node.add_device(f"gcu{number}")
    tool = Tool(tmp_path)
    tool.shows([0, 1, 2, 3])
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    return tool, bench.start_driver("", "--vendor=enflame", environment=path)


def whole(name, selector=None):
    return claim(name, request(device_class=CLASS, selector=selector)), pod(name, claims=[name])


def specs(bench):
    return [json.loads(path.read_text()) for path in bench.node.cdi_dir.glob("*.json")]


def wait_looks(bench, tool, times=15):
    """Until the driver has looked at its cards so often: every 0.3 s, where the confirm time is 1 s."""
    seen = tool.looks()
    bench.hami.wait_for(f"{times} looks", lambda: tool.looks() >= seen + times)


def test_a_tool_that_slips_drives_nobody_out(bench, gcus):
    """It fails, cannot read a card, forgets one in one listing; then the card is gone in truth."""
    tool, driver = gcus
    bench.run(*whole("stays", on_card(1)))
    uid = bench.pod("stays")["metadata"]["uid"]

    tool.fails(True)
    wait_looks(bench, tool)
    tool.fails(False)
    assert bench.taints() == set()

    query = GCU.listing(("-q",), [0, 1, 2, 3])
    blocks = query.split("DEV ID ")
    blocks[2] = blocks[2].replace("42976 MiB", "N/A")
    table = (tool.folder / "table").read_text()
    tool.shows([0, 1, 2, 3], query="DEV ID ".join(blocks).replace("TR6Y47000102", "N/A"))
    (tool.folder / "table").write_text(
        table.replace("42976MiB  Disable | 0%          A0A165000001", "N/A  Disable | 0%          A0A165000001")
    )
    wait_taints(bench, ("gcu-1", "hami.io/unhealthy", "NoSchedule"))
    wait_looks(bench, tool)
    assert bench.taints() == {("gcu-1", "hami.io/unhealthy", "NoSchedule")}

    driver.process.stop()
    driver.process.start()
    bench.wait_driver(driver)
    wait_looks(bench, tool)
    assert bench.taints() == {("gcu-1", "hami.io/unhealthy", "NoSchedule")}
    assert bench.pod("stays")["metadata"]["uid"] == uid

    tool.shows([0, 2, 3])
    wait_taints(bench, ("gcu-1", LOST, "NoExecute"))
    bench.hami.wait_for("the pod gone", lambda: bench.pods() == [])
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_card_that_was_gone_before_the_driver_started_drives_its_pod_out(bench, gcus):
    tool, driver = gcus
    bench.run(*whole("gone", on_card(2)))
    bench.run(*whole("stays", on_card(1)))
    driver.process.stop()
    tool.shows([0, 1, 3])
    driver.process.start()
    bench.wait_driver(driver)
    wait_taints(bench, ("gcu-2", LOST, "NoExecute"))
    bench.hami.wait_for("one pod gone", lambda: [item["metadata"]["name"] for item in bench.pods()] == ["stays"])
    bench.got("stays")
    bench.delete_all()
    bench.wait_nothing_left()


def test_numbers_that_move_give_no_card_out_twice(bench, gcus):
    """Card 0 is removed while the driver is updated; efsmi numbers the others again, and containers are told the new numbers."""
    tool, driver = gcus
    for name, index in (("one", 1), ("two", 2)):
        bench.run(*whole(name, on_card(index)))
        assert bench.got(name)["env"]["ENFLAME_VISIBLE_DEVICES"] == str(index)
    driver.process.stop()
    tool.shows([1, 2, 3])
    driver.process.start()
    bench.wait_driver(driver)
    wait_taints(bench, ("gcu-0", LOST, "NoExecute"))

    bench.create(
        template("any", request(device_class=CLASS)), *(pod(f"late-{number}", templates=["any"]) for number in range(2))
    )
    placed = bench.hami.wait_for(
        "a pod on the free card",
        lambda: [
            item["metadata"]["name"]
            for item in bench.pods()
            if item["metadata"]["name"].startswith("late") and "nodeName" in item["spec"]
        ],
    )
    bench.wait_running(*placed)
    assert [bench.allocated(name) for name in placed] == [["gcu-3"]]
    assert bench.got(placed[0])["env"]["ENFLAME_VISIBLE_DEVICES"] == "2"
    reported = {device["containerEdits"]["env"][0] for spec in specs(bench) for device in spec["devices"]}
    assert reported == {f"ENFLAME_VISIBLE_DEVICES={number}" for number in range(3)}
    bench.delete_all()
    bench.wait_nothing_left()


def test_gpus_that_nvml_numbers_again_are_not_given_out_twice(bench, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)
    fake = FakeNvml(tmp_path, machine(2))
    wanted = ("LD_LIBRARY_PATH", "FAKE_NVML_CONFIG", "FAKE_NVML_EVENTS")
    environment = {name: fake.environment()[name] for name in wanted}
    driver = bench.start_driver("", "--vendor=nvidia", environment=environment)
    bench.run(claim("holds", request(selector=on_card(1))), pod("holds", claims=["holds"]))
    seen = bench.got("holds")["env"]["NVIDIA_VISIBLE_DEVICES"]

    driver.process.stop()
    fake.describe("driver 550.90.07\ncuda 12040\n" + gpu(1))
    driver.process.start()
    bench.wait_driver(driver)
    wait_taints(bench, ("gpu-0", LOST, "NoExecute"))
    assert bench.devices() == ["gpu-1", "gpu-0"]
    bench.create(claim("late", part("1Gi")), pod("late", claims=["late"]))
    bench.hami.wait_for("a pod that finds no card", lambda: "FilteringFailed" in bench.events())
    assert "nodeName" not in bench.pod("late")["spec"]
    bench.delete("holds")
    bench.wait_running("late")
    assert bench.allocated("late") == ["gpu-1"]
    assert bench.got("late")["env"]["NVIDIA_VISIBLE_DEVICES"] == seen
    bench.delete_all()
    bench.wait_nothing_left()
