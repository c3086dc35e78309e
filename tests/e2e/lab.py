"""A cluster as an end-to-end test sees it: a namespace of its own, machines, objects, and what became of them.

Everything is read from the API server as the administrator; nothing of the product's view is used to judge the product.
"""

import contextlib
from pathlib import Path

import yaml

from hack.controlplane.api import ApiError
from hack.installation import DRIVER
from hami_dra.api.allocator import allocator_of
from hami_dra.api.config import FleetFile
from hami_dra.api.resource import AllocationResult
from hami_dra.driver.fleet.nodes import planned_nodes
from tests.e2e import observe

EXAMPLES = Path(__file__).parents[2] / "examples"
T4 = "g4dn.12xlarge"
A10G = "g5.12xlarge"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"


class Lab:
    """`hami` is the Installation under test; `namespace` is emptied by `clear`, machines go with `close`."""

    def __init__(self, plane, hami, namespace):
        self.plane = plane
        self.api = plane.api
        self.hami = hami
        self.namespace = namespace
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.claims_path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._fleets = {}
        self._created = []

    # -- machines --------------------------------------------------------------------------------------------------

    def machines(
        self, machine, *node_names, publish_as="", labels=None, allocatable=None, sharing=None, beside_others=False
    ):
        """Ready nodes of one kind of machine, with its slices published. `beside_others`: on nodes that are there."""
        fleet = f"{self.namespace}-{len(self._fleets)}"
        for name in () if beside_others else node_names:
            self.plane.nodes.create(name, labels=labels, allocatable=allocatable, wait=False)
        self.plane.nodes.wait_schedulable(node_names)
        groups = [
            {"machine": machine, "name": name, "publishAs": publish_as, **({"sharing": sharing} if sharing else {})}
            for name in node_names
        ]
        self._fleets[fleet] = FleetFile.model_validate({"name": fleet, "createNodes": False, "nodes": groups})
        self.hami.publish(self._fleets[fleet])

    def fleet(self, *groups):
        """Ready nodes as a fleet file describes them (entries of its `nodes`), labels included; returns their names."""
        file = FleetFile.model_validate({"name": f"{self.namespace}-{len(self._fleets)}", "nodes": groups})
        file = file.model_copy(update={"create_nodes": False})
        planned = planned_nodes(file)
        for name, node in planned.items():
            self.plane.nodes.create(name, labels=node.body["metadata"]["labels"], wait=False)
        self.plane.nodes.wait_schedulable(planned)
        self._fleets[file.name] = file
        self.hami.publish(file)
        return list(planned)

    def republish(self, *, fence):
        """The slices anew, as by drivers that were told so (`fence` of `hami-dra slices`)."""
        for fleet in self._fleets.values():
            self.hami.publish(fleet, fence=fence)

    def close(self):
        """Takes away what the test made: its objects first, then the machines."""
        self.clear()
        for item in reversed(self._created):
            self.api.remove(item)
        for fleet in self._fleets.values():
            self.hami.publish(fleet.model_copy(update={"nodes": ()}))
        self.plane.nodes.delete_all()

    # -- objects ---------------------------------------------------------------------------------------------------

    def create(self, *items):
        """Adds objects, in the test's namespace where they have one; returns the last as the API server took it."""
        return self._add(items, self.api.add)

    def create_spaced(self, *items):
        """The same, sent with spaces between the tokens, as Python's json.dumps writes: the API server keeps those of parameters."""
        return self._add(items, self.api.add_spaced)

    def _add(self, items, add):
        created = None
        for item in items:
            created = add(self._placed(item))
            if not self.api.is_namespaced(item):
                self._created.append(created)
        return created

    def apply_file(self, path):
        for item in read_yaml(path):
            self.api.apply(self._placed(item))

    def delete_file(self, path):
        for item in reversed(read_yaml(path)):
            self.api.remove(self._placed(item))

    def _placed(self, item):
        if not self.api.is_namespaced(item):
            return item
        return {**item, "metadata": {"namespace": self.namespace, **item["metadata"]}}

    def clear(self):
        """Deletes workloads, pods and claims, and waits until the last claim is gone: what stays has leaked."""
        for kind in ("deployments", "replicasets"):
            self.api.delete(f"/apis/apps/v1/namespaces/{self.namespace}/{kind}")
        self.api.delete(self.pods_path)
        self.api.delete(self.claims_path)
        self.wait_empty()

    def wait_empty(self):
        self.api.wait_for("no pod and no claim left", lambda: not self.pods() and not self.claims(), seconds=60)

    # -- what became of them ---------------------------------------------------------------------------------------

    def pods(self, **query):
        return self.api.list(self.pods_path, **query)

    def claims(self):
        return self.api.list(self.claims_path)

    def pod(self, name):
        return self.api.get(f"{self.pods_path}/{name}")

    def claim(self, name):
        return self.api.get(f"{self.claims_path}/{name}")

    def delete_pod(self, name, **options):
        self.api.delete(f"{self.pods_path}/{name}", **options)

    @contextlib.contextmanager
    def other_controller(self, *flags):
        """A controller with other flags in place of the installation's."""
        process = self.hami.programs["controller"].process
        process.stop()
        other = self.hami.start_controller(*flags, name="controller-other")
        self.hami.wait_ready()
        try:
            yield
        finally:
            other.process.stop()
            del self.hami.programs["controller-other"]
            process.start()
            self.hami.wait_ready()

    def slices(self):
        return self.api.list(observe.SLICES)

    def refusal(self, name):
        """What kube-scheduler said when it last found no node for the pod; empty when it has not."""
        conditions = self.pod(name)["status"].get("conditions", ())
        return next(
            (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
        )

    def placements(self):
        return observe.placements(self.pods(), self.claims())

    def placement(self, name):
        return next(each for each in self.placements() if each.pod == name)

    def overcommitted(self):
        return observe.overcommitted(self.slices(), self.api.list(observe.CLAIMS))

    def wait_running(self, count=None, *, names=None, seconds=60):
        """Until the named pods, or `count` pods, run: kube-scheduler bound them and a kubelet would have begun. Returns placements."""

        def running():
            pods = [pod for pod in self.pods() if names is None or pod["metadata"]["name"] in names]
            done = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            return len(done) == (len(names) if names is not None else count)

        try:
            self.hami.wait_for("pods running", running, seconds=seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None
        return self.placements()

    def wait_allocated(self, *claim_names):
        def allocated():
            return all("allocation" in self.claim(name).get("status", {}) for name in claim_names)

        self.hami.wait_for(f"{', '.join(claim_names)} allocated", allocated)

    def events(self, name="", *, reason=""):
        """Of an object of the namespace, oldest first."""
        return [
            event
            for event in self.api.list(EVENTS.format(self.namespace))
            if (not name or event.get("regarding", {}).get("name") == name)
            and (not reason or event["reason"] == reason)
        ]

    def refusals(self):
        """Events of pods that kube-scheduler refused, but for attempts that came too early.

        It watches pods and claims separately, and may see a lifted gate before the allocation that was written first.
        """
        allocated = {
            claim["metadata"]["ownerReferences"][0]["uid"]: claim["status"]["allocation"]["allocationTimestamp"]
            for claim in self.claims()
            if "ownerReferences" in claim["metadata"] and allocated_by(claim)
        }

        def came_too_early(event):
            since = allocated.get(event["regarding"]["uid"], "")
            written_before = "" < _second(since) <= _second(event["eventTime"])
            return written_before and "cannot allocate all claims" in event["note"]

        return [event for event in self.events(reason="FailedScheduling") if not came_too_early(event)]

    def wait_event(self, name, reason, text=""):
        """The note of the first event of that reason that contains the text."""

        def found():
            return next((event["note"] for event in self.events(name, reason=reason) if text in event["note"]), None)

        try:
            return self.hami.wait_for(f"event {reason} of {name} with {text!r}", found)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def bound_by(self, name):
        """The component that says it bound the pod."""

        def binder():
            scheduled = self.events(name, reason="Scheduled")
            return scheduled and (
                scheduled[0].get("reportingController") or scheduled[0]["deprecatedSource"]["component"]
            )

        return self.api.wait_for(f"a Scheduled event of {name}", binder)

    def describe(self):
        """What an engineer would look at first, for the message of a failed test."""
        lines = []
        for pod in self.pods():
            conditions = {c["type"]: c for c in pod["status"].get("conditions", ())}
            scheduled = conditions.get("PodScheduled", {})
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
            lines.append(
                f"pod {pod['metadata']['name']}: {pod['status'].get('phase')} on {pod['spec'].get('nodeName', '-')}, "
                f"gates {gates}, {scheduled.get('reason', '')} {scheduled.get('message', '')}"
            )
        lines += [f"claim {c['metadata']['name']}: {c.get('status', {})}" for c in self.claims()]
        lines += [
            f"event {event.get('regarding', {}).get('name')}: {event['reason']}: {event.get('note')}"
            for event in self.events()
        ]
        for program in self.hami.programs.values():
            lines.append(f"--- the end of the log of {program.name}\n{program.process.tail(40)}")
        return "\n".join(lines)


def _second(timestamp):
    """An RFC 3339 timestamp in UTC without its fraction and zone."""
    return timestamp[: len("2026-01-01T00:00:00")]


def allocated_by(item):
    """The installation of hami-dra that allocated a claim (JSON); empty if it was another allocator, or none."""
    allocation = item.get("status", {}).get("allocation")
    return allocator_of(AllocationResult.from_json(allocation)) if allocation else ""


def read_yaml(path):
    return [item for item in yaml.safe_load_all(Path(path).read_text()) if item]


def whole_fleet_is_fenced(slices):
    """Every device of our driver carries the fence taint itself (Kubernetes 1.36)."""
    return all(
        any(taint["key"] == "hami.io/controller-allocates" for taint in device.get("taints", ()))
        for item in slices
        if item["spec"]["driver"] == DRIVER
        for device in item["spec"].get("devices", ())
    )


def is_gone(api, path):
    try:
        api.get(path)
    except ApiError as error:
        return error.status == 404
    return False
