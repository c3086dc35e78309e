"""`helm test` on a real node: hami-dra doctor in the chart's own pod, with what it finds when all is well and when it is not.

The image is made of this checkout (hack/node/python_image.py). The node has neither a pod network nor kube-proxy; a policy of the
test gives the pod the network of the node and the address of the API server, as those two would.
"""

import json

import pytest

from hack.installation import QUICK, Installation
from hack.node import python_image
from hami_dra.api import names
from tests.support.chart_fixtures import CHART

SYSTEM = names.SYSTEM_NAMESPACE
POD = f"/api/v1/namespaces/{SYSTEM}/pods/hami-dra-doctor"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"
WEBHOOK = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.WEBHOOK}"


def network_policy(url):
    """The policy and its binding: the pod reaches the API server at this URL."""
    host, port = url.removeprefix("https://").split(":")
    version, metadata = "admissionregistration.k8s.io/v1", {"name": "pods-without-network"}
    variables = [("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)]
    env = ", ".join(f'Object.spec.containers.env{{name: "{name}", value: "{value}"}}' for name, value in variables)
    container = f"Object.spec.containers{{name: each.name, env: [{env}]}}"
    expression = (
        f"Object{{spec: Object.spec{{hostNetwork: true, containers: object.spec.containers.map(each, {container})}}}}"
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM}},
            "objectSelector": {"matchLabels": {"app.kubernetes.io/component": "test"}},
            "resourceRules": [rule],
        },
        "reinvocationPolicy": "Never",
        "failurePolicy": "Fail",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }
    binding = {"policyName": metadata["name"]}
    return (
        {"apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": version, "kind": "MutatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    )


def is_available(deployment):
    return deployment["status"].get("readyReplicas") == deployment["spec"]["replicas"]


@pytest.fixture
def installed(plane, node, helm, tmp_path):
    """The chart by Helm, and `helm` on that cluster. Controller and webhook run beside the nodes; their pods are on a played one."""
    node.add_images({f"{python_image.NAME}:checkout": python_image.of_checkout()})
    objects = network_policy(plane.url)
    for item in objects:
        plane.api.apply(item)
    hami = Installation(plane)
    played = {"kubernetes.io/hostname": "played"}
    plane.nodes.create("played", labels=played)
    values = {
        "image": {"repository": python_image.NAME, "tag": "checkout", "pullPolicy": "Never"},
        "controller": {"nodeSelector": played},
        "webhook": {
            "nodeSelector": played,
            "certificate": {"from": "self"},
            "optIn": False,
            "url": f"https://127.0.0.1:{hami._webhook_port}/mutate",
        },
        "test": {"nodeSelector": {"kubernetes.io/hostname": node.name}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))

    def run(command, *arguments):
        return helm(
            command, names.MANAGED_BY, *arguments, "--namespace", SYSTEM, "--kubeconfig", plane.admin_kubeconfig
        )

    code, out, err = run("install", CHART, "--create-namespace", "--values", file)
    assert code == 0, out + err
    hami.start_controller(*QUICK)
    hami.start_webhook()
    hami.wait_ready()
    hami.wait_for("pods that are ready", lambda: all(map(is_available, plane.api.list(DEPLOYMENTS))))
    yield run
    hami.remove()
    run("uninstall", "--no-hooks")
    plane.nodes.delete_all()
    for item in objects:
        plane.api.remove(item)


@pytest.mark.soak
def test_helm_test_runs_doctor_on_the_node(plane, installed):
    code, out, err = installed("test", "--timeout", "120s")
    assert code == 0, f"{out}{err}{plane.api.get(POD)}"
    assert "Phase:          Succeeded" in out

    plane.api.delete(WEBHOOK)
    code, out, err = installed("test", "--timeout", "120s")
    assert code != 0
    assert "hami-dra-doctor" in err
    (status,) = plane.api.get(POD)["status"]["containerStatuses"]
    said = status["state"]["terminated"]["message"]
    assert f"MutatingWebhookConfiguration {names.WEBHOOK}" in said, said
