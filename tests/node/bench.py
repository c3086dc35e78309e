"""A real node as a test sees it: drivers with simulated machines, pods, what their containers printed, and what is left.

All is read from the API server, from the node's folders and from the containers themselves; nothing of the product's own view
is used to judge the product.
"""

import contextlib
import copy
import json
import time

from hack.node.image import GUEST
from hami_dra.driver.simulated import machine as simulated_machine
from tests.e2e import observe

QUICK = ("--health-every=0.3s", "--recovery-time=1s", "--confirm-time=1s")
"""Flags of a driver that does all it does sooner."""

EVENTS = "/api/v1/namespaces/{}/events"


def runnable(pod, image=GUEST, **spec):
    """The pod, so that it runs on a node without a network and without a registry, and ends at once when told."""
    pod = copy.deepcopy(pod)
    pod["spec"] |= {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        **spec,
    }
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        container |= {"image": image, "imagePullPolicy": "Never"}
    return pod


class Bench:
    """`hami` is the Installation; its programs other than drivers are the fixture's."""

    def __init__(self, plane, node, hami, namespace):
        self.plane, self.node, self.hami, self.namespace = plane, node, hami, namespace
        self.api = plane.api
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.claims_path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self.faults = node.folder / "faults"
        self.library = node.folder / "library"
        self.kernel = node.folder / "kernel"
        self._drivers = []
        self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.api.wait_for(
            "its service account", lambda: self.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        )

    def close(self):
        if not self._drivers_run():
            self.node.kubelet.check()
        self.delete_all(wait=False)
        with contextlib.suppress(TimeoutError):
            self.wait_empty()
        for driver in self._drivers:
            driver.process.stop()
            self.hami.programs.pop(driver.name, None)
        self.faults.unlink(missing_ok=True)
        for remembered in ("cards.json", "noted-faults.json"):  # the next test has another machine
            for file in self.node.root.glob(f"plugins/*/{remembered}"):
                file.unlink()
        self.api.delete(observe.SLICES, fieldSelector=f"spec.nodeName={self.node.name}")
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def _drivers_run(self):
        return any(driver.process.running for driver in self._drivers)

    # -- drivers -----------------------------------------------------------------------------------------------------

    def driver_flags(self, machine):
        simulated = (f"--machine={machine}", f"--simulated-faults={self.faults}") if machine else ()
        return (
            *simulated,
            f"--root={self.node.root}",
            f"--cdi-dir={self.node.cdi_dir}",
            f"--device-folder={self.node.device_folder}",
            f"--library-folder={self.library}",
            f"--kernel-root={self.kernel}",
            *QUICK,
        )

    def start_driver(self, machine, *flags, name="driver", wait=True, environment=None):
        """The node's driver with a simulated machine, or with the hardware it finds; returns when kubelet knows it and its cards are published."""
        flags = (*self.driver_flags(machine), *flags)
        program = self.hami.start_driver(self.node.name, *flags, name=name, environment=environment)
        self._drivers.append(program)
        if wait:
            self.wait_driver(program)
        return program

    def wait_driver(self, program, seconds=60):
        def serves():
            return program.get("/readyz")[0] == 200

        self.hami.wait_for("a driver that kubelet knows, with its slices published", serves, seconds=seconds)

    def cards(self, machine):
        return simulated_machine(machine, self.node.name).cards

    def slices(self):
        return [item for item in self.api.list(observe.SLICES) if item["spec"].get("nodeName") == self.node.name]

    def devices(self):
        """Names, in the order in which kube-scheduler tries them."""
        ordered = sorted(self.slices(), key=lambda item: item["metadata"]["name"])
        return [device["name"] for item in ordered for device in item["spec"].get("devices") or ()]

    def taints(self):
        return {
            (device["name"], taint["key"], taint["effect"])
            for item in self.slices()
            for device in item["spec"].get("devices") or ()
            for taint in device.get("taints", ())
        }

    # -- objects -----------------------------------------------------------------------------------------------------

    def create(self, *items, **spec):
        """Adds objects in the test's namespace, pods made runnable; returns the last."""
        for item in items:
            wanted = runnable(item, **spec) if item["kind"] == "Pod" else item
            created = self.api.add({**wanted, "metadata": {"namespace": self.namespace, **item["metadata"]}})
        return created

    def pod(self, name):
        return self.api.get(f"{self.pods_path}/{name}")

    def pods(self):
        return self.api.list(self.pods_path)

    def claims(self):
        return self.api.list(self.claims_path)

    def claim_of(self, pod):
        """The claim of a pod with one claim, however it was made."""
        uid = self.pod(pod)["metadata"]["uid"]
        (found,) = [
            claim
            for claim in self.claims()
            if any(consumer["uid"] == uid for consumer in claim.get("status", {}).get("reservedFor", ()))
        ]
        return found

    def allocated(self, pod):
        """Names of the devices of a pod's one claim."""
        results = self.claim_of(pod)["status"]["allocation"]["devices"]["results"]
        return [result["device"] for result in results]

    def delete(self, *names):
        for name in names:
            self.api.delete(f"{self.pods_path}/{name}")

    def delete_all(self, *, wait=True):
        self.api.delete(self.pods_path)
        self.api.delete(self.claims_path)
        if wait:
            self.wait_empty()

    def wait_empty(self, seconds=90):
        self.api.wait_for(
            "no pod and no claim left", lambda: not self.pods() and not self.claims(), seconds=seconds, every=0.2
        )

    # -- what became of them -----------------------------------------------------------------------------------------

    def wait_running(self, *names, seconds=60):
        """Until every container of the pods runs. Raises TimeoutError with the events of the namespace."""

        def running():
            pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
            return all(name in pods and _all_run(pods[name]) for name in names)

        try:
            self.hami.wait_for(f"{', '.join(names[:5])} running", running, seconds=seconds)
        except TimeoutError as error:
            raise TimeoutError("\n".join([str(error), self.events(), *self._complaints()])) from error

    def _complaints(self):
        """Of kubelet and the drivers, the last of each."""
        for what, log in (("kubelet", self.node.kubelet), *((one.name, one.process) for one in self._drivers)):
            lines = [line for line in log.tail(400).splitlines() if "eviction" not in line and "cri_stats" not in line]
            yield "\n".join([f"{what}:", *lines[-12:]])

    def events(self):
        found = self.api.list(EVENTS.format(self.namespace))
        return "\n".join(
            f"{each['involvedObject']['name']}: {each.get('count', 1)} x {each['reason']}: {each.get('message', '')}"
            for each in found
        )

    def run(self, *items, **spec):
        """Creates them, waits until the pods among them run, and returns what the first container of the last pod got."""
        self.create(*items, **spec)
        names = [item["metadata"]["name"] for item in items if item["kind"] == "Pod"]
        self.wait_running(*names)
        return self.got(names[-1])

    def got(self, pod, container=""):
        """What the container printed; it must have been started exactly once."""
        outputs = self.outputs(pod, container)
        assert len(outputs) == 1, f"{pod} was started {len(outputs)} times"
        return outputs[0]

    def outputs(self, pod, container=""):
        found = self.pod(pod)
        deadline = time.monotonic() + 10
        while not (outputs := self.node.outputs(found, container)) and time.monotonic() < deadline:
            time.sleep(0.05)  # containerd writes the log behind the container's back
        return outputs

    # -- what is left ------------------------------------------------------------------------------------------------

    def prepared(self, driver="nvidia.hami.io"):
        """Uids of the claims in the checkpoint of a driver."""
        path = self.node.root / "plugins" / driver / "checkpoint.json"
        if not path.exists():
            return set()
        return {claim["uid"] for claim in json.loads(path.read_text())["state"]["claims"]}

    def cdi_files(self):
        return sorted(path.name for path in self.node.cdi_dir.iterdir())

    def leftovers(self, driver="nvidia.hami.io"):
        """Everything that outlived the pods; empty when the driver tidied up, or a claim or pod is still there."""
        folders = self.library / "vgpu" / "containers"
        return {
            what: found
            for what, found in {
                "pods": [pod["metadata"]["name"] for pod in self.node.pods()],
                "claims": [claim["metadata"]["name"] for claim in self.claims()],
                "CDI files": self.cdi_files(),
                "checkpoint": sorted(self.prepared(driver)),
                "folders": sorted(path.name for path in folders.iterdir()) if folders.exists() else [],
                "mounts": self.node.mounts(),
                "cgroups": [str(path) for path in self.node.cgroups()],
            }.items()
            if found
        }

    def wait_nothing_left(self, driver="nvidia.hami.io", seconds=60):
        last = {}

        def gone():
            nonlocal last
            last = self.leftovers(driver)
            return not last

        try:
            self.api.wait_for("nothing left", gone, seconds=seconds, every=0.2)
        except TimeoutError as error:
            raise AssertionError(f"left behind: {last}") from error


def _all_run(pod):
    statuses = pod["status"].get("containerStatuses", ())
    return len(statuses) == len(pod["spec"]["containers"]) and all("running" in each["state"] for each in statuses)
