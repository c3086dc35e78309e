"""What programs in containers are told of their cards' memory, and what they can take of it, with a library that limits as HAMi-core does.

The driver has its real NVIDIA back end on a pretended NVML. In the containers CUDA and NVML are pretended too (hack/node/cuda); the
dynamic linker, which preloads the limiting library from where the driver mounts it, is real. All containers are user 1000 and have a
read-only root file system.
"""

import json

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.views.overview import ContainerUse, container_uses
from hack.node import cuda
from hack.node.image import CUDA, Image
from hami_dra.api import names
from tests.e2e.objects import claim, part, pod, request, template
from tests.node.cards import on_card
from tests.support.nvml.fake import FakeNvml, gpu

T4, A10G = 15360, 23028
"""MiB."""
BUSES = {index: f"00000000:{0x1B + index:02X}:00.0" for index in range(4)}
SIZES = {0: T4, 1: T4, 2: A10G, 3: A10G}
PRETENDED = ",".join(f"{index} {bus} {SIZES[index]} {1 if SIZES[index] == T4 else 2}" for index, bus in BUSES.items())
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def image(node):
    node.add_images({CUDA: Image(cuda.files(), f"/{cuda.ASK}")})


@pytest.fixture
def start(bench, image, tmp_path):
    """`start(*flags)`: a driver for two T4s and two faster A10Gs, on a node where the library is installed; returns its folder."""
    folder = bench.library / "vgpu"
    arguments = ["install-library", f"--from={cuda.ensure()}", f"--library-folder={bench.library}"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    for name in (*(f"nvidia{index}" for index in BUSES), "nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)
    names = {T4: '"Tesla T4"', A10G: '"NVIDIA A10G"'}
    gpus = (gpu(index, name=names[SIZES[index]], memory=SIZES[index], bus=bus) for index, bus in BUSES.items())
    fake = FakeNvml(tmp_path, "".join(["driver 550.90.07\ncuda 12040\n", *gpus]))
    wanted = ("LD_LIBRARY_PATH", "FAKE_NVML_CONFIG", "FAKE_NVML_EVENTS")
    environment = {name: fake.environment()[name] for name in wanted}

    def start(*flags):
        bench.start_driver("", "--vendor=nvidia", *flags, environment=environment)
        return folder

    return start


def asking(name, *allocations, containers=("main",), init=(), **used):
    """A pod whose containers allocate so many MiB of each card, as CUDA numbers them, and say what they see."""
    item = pod(name, **used)
    (like,) = item["spec"]["containers"]
    like |= {
        "args": [f"alloc={number}:{mebibytes}" for number, mebibytes in allocations],
        "env": [{"name": "PRETENDED_GPUS", "value": PRETENDED}],
        "securityContext": {"readOnlyRootFilesystem": True, "runAsUser": 1000},
    }
    item["spec"]["containers"] = [{**like, "name": each} for each in containers]
    item["spec"]["initContainers"] = [{**like, "name": each, "args": [*like["args"], "once"]} for each in init]
    return item


def cards(seen):
    """Card → MiB, in CUDA's order; NVML, and both ways to ask CUDA, say the same."""
    found = {card["bus"]: card["total"] for card in seen["cuda"]}
    assert {card["bus"]: card["all"] for card in seen["cuda"]} == found
    assert {card["bus"]: card["total"] for card in seen["nvml"]} == found
    return [(next(index for index, bus in BUSES.items() if bus == key), total) for key, total in found.items()]


def free(seen):
    return [card["free"] for card in seen["cuda"]]


def ids(bench, name):
    return {each["name"]: each["containerID"] for each in bench.pod(name)["status"]["containerStatuses"]}


def started_again(bench, name, times=2):
    """What the container printed when it was started the last time."""
    return bench.hami.wait_for(
        f"{name} started {times} times", lambda: (found := bench.outputs(name))[times - 1 :] and found[-1]
    )


def test_programs_are_told_what_they_may_use_of_each_card(bench, start):
    """B0, B8, B12: whole cards, shares, both in one container, containers that share a request; then a container is killed."""
    start()
    bench.create(
        claim("whole", request(selector=on_card(0))),
        asking("whole", (0, T4), claims=["whole"]),
        claim("share", part("4Gi", selector=on_card(2))),
        asking("share", (0, 3000), (0, 2000), claims=["share"]),
        claim("mixed", request("all", selector=on_card(1)), part("2Gi", name="some", selector=on_card(3))),
        asking("mixed", (0, 8000), (1, 1500), (1, 1000), claims=["mixed"]),
        template("common", part("3Gi", selector=on_card(2))),
        asking("pair", (0, 2500), templates=["common"], containers=("one", "two"), init=("before",)),
        image=CUDA,
    )
    bench.wait_running("whole", "share", "mixed", "pair")

    seen = bench.got("whole")
    assert (cards(seen), seen["allocated"], seen["preloaded"]) == ([(0, T4)], [0], False)
    seen = bench.got("share")
    assert (cards(seen), seen["allocated"], free(seen)) == ([(2, 4096)], [0, OUT_OF_MEMORY], [1096])
    seen = bench.got("mixed")
    assert (cards(seen), seen["allocated"]) == ([(1, T4), (3, 2048)], [0, 0, OUT_OF_MEMORY])
    assert free(seen) == [T4 - 8000, 548]
    chosen = bench.node.execute(ids(bench, "mixed")["main"], f"/{cuda.ASK}", "CUDA_VISIBLE_DEVICES=1", "once")
    assert [(card["bus"], card["total"]) for card in chosen["cuda"]] == [(BUSES[3], T4)]  # as the docs say
    for container in ("before", "one", "two"):
        seen = bench.got("pair", container)
        assert (cards(seen), seen["allocated"], free(seen)) == ([(2, 3072)], [0], [572])

    bench.node.kill_container(ids(bench, "share")["main"])
    seen = started_again(bench, "share")
    assert (cards(seen), seen["allocated"], free(seen)) == ([(2, 4096)], [0, OUT_OF_MEMORY], [1096])
    bench.delete_all()
    bench.wait_nothing_left()


def status_asks_the_driver_through_its_pod(bench, driver, card, used):
    """The driver is a process beside kubelet here: a pod of the node with the driver's labels has its address and port.

    Two users: one may only get that pod's proxy and see what `status` reads, the other one lacks the proxy.
    """
    labels = {names.PART_OF_LABEL: names.MANAGED_BY, names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    standing = pod("driver")
    standing["metadata"]["labels"] = labels
    standing["spec"]["containers"][0]["ports"] = [{"name": names.HTTP_PORT, "containerPort": driver.port}]
    bench.run(standing)
    shown = {}
    for user, resources in (("reads", ["pods/proxy"]), ("lacks", ["pods/log"])):
        grant(bench, user, resources)
        config = bench.plane.kubeconfig_for_user(user)
        answer = CliRunner().invoke(
            app,
            ["status", "--usage", "--kubeconfig", str(config), "--install-namespace", bench.namespace, "-o", "json"],
        )
        assert answer.exit_code == 0, answer.output
        shown[user] = json.loads(answer.stdout)["usage"], answer.stderr
    assert shown["reads"][0] == [
        {
            "node": bench.node.name,
            "card": "gpu-3",
            "namespace": used.namespace,
            "pod": used.pod,
            "container": used.container,
            "memoryUsed": used.memory_used,
            "memoryLimit": used.memory_limit,
            "utilization": used.utilization,
        }
    ]
    assert shown["lacks"][0] == []
    assert "pods/proxy" in shown["lacks"][1]
    bench.delete("driver")


def grant(bench, user, resources):
    """Let a user see everything as hami-dra-viewer does, and get these in the namespace of the drivers."""
    authorization = "/apis/rbac.authorization.k8s.io/v1"
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
    for scope, kind, rules in (
        ("", "Cluster", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}]),
        (f"namespaces/{bench.namespace}/", "", [{"apiGroups": [""], "resources": resources, "verbs": ["get"]}]),
    ):
        name = f"{bench.namespace}-{user}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{kind}Role", "name": name}
        plural = f"{kind}role".lower()
        bench.api.create(f"{authorization}/{scope}{plural}s", {"metadata": {"name": name}, "rules": rules})
        bench.api.create(
            f"{authorization}/{scope}{plural}bindings",
            {"metadata": {"name": name}, "roleRef": role, "subjects": subjects},
        )


@pytest.mark.parametrize("usage_cache", ["private", "host"])
def test_pods_that_join_a_claim_leave_each_others_usage_alone(bench, start, usage_cache):
    """B5: HAMi-core forgets what a process of the same number used, and each container begins with number 1."""
    folder = start(f"--usage-cache={usage_cache}")
    bench.run(
        claim("joined", part("1Gi", selector=on_card(2))), asking("first", (0, 600), claims=["joined"]), image=CUDA
    )
    seen = bench.run(asking("later", (0, 700), claims=["joined"]), image=CUDA)
    assert (cards(seen), seen["allocated"], free(seen)) == ([(2, 1024)], [0], [324])
    seen = bench.node.execute(ids(bench, "first")["main"], f"/{cuda.ASK}", "alloc=0:500", "once")
    assert (seen["allocated"], free(seen)) == ([OUT_OF_MEMORY], [424])
    assert not (folder / "containers").exists()
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_file_of_usage_on_the_host_is_found_again_by_a_container_that_starts_again(bench, start):
    folder = start("--usage-cache=host", "--host=0.0.0.0")
    seen = bench.run(
        template("own", part("1Gi", selector=on_card(3))), asking("own", (0, 600), templates=["own"]), image=CUDA
    )
    assert (cards(seen), free(seen)) == ([(3, 1024)], [424])
    kept = folder / "containers" / f"{bench.pod('own')['metadata']['uid']}_main"
    (file,) = kept.glob("*.cache")
    written = file.stat()
    assert written.st_size == seen["cache"]

    (driver,) = (program for name, program in bench.hami.programs.items() if "driver" in name)
    used = ContainerUse(
        namespace=bench.namespace,
        pod="own",
        container="main",
        memory_used=600 << 20,
        memory_limit=1 << 30,
        utilization=0.0,
    )
    wanted = {"GPU-00000003-aaaa-bbbb-cccc-000000000000": (used,)}
    bench.hami.wait_for(
        "what the container uses to be known", lambda: container_uses(driver.get("/metrics")[1]) == wanted
    )
    status_asks_the_driver_through_its_pod(bench, driver, next(iter(wanted)), used)

    bench.node.kill_container(ids(bench, "own")["main"])
    seen = started_again(bench, "own")
    assert (cards(seen), seen["allocated"], free(seen)) == ([(3, 1024)], [0], [424])
    (file,) = kept.glob("*.cache")
    assert file.stat().st_ino == written.st_ino
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_pod_that_joins_a_claim_is_given_no_other_claims_devices(bench, start):
    """kubelet hands it what the first pod got: a container that would have more than the claim is refused."""
    start()
    for index, name in enumerate(("a", "b")):
        bench.create(claim(name, part("1Gi", selector=on_card(index))))
    bench.create(asking("both", claims=["a", "b"]), image=CUDA)
    said = bench.hami.wait_for(
        "an event", lambda: [line for line in bench.events().splitlines() if "into one claim" in line]
    )
    assert all(line.startswith("both:") for line in said)
    seen = bench.run(asking("later", claims=["a"]), image=CUDA)
    assert cards(seen) == [(0, 1024)]
    bench.delete_all()
    bench.wait_nothing_left()
