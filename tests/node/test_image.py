"""The image of the Dockerfile, run as the chart says on a real kubelet: installed, tested, rebooted, upgraded, rolled back, uninstalled.

Nothing of the chart is changed but values that it documents. Pods have a network of their own; what kube-proxy would do is played:
for pods by `ServiceAddress`, for the API server by --enable-aggregator-routing, with which it calls the webhook's pods directly.
`make soak`, or: HAMI_DRA_SOAK=1 .venv/bin/pytest tests/node/test_image.py
"""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hack.controlplane import build
from hack.controlplane.api import ApiError
from hack.controlplane.cluster import ControlPlane
from hack.installation import Installation
from hack.node.node import Node
from hami_dra.api import names
from tests.e2e.chart_story import OURS
from tests.e2e.objects import legacy_pod, part, pod, template
from tests.node.bench import Bench, runnable
from tests.support import image as images
from tests.support.chart_fixtures import CHART

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SYSTEM = names.SYSTEM_NAMESPACE
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
T4 = "g4dn.12xlarge"
PROGRAMS = {"controller": 2, "webhook": 2, "driver": 1}
WHO = """
import json, os
def writable(path):
    try: open(path, "w")
    except OSError: return False
    return True
print("guest: " + json.dumps([os.getuid(), os.getgid(), writable("/opt/x"), writable("/tmp/x")]))
"""


@pytest.fixture(scope="module")
def store(machine_room):
    if why := images.why_not():
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(f"no image: {why}", pytrace=False)
        pytest.skip(f"NO IMAGE, NOT TESTED: {why}")
    folder = Path(tempfile.mkdtemp(prefix="hami-image-"))
    yield images.Store(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def archive(store):
    return store.build(images.ROOT, "checkout")


class Release:
    """The chart as a release of Helm on a cluster of one node."""

    def __init__(self, plane, node, helm, folder):
        self.plane, self.node, self._helm = plane, node, helm
        self.bench = Bench(plane, node, Installation(plane), "tenant")
        plane.api.patch("/api/v1/namespaces/tenant", {"metadata": {"labels": {"hami.io/webhook": "enabled"}}})
        here = {"kubernetes.io/hostname": node.name}
        values = {
            "image": {"repository": images.REPOSITORY, "tag": "checkout", "pullPolicy": "Never"},
            "driver": {
                "kubeletRoot": str(node.root),
                "cdiDir": str(node.cdi_dir),
                "extraArgs": [f"--device-folder={node.device_folder}"],
            },
            "vendors": {"nvidia": {"enabled": True, "simulated": [{"machine": T4, "nodeSelector": here}]}},
        }
        self._values = folder / "values.yaml"
        self._values.write_text(json.dumps(values))
        for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
            node.add_device(name)

    def helm(self, command, *options, fails=False):
        """What it printed."""
        where = ("--namespace", SYSTEM, "--kubeconfig", self.plane.admin_kubeconfig)
        code, out, err = self._helm(command, names.MANAGED_BY, *options, *where)
        assert (code != 0) == fails, out + err + "\n".join(self.troubles())
        return out + err

    def install(self, chart=CHART, *options):
        wait = ("--wait", "--timeout", "180s")
        return self.helm("install", chart, "--create-namespace", "--values", self._values, *wait, *options)

    def troubles(self):
        """What is wrong with the pods of the release, for a failure's message."""
        for each in self.plane.api.list(PODS):
            for status in each["status"].get("containerStatuses", ()):
                if not status["ready"]:
                    logs = sorted(self.node.folder.glob(f"pods/{SYSTEM}_{each['metadata']['name']}_*/*/*.log"))
                    ends = [line for log in logs for line in log.read_text().splitlines()[-8:]]
                    yield "\n".join([each["metadata"]["name"], str(status["state"]), *ends])

    def ready(self):
        """Names of ready pods by program."""
        found = {}
        for each in self.plane.api.list(PODS):
            conditions = {one["type"]: one["status"] for one in each["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in each["metadata"]:
                found.setdefault(_program(each), []).append(each["metadata"]["name"])
        return found

    def wait_ready(self):
        def all_are():
            return {name: len(found) for name, found in self.ready().items() if name in PROGRAMS} == PROGRAMS

        try:
            self.plane.api.wait_for("every program ready", all_are, seconds=120, every=0.5)
        except TimeoutError as error:
            raise AssertionError("\n".join([str(error), *self.troubles()])) from error

    def run(self, name):
        """A legacy pod and a pod with a claim: converted, placed, prepared and running."""
        claimed, legacy = f"{name}-claimed", f"{name}-legacy"
        self.bench.create(pod(claimed, templates=["one"]), legacy_pod(legacy, gpu=1, gpumem=2000))
        self.bench.wait_running(claimed, legacy, seconds=120)
        for each, limit in ((claimed, "1024m"), (legacy, "2000m")):
            assert self.bench.got(each)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
        return claimed, legacy

    @contextlib.contextmanager
    def admissions(self):
        """Legacy pods, created all the while (as dry runs); yields the list of errors."""
        errors, ending = [], threading.Event()
        body = runnable(legacy_pod("dry-run", gpu=1))

        def create():
            while not ending.wait(0.02):
                try:
                    self.plane.api.create(f"{self.bench.pods_path}?dryRun=All", body)
                except ApiError as error:
                    errors.append(str(error))

        with ThreadPoolExecutor(4) as executor:
            for _ in range(4):
                executor.submit(create)
            yield errors
            ending.set()

    def forget(self, *pods):
        self.bench.delete(*pods)
        self.plane.api.wait_for(
            "no pod left", lambda: not {each["metadata"]["name"] for each in self.bench.pods()} & {*pods}, seconds=60
        )


@pytest.fixture
def release(machine_room, archive, helm, tmp_path):
    plane = ControlPlane(extra_args={"kube-apiserver": ["--enable-aggregator-routing=true"]})
    with plane, Node(plane, network_plugins=images.PLUGINS) as node:
        node.import_images(archive)
        with images.ServiceAddress(int(plane.url.rpartition(":")[2])) as service:
            one = Release(plane, node, helm, tmp_path)
            one.bench.create(template("one", part("1Gi", "5")))
            yield one
            service.shutdown()


def test_the_same_commit_gives_one_digest(store, archive, tmp_path):
    """Built again from a copy of the checkout, whose files have other times."""
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns(".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(images.ROOT, copy, symlinks=True, ignore=left_out, copy_function=shutil.copy)
    first = images.digest(archive)
    assert images.digest(store.build(copy, "checkout")) == first


def test_installed_tested_rebooted_and_uninstalled(release):
    release.install()
    release.wait_ready()
    who = {}
    for each in release.plane.api.list(PODS):
        (status,) = each["status"]["containerStatuses"]
        who[_program(each)] = release.node.execute(status["containerID"], "python3", "-c", WHO)
    nobody, root = [65532, 65532, False, True], [0, 0, False, True]
    assert who == {"controller": nobody, "webhook": nobody, "driver": root}
    before = release.run("before")
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "120s")

    devices = [release.bench.allocated(each) for each in before]
    release.node.reboot()
    release.wait_ready()
    after = release.run("after")
    release.bench.wait_running(*before, seconds=120)
    for each in before:
        first, second = release.bench.outputs(each)
        assert first["env"] == second["env"], each
    assert [release.bench.allocated(each) for each in before] == devices
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "120s")

    with release.admissions() as errors:
        restart = ("--reset-then-reuse-values", "--set", "webhook.podAnnotations.restarted=yes")
        release.helm("upgrade", CHART, *restart, "--wait", "--timeout", "180s")
        time.sleep(10)  # until the last of the old ones has ended
    assert errors == []

    release.forget(*after, before[0])
    release.helm("uninstall", "--wait", "--timeout", "180s")
    kinds = [kind for kind in OURS if not kind.endswith(("slices", "claims", "templates"))]
    api = release.plane.api
    assert [name for kind in kinds for name in _names(api, kind) if "hami" in name] == []
    assert Installation(release.plane).fence_rules() == []
    assert release.bench.pod(before[1])["status"]["phase"] == "Running"


def test_upgraded_from_0_1_0_and_rolled_back(release, store, tmp_path):
    checkout = images.export(images.V0_1_0, tmp_path / "0.1.0")
    if checkout is None:
        pytest.skip("NO 0.1.0, NOT TESTED: fetch the whole history (git fetch --unshallow)")
    release.node.import_images(store.build_0_1_0(checkout))
    release.install(checkout / "charts/hami-dra", "--set", "image.tag=0.1.0")
    release.wait_ready()
    old = release.run("old")

    # as CHANGELOG.md has it; before that the upgrade says so
    upgrade = ("--reset-then-reuse-values", "--set", "image.tag=checkout", "--wait", "--timeout", "180s")
    part_of = "app.kubernetes.io/part-of=hami-dra"
    command = f"kubectl -n {SYSTEM} delete deployments,daemonsets -l {part_of}"
    assert command in release.helm("upgrade", CHART, *upgrade, fails=True)
    kubectl = (build.ensure("kubectl") / "kubectl", "--kubeconfig", release.plane.admin_kubeconfig)
    release.node.run(*kubectl, *command.split()[1:])
    release.helm("upgrade", CHART, *upgrade)
    release.wait_ready()
    new = release.run("new")
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "120s")

    # an image that is not there: the programs that run go on, and a rollback is all it takes
    serving = release.ready()
    broken = ("--reset-then-reuse-values", "--set", "image.tag=missing", "--wait", "--timeout", "20s")
    release.helm("upgrade", CHART, *broken, fails=True)
    assert release.ready() == serving
    meanwhile = release.run("meanwhile")
    release.helm("rollback", "--wait", "--timeout", "180s")
    release.wait_ready()
    for each in (*old, *new, *meanwhile):
        release.bench.got(each)  # was started once
    release.forget(*old, *new, *meanwhile)
    ours = {"claims", "CDI files", "checkpoint"}
    release.plane.api.wait_for("nothing left of them", lambda: not ours & release.bench.leftovers().keys())
    release.helm("uninstall", "--wait", "--timeout", "180s")


def _program(one):
    """Labels of 0.1.0 were others; the account of a program has its name."""
    return one["spec"]["serviceAccountName"].removeprefix("hami-dra-")


def _names(api, kind):
    return [item["metadata"]["name"] for item in api.list(f"/apis/{kind}")]
