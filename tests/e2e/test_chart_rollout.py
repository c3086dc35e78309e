"""The chart where only a cluster can answer: what its `lookup`s find, and whether its rolling updates come to an end on two nodes."""

import base64
import subprocess

import pytest
import yaml

from hami_dra.api import names
from tests.e2e.chart_story import helm_home
from tests.support.chart_fixtures import CHART, SELF

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
TWO_NODES = ["east", "west"]


@pytest.fixture
def planned(control_plane, helm):
    """`planned(namespace, *options)`: what Helm would apply to this cluster. Returns (exit status, output)."""

    def run(namespace, *options):
        command = [helm.program, "template", "x", CHART, "--dry-run=server", "--namespace", namespace, *options]
        command.append("--take-ownership")  # of the namespace of probes, which other tests leave on the same cluster
        environment = {**helm_home(helm.home), "KUBECONFIG": str(control_plane.admin_kubeconfig)}
        done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    return run


def of_release(namespace, annotations=None):
    """Metadata by which Helm knows an object as that of its release."""
    marks = {"meta.helm.sh/release-name": "x", "meta.helm.sh/release-namespace": namespace}
    return {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {**marks, **(annotations or {})}}


def test_a_second_release_is_refused_where_there_is_one(planned, create, namespace):
    assert planned(namespace)[0] == 0
    account = {"kind": "ServiceAccount", "name": names.CONTROLLER, "namespace": namespace}
    create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": names.CONTROLLER, **of_release(namespace)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.CONTROLLER},
            "subjects": [account],
        }
    )
    assert planned(namespace)[0] == 0, "its own release, as for an upgrade"
    code, said = planned("elsewhere")
    assert (code != 0, f"hami-dra is installed in namespace {namespace} already" in said) == (True, True), said


def test_the_authority_of_the_webhook_is_kept(planned, create, namespace):
    def bundles(*options):
        code, text = planned(namespace, *options)
        assert code == 0, text
        objects = [raw for raw in yaml.safe_load_all(text) if raw and raw["kind"].endswith("WebhookConfiguration")]
        return {hook["clientConfig"]["caBundle"] for raw in objects for hook in raw["webhooks"]}

    assert len(bundles() | bundles()) == 2, "a new one each time while nothing is stored"
    stored = base64.b64encode(b"an authority").decode()
    create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "hami-dra-webhook-authority",
                **of_release(namespace, {"hami.io/authority-made": "9999999999"}),
            },
            "data": {"ca.crt": stored, "ca.key": stored},
        }
    )
    assert bundles() == {stored}


def rolled(api, path, revision):
    """The Deployment as it is once all pods are of the latest template, available and alone."""
    status = {}

    def done():
        nonlocal status
        status = api.get(path)["status"]  # as a whole: a count of zero is left out
        wanted = (revision, 2, 2, 2)
        return wanted == tuple(
            status.get(key) for key in ("observedGeneration", "replicas", "updatedReplicas", "availableReplicas")
        )

    try:
        api.wait_for(f"{path} rolled out", done, seconds=60)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {status}") from None


@pytest.mark.parametrize(
    "case",
    [
        ("controller", yaml.safe_load((CHART / "values-production.yaml").read_text())),
        ("webhook", {"webhook": {**SELF, "hostNetwork": True, "replicas": 2}}),
    ],
    ids=["controllers of values-production.yaml", "webhooks on the host's network"],
)
def test_a_rolling_update_comes_to_an_end_on_two_nodes(api, nodes, create, render, case):
    """Each replica needs a node of its own: by anti-affinity, or by its port. A surge finds no third node."""
    component, values = case
    for name in TWO_NODES:
        nodes.create(name, wait=False)
    nodes.wait_schedulable(TWO_NODES)
    (raw,) = [
        each
        for each in render(values)
        if each["kind"] == "Deployment" and each["metadata"]["name"] == f"hami-dra-{component}"
    ]
    template = raw["spec"]["template"]
    template["spec"] |= {"serviceAccountName": "default", "priorityClassName": ""}
    del raw["metadata"]["namespace"]  # the test's own instead
    created = create(raw)
    path = api.path_of(created)
    rolled(api, path, 1)
    api.patch(path, {"spec": {"template": {"metadata": {"annotations": {"new": "true"}}}}})
    rolled(api, path, 2)
    pods = api.list(f"/api/v1/namespaces/{created['metadata']['namespace']}/pods")
    assert sorted(pod["spec"]["nodeName"] for pod in pods if "deletionTimestamp" not in pod["metadata"]) == TWO_NODES
