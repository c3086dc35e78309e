"""hack/controlplane/nodes.py: what a fake kubelet says and does, against a recorded API."""

from hack.controlplane.api import ApiError
from hack.controlplane.nodes import FakeNodes, _running


class Recorder:
    """Takes every request; `missing` are paths that answer 404."""

    def __init__(self):
        self.requests = []
        self.missing = set()
        self.nodes = []

    def note(self, method, path, body):
        self.requests.append((method, path, body))
        if path in self.missing:
            raise ApiError(method, path, 404, {})

    def patch(self, path, body, kind="merge"):
        self.note("PATCH", path, body)

    def create(self, path, body):
        self.note("POST", path, body)

    def delete(self, path, **options):
        self.note("DELETE", path, options)

    def list(self, path, **_):
        return self.nodes


def pod(name, node="n", **metadata):
    return {
        "metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Pending"},
    }


def fake_nodes(*names):
    api = Recorder()
    fake = FakeNodes(api)
    fake._nodes.update(names)
    return fake, api


def test_pending_pods_start_and_deleted_ones_are_confirmed_by_uid():
    fake, api = fake_nodes("n")
    fake._attend(pod("p"))
    fake._attend(pod("q", deletionTimestamp="2026-01-01T00:00:00Z"))
    (started, path, body), gone = api.requests
    assert (started, path, body["status"]["phase"]) == ("PATCH", "/api/v1/namespaces/a/pods/p/status", "Running")
    assert gone == (
        "DELETE",
        "/api/v1/namespaces/a/pods/q",
        {"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-q"}},
    )


def test_pods_of_other_nodes_silent_nodes_or_a_switched_off_kubelet_are_left_alone():
    fake, api = fake_nodes("n", "m")
    fake._attend(pod("p", node="elsewhere"))
    fake.set_ready("m", "Unknown")
    before = list(api.requests)
    fake._attend(pod("p", node="m"))
    fake.run_pods = False
    fake._attend(pod("p"))
    assert api.requests == before


def test_a_pod_that_vanished_in_between_is_no_error():
    fake, api = fake_nodes("n")
    api.missing.add("/api/v1/namespaces/a/pods/p/status")
    fake._attend(pod("p"))


def test_init_containers_are_done_and_sidecars_run():
    item = pod("p")
    item["spec"]["initContainers"] = [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}]
    states = {status["name"]: list(status["state"]) for status in _running(item)["initContainerStatuses"]}
    assert states == {"init": ["terminated"], "side": ["running"]}


def test_a_heartbeat_renews_leases_and_repairs_ready_but_not_of_silent_nodes():
    fake, api = fake_nodes("n", "m", "dead")
    fake.set_ready("dead", "False")
    api.requests.clear()
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    api.missing.add(f"{leases}/m")
    unknown = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    api.nodes = [{"metadata": {"name": name}, "status": unknown} for name in ("n", "dead", "foreign")]
    fake._stopping.wait = lambda _: True
    fake._beat()
    assert [(method, path) for method, path, _ in api.requests] == [
        ("PATCH", f"{leases}/m"),
        ("POST", leases),
        ("PATCH", f"{leases}/n"),
        ("PATCH", "/api/v1/nodes/n/status"),
    ]
