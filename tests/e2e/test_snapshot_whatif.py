"""`snapshot` and `whatif` on a real control plane, held against what its controller then really does."""

import json

import pytest

from hami_dra.kube import credentials
from tests.e2e.lab import A10G, T4
from tests.e2e.objects import legacy_pod, part, pod, policies, template
from tests.support.commands import Typed

NODES = ("n1", "n2")
SECRET = "hunter2"
SIZES = ("4Gi", "6Gi", "8Gi", "5Gi")
NAMES = tuple(f"p{number}" for number in range(len(SIZES)))


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def machines(lab):
    lab.machines(T4, NODES[0])
    lab.machines(A10G, NODES[1])
    lab.create(*(template(name, part(memory=size)) for name, size in zip(NAMES, SIZES, strict=True)))
    return lab


@pytest.fixture
def in_pod(machines, tmp_path, monkeypatch):
    """As if in a pod, as a ServiceAccount that has nothing but the role hami-dra-viewer."""
    lab = machines
    lab.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "keeper"}})
    subject = {"kind": "ServiceAccount", "name": "keeper", "namespace": lab.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hami-dra-viewer"}
    binding = {"metadata": {"name": f"keeper-{lab.namespace}"}, "roleRef": role, "subjects": [subject]}
    lab.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **binding})
    mounted = {
        "token": lab.plane.token_for_service_account(lab.namespace, "keeper"),
        "ca.crt": lab.plane.ca_file.read_text(),
        "namespace": lab.namespace,
    }
    for name, text in mounted.items():
        (tmp_path / name).write_text(text)
    host, port = lab.plane.url.removeprefix("https://").split(":")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.delenv("KUBECONFIG", raising=False)


def run_in_turn(lab, node_policy, device_policy):
    """One after the other, so that their order is known."""
    for number, name in enumerate(NAMES, 1):
        one = pod(name, templates=[name], annotations=policies(node_policy, device_policy))
        one["spec"]["containers"][0] |= {"env": [{"name": "TOKEN", "value": SECRET}], "args": [SECRET]}
        lab.create(one)
        lab.wait_running(number)
    return {f"{lab.namespace}/{each.pod}": (each.node, each.devices) for each in lab.placements()}


def said(lab, comparison, side):
    return {
        each["pod"]: (each["node"], [device.partition("/")[2] for device in each["devices"]])
        for each in comparison[side]
        if each["pod"].startswith(f"{lab.namespace}/")
    }


def test_what_is_foretold_comes_true(machines, in_pod, hami_dra, tmp_path):
    lab = machines
    state = tmp_path / "state.json"
    scattered = run_in_turn(lab, "spread", "spread")
    taken = hami_dra("snapshot", "-o", state)
    assert taken.code == 0, taken.stderr
    assert "cannot list" not in taken.stderr  # the role lets it read everything
    assert SECRET not in state.read_text()

    # simulate on it says what the controller decides next, for old and new form
    next_ones = [
        legacy_pod("next", gpu=1, gpumem=9000, annotations=policies("binpack", "binpack")),
        pod("after", templates=["p3"], annotations=policies("spread", "binpack")),
    ]
    for one in next_ones:
        one["metadata"]["namespace"] = lab.namespace
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"kind": "List", "items": next_ones}))
    foretold = json.loads(hami_dra("simulate", "-f", state, "-f", more, "-o", "json").stdout)
    wanted = {
        entry["pod"]: (entry["node"], [each["device"].partition("/")[2] for each in entry["score"]["devices"]])
        for entry in foretold["placements"]
    }
    added = json.loads(hami_dra("whatif", "-f", state, "--with", more, "-o", "json").stdout)
    for number, one in enumerate(next_ones, len(NAMES) + 1):
        lab.create(one)
        lab.wait_running(number)
    came = {f"{lab.namespace}/{each.pod}": (each.node, each.devices) for each in lab.placements()}
    assert came == scattered | wanted
    assert came == said(lab, added, "after")
    for name in ("next", "after"):
        lab.delete_pod(name)
    lab.api.wait_for("two pods less", lambda: len(lab.claims()) == len(NAMES))

    # whatif on the live cluster: packed anew; then the pods are made anew, packed
    asked = ("--node-policy", "binpack", "--device-policy", "binpack", "--override-annotations", "--replace")
    live = json.loads(hami_dra("whatif", *asked, "-o", "json").stdout)
    assert live["conclusion"] == json.loads(hami_dra("whatif", "-f", state, *asked, "-o", "json").stdout)["conclusion"]
    assert said(lab, live, "before") == scattered
    lab.api.delete(lab.pods_path)
    lab.wait_empty()
    packed = run_in_turn(lab, "binpack", "binpack")
    assert packed == said(lab, live, "after")
    assert packed != scattered

    # a node less: cordoned, emptied and made anew elsewhere; who found no place there is what was foretold
    less = json.loads(hami_dra("whatif", "--without-node", NODES[0], "-o", "json").stdout)
    lab.api.patch(f"/api/v1/nodes/{NODES[0]}", {"spec": {"unschedulable": True}})
    lab.api.delete(lab.pods_path)
    lab.wait_empty()
    assert run_in_turn(lab, "binpack", "binpack") == said(lab, less, "after")
    assert less["unplaced"] == []
