"""What a simulation makes of files: hostile ones are refused with file, document, object and field; odd ones are read."""

import pytest

from controller.insight.manifests import BadManifest, gather
from controller.insight.simulation import SimulationSettings, simulate
from tests.support.manifests import (
    claim,
    cluster,
    documents,
    from_text,
    node,
    pod,
    simulated,
    slices,
    template,
    workload,
)


def placed(report):
    return [entry["pod"] for entry in report.placements]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: main}",
            "Pod default/a: spec.containers: a list is wanted, not text",
        ),
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: [main]}",
            "Pod default/a: spec.containers[0]: an object is wanted, not text",
        ),
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: [null]}",
            "Pod default/a: spec.containers[0]: an object is wanted, not nothing",
        ),
        (
            "kind: Pod\nmetadata: {name: a, annotations: {x: y, hami.io/gpu-scheduler-policy: 5}}",
            'Pod default/a: metadata.annotations["hami.io/gpu-scheduler-policy"]: text is wanted, not an integer; put it in quotes',
        ),
        (
            "kind: Pod\nmetadata: {name: a, labels: {on: true}}",
            'Pod default/a: metadata.labels["true"]: text is wanted, not true or false; put it in quotes',
        ),
        ("kind: Pod\nmetadata: {name: 7}", "Pod default/7: metadata.name: text is wanted, not an integer"),
        ("kind: Pod\nmetadata: name", "Pod default/(no name): metadata: an object is wanted, not text"),
        ("kind: Pod\nspec: {}", "Pod: metadata.name is missing"),
        ("kind: Pod\nmetadata: {name: a}\nspec: [1]", "Pod default/a: spec: an object is wanted, not a list"),
        (
            "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: [cpu]}",
            "Node n: status.allocatable: an object is wanted, not a list",
        ),
        ("kind: ResourceSlice\nmetadata: {name: s}", "ResourceSlice s: spec is missing"),
        (
            "kind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: d}",
            "ResourceSlice s: spec.pool is missing",
        ),
        (
            "kind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: d, pool: {name: p, generation: new}}",
            "ResourceSlice s: spec.pool.generation: an integer is wanted, not text",
        ),
        (
            "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: c, namespace: team}",
            "ResourceClaim team/c: apiVersion resource.k8s.io/v1beta1: write it as resource.k8s.io/v1",
        ),
        (
            "kind: Deployment\nmetadata: {name: web}\nspec: {replicas: many, template: {spec: {}}}",
            "Deployment default/web: spec.replicas: an integer is wanted, not text",
        ),
        (
            "kind: Deployment\nmetadata: {name: web}\nspec: {replicas: -1, template: {spec: {}}}",
            "Deployment default/web: spec.replicas is -1; a number from 0 to 100000 is wanted",
        ),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {parallelism: 1000000000, template: {spec: {}}}",
            "Job default/j: spec.parallelism is 1000000000; a number from 0 to 100000 is wanted",
        ),
        ("kind: Deployment\nmetadata: {name: web}", "Deployment default/web: spec.template is missing"),
        (
            "kind: StatefulSet\nmetadata: {name: web}\nspec: {template: }",
            "StatefulSet default/web: spec.template is missing",
        ),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {template: none}",
            "Job default/j: spec.template: an object is wanted, not text",
        ),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: {}}}}",
            "Job default/j: spec.template.spec.containers: a list is wanted, not an object",
        ),
        (
            "kind: DaemonSet\nmetadata: {name: d}\nspec: {template: {spec: {tolerations: all}}}",
            "DaemonSet default/d: spec.template.spec.tolerations: a list is wanted, not text",
        ),
        (
            "kind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {requests: {a: 1}}}}",
            "ResourceClaimTemplate default/t: spec.spec.devices.requests: a list is wanted, not an object",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, message):
    with pytest.raises(BadManifest) as caught:
        simulate(from_text(tmp_path, f"kind: ConfigMap\nmetadata: {{name: x}}\n---\n{text}\n"), SimulationSettings())
    assert str(caught.value).startswith(f"{tmp_path}/in.yaml, document 2: {message}")


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n", "kind: List\nitems: []\n"])
def test_files_with_nothing_in_them(tmp_path, text):
    assert simulate(from_text(tmp_path, text), SimulationSettings()).document() == {"placements": [], "unplaced": []}


def test_fields_that_are_null_are_not_there(tmp_path):
    text = """
    {apiVersion: v1, kind: Pod, metadata: {name: a, annotations: , labels: },
     spec: {containers: [{name: main, resources: }], nodeSelector: , resourceClaims: , tolerations: }, status: }
    """
    given = [*documents(cluster("n1")), *from_text(tmp_path, text)]
    assert placed(simulate(given, SimulationSettings())) == ["default/a"]


def test_other_kinds_and_groups_are_skipped_with_one_note_each():
    others = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}},
        {"apiVersion": "example.com/v1", "kind": "Pod", "metadata": {"name": "c"}},
        {"metadata": {"name": "d"}},
    ]
    report = simulated(others, cluster("n1"), pod("p"))
    assert placed(report) == ["default/p"]
    assert report.notes == [
        "in.yaml, document 1, and 1 more: v1 ConfigMap is not used here, skipped",
        "in.yaml, document 3: example.com/v1 Pod is not used here, skipped",
        "in.yaml, document 4: no kind is given, skipped",
    ]


def test_quotas_and_priority_classes_are_read_without_a_word():
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": 1}}}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p"}, "value": 5}
    report = simulated(quota, priority, cluster("n1"), pod("p"))
    assert (placed(report), report.notes) == (["default/p"], [])


def test_without_api_version_a_document_goes_by_its_kind():
    raws = [{key: value for key, value in raw.items() if key != "apiVersion"} for raw in (*cluster("n1"), claim("c"))]
    assert placed(simulated(raws, pod("p", "c"))) == ["default/p"]


def test_v1beta2_is_v1_by_another_name():
    older = {**claim("c"), "apiVersion": "resource.k8s.io/v1beta2"}
    assert placed(simulated(cluster("n1"), older, pod("p", "c"))) == ["default/p"]


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_same_object_again_is_no_other():
    report = simulated(
        cluster("n1"), cluster("n1"), template("t"), template("t"), pod("p", "template:t"), pod("p", "template:t")
    )
    assert (placed(report), report.notes) == (["default/p"], [])


def test_of_two_objects_of_one_name_the_last_counts_where_the_first_stood():
    later = pod("a", limits={"cpu": "100"})
    report = simulated(cluster("n1"), pod("a"), pod("b"), later)
    assert (placed(report), report.unplaced[0]["pod"]) == (["default/b"], "default/a")
    assert report.notes == [
        "in.yaml, document 8: Pod default/a is also given in in.yaml, document 6; this one counts",
    ]


def test_slices_of_one_name_all_count():
    """The allocator does not go by their names."""
    (first,) = slices("n1", "g4dn.12xlarge")
    (second,) = slices("n2", "g4dn.12xlarge")
    second["metadata"]["name"] = first["metadata"]["name"]
    pinned = {"nodeSelector": {"is": "n2"}}
    report = simulated(
        cluster("n1")[:3],
        node("n1"),
        node("n2", labels={"is": "n2"}),
        first,
        second,
        claim("c"),
        pod("p", "c", **pinned),
    )
    assert placed(report) == ["default/p"]
    (note,) = report.notes
    assert note.endswith("both count")


def test_slices_of_one_name_keep_their_order():
    (raw,) = slices("n1", "g4dn.12xlarge")
    name = raw["metadata"]["name"]
    changed = [{**raw, "spec": {**raw["spec"], "allNodes": number}} for number in (True, False, None)]
    names = [item.key for item in gather(documents(*changed)).items]
    assert names == [name, f"{name} (02)", f"{name} (03)"]
    assert names == sorted(names)


def test_generated_names_are_numbered():
    anonymous = pod("x")
    anonymous["metadata"] = {"generateName": "train-"}
    report = simulated(cluster("n1"), anonymous, anonymous)
    assert placed(report) == ["default/train-0", "default/train-1"]


def test_the_same_name_in_another_namespace_is_another():
    report = simulated(
        cluster("n1"), claim("c"), claim("c", namespace="team"), pod("p", "c"), pod("p", "c", namespace="team")
    )
    assert placed(report) == ["default/p", "team/p"]
    names = [entry["claims"][0]["namespace"] for entry in report.placements]
    assert names == ["default", "team"]
    assert report.placements[0]["claims"][0]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"


def test_a_list_inside_a_list_and_a_typed_list(tmp_path):
    text = """
    {kind: List, items: [{kind: PodList, apiVersion: v1, items: [{metadata: {name: a}}]},
                         {kind: List, items: [{kind: Pod, metadata: {name: b}}]}]}
    """
    given = [*documents(cluster("n1")), *from_text(tmp_path, text)]
    assert placed(simulate(given, SimulationSettings())) == ["default/a", "default/b"]


def test_uids_of_the_input_do_not_matter():
    """Two claims that were copied together with their uid are two."""
    claims = [claim("a", uid="same"), claim("b", uid="same")]
    report = simulated(cluster("n1"), claims, pod("a", "a", uid="same"), pod("b", "b"))
    devices = [entry["claims"][0]["allocation"]["devices"]["results"][0]["device"] for entry in report.placements]
    assert devices == ["gpu-0", "gpu-1"]


# --- workloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (workload("Deployment", "web"), ["web-0"]),
        (workload("Deployment", "web", replicas=2), ["web-0", "web-1"]),
        (workload("StatefulSet", "db", replicas=0), []),
        (workload("ReplicaSet", "rs", replicas=2), ["rs-0", "rs-1"]),
        (workload("Job", "j"), ["j-0"]),
        (workload("Job", "j", parallelism=3), ["j-0", "j-1", "j-2"]),
        (workload("Job", "j", parallelism=3, completions=2), ["j-0", "j-1"]),
        (workload("Job", "j", completions=5), ["j-0"]),
        (workload("Job", "j", suspend=True), []),
        (workload("DaemonSet", "d"), ["d-0", "d-1"]),
        (workload("DaemonSet", "d", {"nodeSelector": {"is": "n2"}}), ["d-0"]),
    ],
)
def test_workloads_are_expanded(given, expected):
    report = simulated(cluster(), node("n2", labels={"is": "n2"}), given)
    assert placed(report) == [f"default/{name}" for name in expected]


def test_pods_and_workloads_keep_their_order():
    report = simulated(workload("Deployment", "a"), pod("b"), workload("Job", "c"), cluster("n1"))
    assert placed(report) == ["default/a-0", "default/b", "default/c-0"]


def test_a_daemon_goes_to_its_node_past_a_cordon_but_not_past_a_taint():
    cordoned = node("n1")
    cordoned["spec"] = {"unschedulable": True}
    tainted = node("n2")
    tainted["spec"] = {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}
    report = simulated(cordoned, tainted, node("n3"), workload("DaemonSet", "d"))
    assert [(entry["pod"], entry["node"]) for entry in report.placements] == [
        ("default/d-0", "n1"),
        ("default/d-1", "n3"),
    ]
    assert report.unplaced == []


def test_each_daemon_gets_a_card_of_its_own_node():
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    report = simulated(cluster(), workload("DaemonSet", "d", spec))
    found = [
        (entry["node"], entry["claims"][0]["allocation"]["devices"]["results"][0]["pool"])
        for entry in report.placements
    ]
    assert found == [("n1", "n1"), ("n2", "n2")]


def owned_by(kind, name, raw):
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True}
    return {**raw, "metadata": {**raw["metadata"], "ownerReferences": [owner]}}


def test_pods_that_are_there_already_are_not_made_again():
    """As read from a cluster: a Deployment, its ReplicaSet, one of its two pods running and one waiting."""
    web = workload("Deployment", "web", replicas=3)
    replicas = owned_by("Deployment", "web", workload("ReplicaSet", "web-5d8c", replicas=3))
    labels = {"pod-template-hash": "5d8c"}
    running = owned_by("ReplicaSet", "web-5d8c", pod("web-5d8c-aaaaa", labels=labels, nodeName="n1"))
    waiting = owned_by("ReplicaSet", "web-5d8c", pod("web-5d8c-bbbbb", labels=labels))
    report = simulated(cluster("n1"), web, replicas, running, waiting)
    assert placed(report) == ["default/web-0", "default/web-5d8c-bbbbb"]


def test_a_stateful_pod_or_daemon_that_runs_is_not_made_again():
    db = workload("StatefulSet", "db", replicas=2)
    daemon = workload("DaemonSet", "d")
    there = [
        owned_by("StatefulSet", "db", pod("db-0", nodeName="n1")),
        owned_by("DaemonSet", "d", pod("d-x7k2p", nodeName="n1")),
    ]
    report = simulated(cluster(), db, daemon, there)
    assert [(entry["pod"], entry["node"]) for entry in report.placements] == [
        ("default/db-1", "n1"),
        ("default/d-0", "n2"),
    ]


def test_names_that_are_taken_are_left_out():
    report = simulated(cluster("n1"), pod("web-0"), workload("Deployment", "web"), workload("StatefulSet", "web"))
    assert placed(report) == ["default/web-0", "default/web-1", "default/web-2"]
