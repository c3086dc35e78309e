"""What `snapshot`, `whatif` and their like read of a live cluster: which kinds, in which order, and what is told of the rest."""

import pytest

from controller.cli.connection import Connection
from controller.cli.state import SHOWN, read_state
from hami_dra.api import kinds, names
from hami_dra.api.errors import InputError
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, pod
from tests.support.served import Served

NEVER_ASKED = ("secrets", "configmaps", "events", "deployments", "replicasets")


def keys(documents, kind):
    return [each.raw["metadata"]["name"] for each in documents if each.raw["kind"] == kind]


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def read(tmp_path):
    def read(objects, **options):
        reported, progress = [], []
        with Served(objects, **options) as server:
            connection = Connection(str(server.kubeconfig(tmp_path)))
            documents = read_state((), connection, progress=lambda *news: progress.append(news), tell=reported.append)
        return documents, reported, progress, server

    return read


def live(name, *, created="", priority=0, **more):
    made = pod(name, **more)
    made["metadata"] |= {"namespace": "default", "creationTimestamp": created}
    made["spec"]["priority"] = priority
    return made


def test_everything_that_a_decision_reads_and_nothing_else(read):
    documents, reported, _, server = read([*cluster("n1"), claim("c"), live("a")])
    assert reported == []
    assert [each.raw["kind"] for each in documents] == [
        "Node", "DeviceClass", "DeviceClass", "DeviceClass", "ResourceSlice", "ResourceClaim", "Pod",
    ]  # fmt: skip
    assert all(each.raw["apiVersion"] for each in documents)
    asked = {path.rpartition("/")[2] for path, _ in server.seen}
    assert not asked & {*NEVER_ASKED}
    assert {authorization for _, authorization in server.seen} == {"Bearer t0ken"}


def test_a_command_that_decides_nothing_reads_only_what_it_shows(hami_dra, tmp_path):
    with Served([*cluster("n1"), live("a")]) as server:
        assert hami_dra("status", "--kubeconfig", server.kubeconfig(tmp_path)).code == 0
    lease = kinds.LEASE.path("hami-dra-system", "hami-dra-controller")
    assert [path for path, _ in server.seen] == ["/version", *(kind.path() for kind in SHOWN), lease]


def test_who_may_not_read_is_given_the_command_that_grants_it(hami_dra, tmp_path):
    """Once, and without notes about other kinds, which do not matter then."""
    message = 'nodes is forbidden: User "system:serviceaccount:team:viewer" cannot list resource "nodes"'
    for command in ("status", "explain p", "doctor", "whatif --replace", "snapshot", "topology n1"):
        with Served([], forbidden=["nodes", "namespaces", "resourceslices"], message=message) as server:
            result = hami_dra(*command.split(), "--kubeconfig", server.kubeconfig(tmp_path))
        assert (result.code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), command
        assert result.stderr.endswith(
            "kubectl create clusterrolebinding hami-dra-viewer-viewer --clusterrole=hami-dra-viewer "
            "--serviceaccount=team:viewer\n"
        )


def test_a_namespace_or_node_that_is_not_there_is_named_with_what_is(hami_dra, tmp_path):
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("default", "team")]
    with Served([*cluster("n1"), *namespaces, live("web")]) as server:

        def said(*words):
            return hami_dra(*words, "--kubeconfig", server.kubeconfig(tmp_path))

        assert "no Pod default/wbe; did you mean web?" in said("explain", "wbe").stderr
        assert (
            "no pod that uses ResourceClaim default/c; namespace default has no pod"
            in said("explain", "claim/c").stderr
        )
        assert "-n tema: there is no such namespace; did you mean team?" in said("explain", "web", "-n", "tema").stderr
        assert "there is no node n2; there are n1" in said("topology", "n2").stderr
        assert said("status", "-n", "team").stdout.startswith("no pod of namespace team holds a device; ")


def test_pages_and_progress(read):
    documents, _, progress, _ = read([live(f"p{number}") for number in range(5)], page=2)
    assert keys(documents, "Pod") == ["p0", "p1", "p2", "p3", "p4"]
    assert progress[-3:] == [("reading pods", 2, 5), ("reading pods", 4, 5), ("reading pods", 5, 5)]


def test_pods_come_as_the_controller_takes_them(read):
    documents, _, _, _ = read(
        [
            live("b", created="2026-01-01T00:00:02Z"),
            live("a", created="2026-01-01T00:00:02Z"),
            live("old", created="2026-01-01T00:00:01Z"),
            live("first", created="2026-01-01T00:00:03Z", priority=5),
        ]
    )
    assert keys(documents, "Pod") == ["first", "old", "a", "b"]


def test_the_controller_s_own_probe_is_left_out(read):
    documents, _, _, _ = read([live("a"), live("probe", labels={names.PROBE_LABEL: "true"})])
    assert keys(documents, "Pod") == ["a"]


def test_what_may_not_be_read_is_named_with_what_it_means(read):
    documents, reported, _, _ = read(
        [*cluster("n1"), live("a")], forbidden=["resourcequotas", "resourceclaimtemplates"]
    )
    assert keys(documents, "Pod") == ["a"]
    quotas, templates = reported
    assert quotas == 'list resourcequotas: cannot list resource "resourcequotas": therefore quotas do not count'
    assert templates.endswith(": therefore pods whose claims are not generated yet cannot be decided on")


@pytest.mark.parametrize("plural", ["nodes", "pods", "resourceslices", "resourceclaims", "deviceclasses"])
def test_without_these_nothing_true_can_be_said(read, plural):
    with pytest.raises(InputError, match=f'list {plural}: cannot list resource "{plural}"'):
        read([], forbidden=[plural])
    with pytest.raises(InputError, match=rf"list {plural}: this cluster does not serve .*v1; hami-dra needs it"):
        read([], absent=[plural])


RULE = {
    "kind": "DeviceTaintRule",
    "metadata": {"name": "r"},
    "spec": {"taint": {"key": "k", "effect": "NoSchedule"}},
}


def test_rules_of_1_36_are_read_where_they_are_served(read, monkeypatch):
    """There they are v1beta2 only, if at all."""
    original = Served.answer
    v1 = "/apis/resource.k8s.io/v1/devicetaintrules"
    absent = (404, {"kind": "Status", "code": 404, "message": "not found"})
    monkeypatch.setattr(
        Served, "answer", lambda self, path, query: absent if path == v1 else original(self, path, query)
    )
    documents, reported, _, _ = read([RULE | {"apiVersion": "resource.k8s.io/v1beta2"}])
    assert [(each.raw["kind"], each.raw["apiVersion"]) for each in documents] == [
        ("DeviceTaintRule", "resource.k8s.io/v1beta2")
    ]
    assert reported == []


def test_rules_that_are_not_served_are_named(read):
    _, reported, _, _ = read([], absent=["devicetaintrules"])
    assert reported == ["this cluster does not serve devicetaintrules.resource.k8s.io: taints by rule do not count"]


def test_a_cluster_that_cannot_be_reached(tmp_path):
    with pytest.raises(InputError, match="kubeconfig"):
        read_state((), Connection(str(tmp_path / "none")))


def test_files_are_read_as_simulate_reads_them(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("kind: Pod\nmetadata: {name: a}\n")
    (document,) = read_state([path], Connection())
    assert str(document) == f"{path}, document 1"


CLAIMED = {"persistentVolumeClaim": {"claimName": "data"}, "name": "data"}


@pytest.mark.parametrize("missing", [{}, {"forbidden": ["persistentvolumes"]}, {"absent": ["csinodes"]}])
def test_volumes_that_cannot_be_judged_do_not_count(read, missing):
    """Else a claim would be called missing that may only not be read."""
    stored = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"volumes": [CLAIMED]},
    }
    documents, reported, _, _ = read([stored], **missing)
    [found] = [each.raw for each in documents if each.raw["kind"] == "Pod"]
    assert ("volumes" in found["spec"]) == (not missing)
    assert any("volumes of pods do not count" in each for each in reported) == bool(missing)
