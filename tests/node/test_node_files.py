"""Files of the node that are not as the driver wants them, and a claim that nobody should have allocated: words, not damage.

CDI files of others beside its own, one that cannot be written, a damaged checkpoint, a card given away twice.
"""

import contextlib
import copy
import json
import uuid

from tests.e2e.objects import claim, part, pod, template

T4 = "g4dn.12xlarge"


@contextlib.contextmanager
def foreign_devices(bench):
    """A CDI file as `nvidia-ctk cdi generate` writes it: each card under its UUID, with device nodes and a variable."""
    devices = [
        {
            "name": card.uuid,
            "containerEdits": {
                "deviceNodes": [
                    {"path": f"/dev/nvidia{card.index}", "hostPath": str(bench.node.add_device(f"nvidia{card.index}"))}
                ],
                "env": [f"FROM_ANOTHER_FILE_{card.index}=yes"],
            },
        }
        for card in bench.cards(T4)
    ]
    file = bench.node.cdi_dir / "nvidia.json"
    file.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}))
    try:
        yield
    finally:
        file.unlink()


def test_cards_come_from_a_cdi_file_that_is_there(bench):
    """NVIDIA's own brings device nodes and libraries; the limits stay the driver's."""
    bench.start_driver(T4)
    uuids = {f"gpu-{card.index}": card.uuid for card in bench.cards(T4)}
    with foreign_devices(bench):
        seen = bench.run(template("two", part("1Gi", "5", count=2)), pod("both", templates=["two"]))
        numbers = sorted(device.removeprefix("gpu-") for device in bench.allocated("both"))
        assert {name for name in seen["env"] if name.startswith("FROM_ANOTHER_FILE")} == {
            f"FROM_ANOTHER_FILE_{number}" for number in numbers
        }
        assert seen["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert seen["env"]["CUDA_DEVICE_MEMORY_LIMIT_1"] == "1024m"
        assert sorted(path for path in seen["devices"] if path.startswith("/dev/nvidia")) == [
            f"/dev/nvidia{number}" for number in numbers
        ]
    for name in ("nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)
    seen = bench.run(pod("later", templates=["two"]))
    assert seen["env"]["NVIDIA_VISIBLE_DEVICES"] == ",".join(
        uuids[device] for device in sorted(bench.allocated("later"))
    )
    bench.delete_all()
    bench.wait_nothing_left()


def wait_reported(bench, name, *words):
    """Until an event of the pod has these words; returns it."""

    def reported():
        lines = bench.events().splitlines()
        return next((line for line in lines if line.startswith(f"{name}:") and all(word in line for word in words)), "")

    return bench.hami.wait_for(f"an event of {name} with {words}", reported)


def test_a_cdi_file_that_cannot_be_written(bench):
    """The pod waits, its event says why; it runs as soon as that is mended, and those before it never notice."""
    bench.start_driver(T4)
    bench.run(template("one", part("1Gi")), pod("before", templates=["one"]))
    uid = bench.create(claim("late", part("1Gi")))["metadata"]["uid"]
    obstacle = bench.node.cdi_dir / f"nvidia.hami.io-claim_{uid}.json"
    obstacle.mkdir()
    try:
        bench.create(pod("waits", claims=["late"]))
        wait_reported(bench, "waits", str(obstacle), "s a directory")
    finally:
        obstacle.rmdir()
    bench.wait_running("before", "waits")
    for name in ("before", "waits"):
        bench.got(name)
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_damaged_checkpoint(bench):
    """Made again from the CDI files: what runs goes on, what it holds is not given away, and it is taken back in the end."""
    driver = bench.start_driver(T4)
    names = [f"p{index}" for index in range(3)]
    bench.run(template("one", part("1Gi")), *(pod(name, templates=["one"]) for name in names))
    prepared = bench.prepared()
    assert len(prepared) == 3

    driver.process.kill()
    path = bench.node.root / "plugins/nvidia.hami.io/checkpoint.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    bench.delete("p0")  # kubelet asks for it as soon as the driver is there again
    driver.process.start()
    bench.wait_driver(driver)
    aside = path.with_name(f"{path.name}.damaged-1")
    assert len(aside.read_bytes()) == len(whole) // 2
    bench.run(pod("after", templates=["one"]))
    bench.api.wait_for("p0 is put back", lambda: len(bench.prepared() & prepared) == 2)
    for name in ("p1", "p2"):
        bench.got(name)
    aside.unlink()
    bench.delete_all()
    bench.wait_nothing_left()


def _allocated_again(bench, name, like):
    """A claim with the same device and amounts as another: what a broken or hostile allocator might write."""
    bench.create(claim(name, part("10Gi")))
    status = copy.deepcopy({"allocation": like["status"]["allocation"]})
    for result in status["allocation"]["devices"]["results"]:
        if "shareID" in result:
            result["shareID"] = str(uuid.uuid4())
    path = f"{bench.claims_path}/{name}"
    bench.api.patch(path, {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
    bench.api.patch(f"{path}/status", {"status": status})


def test_memory_that_was_given_away_twice(bench):
    """The driver is the last line of defence: the second pod waits, its event says who has the card, the first goes on."""
    bench.start_driver(T4)
    bench.run(
        claim("first", part("10Gi", selector='device.attributes["hami.io"].index == 1')), pod("first", claims=["first"])
    )
    _allocated_again(bench, "second", bench.claim_of("first"))
    bench.create(pod("second", claims=["second"], gated=False))
    wait_reported(bench, "second", "memory", "first")
    assert bench.outputs("first")
    assert len(bench.prepared()) == 1
    bench.delete("first")
    bench.wait_running("second")
    assert bench.got("second")["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "10240m"
    bench.delete_all()
    bench.wait_nothing_left()
