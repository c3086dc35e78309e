"""What a pod says that nobody heeds: names without a reader, other schedulers, nodes chosen beforehand."""

import pytest

from controller.scoring import parse_node_policy
from controller.webhook.convert import ConversionRefused, Options, convert_pod
from controller.webhook.files import convert_documents
from controller.webhook.notices import MOST, unread_keys
from controller.webhook.workloads import workload_notices
from hami_dra.api import names
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.annotations import USER_ANNOTATIONS
from hami_dra.vendors.neuron.publish import NeuronPublishing
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from tests.support.manifests import documents, node, pod, simulated, workload


def warnings(limits, **more):
    return convert_pod(pod("p", limits=limits, **more), "default").warnings


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nvidia.com/gpu-mem", "did you mean nvidia.com/gpumem?"),
        ("nvidia.com/GPU", "did you mean nvidia.com/gpu?"),
        ("metax-tech.com/vcores", "did you mean metax-tech.com/vcore?"),
        ("enflame.com/xyz", "it reads enflame.com/gcu, "),
        ("cambricon.com/vmlu", "it has no vendor for these devices"),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"nvidia.com/gpu": 1}])
def test_a_name_in_the_domain_of_a_vendor_that_nobody_reads_is_noted(name, words, beside):
    (warning,) = warnings({name: 1, **beside})
    assert warning.startswith(f'container "main": resources.limits["{name}"] is a name that hami-dra does not read')
    assert words in warning


@pytest.mark.parametrize("name", ["cpu", "ephemeral-storage", "example.com/fpga", "hugepages-2Mi", "nvidia.com/gpu"])
def test_other_names_are_nobodys_business(name):
    assert warnings({name: 1}) == ()


def test_names_that_a_device_plugin_serves_are_left_alone():
    names = ("nvidia.com/gpu-mem", "nvidia.com/mig-3g.20gb")
    options = Options(is_served=lambda name: name in names)
    assert convert_pod(pod("p", limits=dict.fromkeys(names, 1)), "default", options).warnings == ()
    offering = node("n")
    offering["status"]["allocatable"] |= dict.fromkeys(names, "2")
    report = simulated(offering, pod("p", limits=dict.fromkeys(names, 1)))
    assert [entry["node"] for entry in report.placements] == ["n"]
    assert report.notes == report.notices == []


def test_a_policy_that_was_renamed_counts_with_a_notice():
    annotations = {names.NODE_POLICY: "fgd"}
    (warning,) = convert_pod(pod("p", limits={"nvidia.com/gpu": 1}, annotations=annotations), "default").warnings
    assert (
        warning
        == "annotation hami.io/node-scheduler-policy: 'fgd' is deprecated and means fair-share; write fair-share"
    )
    assert parse_node_policy("fgd", "--node-policy") == names.FAIR_SHARE


def test_mig_profiles_by_name_are_refused_with_what_to_write():
    with pytest.raises(ConversionRefused) as refused:
        convert_pod(pod("p", limits={"nvidia.com/mig-3g.20gb": 1}), "default")
    assert 'resources.limits["nvidia.com/mig-3g.20gb"] is not read: write a claim of class nvidia-mig.hami.io' in str(
        refused.value
    )
    assert '.profile == "3g.20gb"' in str(refused.value)


def test_a_pod_with_a_node_is_refused_as_by_hami_and_simulate_says_so():
    wanted = pod("p", limits={"nvidia.com/gpu": 1}, nodeName="n")
    with pytest.raises(ConversionRefused, match="pod has node assigned"):
        convert_pod(wanted, "default")
    raws = [
        *NvidiaPublishing().device_classes(),
        node("n"),
        *slice_bodies(machine_pools(machine("g4dn.12xlarge", "n"))),
    ]
    (entry,) = simulated(raws, wanted).unplaced
    assert "write nodeSelector: {kubernetes.io/hostname: n} instead" in entry["error"]
    running = {**wanted, "metadata": {**wanted["metadata"], "uid": "from-a-cluster"}}
    assert simulated(raws, running).unplaced == []


def test_another_scheduler_is_noted_by_convert():
    wanted = pod("p", limits={"nvidia.com/gpu": 1}, schedulerName="hami-scheduler")
    (warning,) = convert_documents(documents(wanted)).warnings
    assert "spec.schedulerName is hami-scheduler, and hami-dra places pods of default-scheduler only" in warning
    served = Options(schedulers=("default-scheduler", "hami-scheduler"))
    assert convert_pod(wanted, "default", served).warnings == ()
    assert warnings({"cpu": 1}, schedulerName="hami-scheduler") == ()


def test_namespaces_that_are_not_converted_are_named():
    wanted = pod("p", limits={"enflame.com/vgcu": 1}, namespace="kube-system")
    (warning,) = convert_documents(documents(wanted)).warnings
    assert "the webhook leaves pods of namespace kube-system as they are" in warning
    (entry,) = simulated(node("n"), wanted).unplaced
    assert "the webhook converts no pods of namespace kube-system: move it" in entry["error"]


def test_assumed_nodes_have_the_label_of_their_name():
    raws = [*NeuronPublishing().device_classes(), *slice_bodies(machine_pools(machine("inf2.48xlarge", "n")))]
    chosen = {"nodeSelector": {"kubernetes.io/hostname": "n"}}
    report = simulated(raws, pod("p", limits={"aws.amazon.com/neuron": 1}, **chosen))
    assert [entry["node"] for entry in report.placements] == ["n"]
    spec = {"containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": 1}}}], **chosen}
    report = simulated(raws, workload("DaemonSet", "d", spec))
    assert [entry["node"] for entry in report.placements] == ["n"]


# --- keys of annotations and labels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hami.io/gpu-scheduling-policy", "hami.io/gpu-scheduler-policy"),
        ("hami.io/node-scheduler-polcy", "hami.io/node-scheduler-policy"),
        ("hami.io/use-gputype", "nvidia.com/use-gputype"),
        ("nvidia.com/use-gpu-type", "nvidia.com/use-gputype"),
        ("nvidia.com/gpu-scheduler-policy", "hami.io/gpu-scheduler-policy"),
        ("metax-tech.com/sgpu-qos", "metax-tech.com/sgpu-qos-policy"),
        ("volcano.sh/vgpu-modes", "volcano.sh/vgpu-mode"),
        ("aws.amazon.com/use-neuron-uuids", "aws.amazon.com/use-neuron-uuid"),
        ("enflame.com/use-gpu-uuid", "enflame.com/use-gpuuuid"),
        ("baidu.com/no-use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
)
def test_a_key_that_nobody_reads_is_noted_with_the_nearest_one(key, meant):
    (warning,) = warnings({"nvidia.com/gpu": 1}, annotations={key: "x"})
    assert warning == f"annotation {key} has no effect, because hami-dra does not read it: did you mean {meant}?"


@pytest.mark.parametrize(
    "key",
    [
        *sorted(USER_ANNOTATIONS),
        "nvidia.com/mig.config",
        "nvidia.com/gpu-driver-upgrade-drain.skip",
        "volcano.sh/queue-name",
        "volcano.sh/task-spec",
        "huawei.com/AscendReal",
        "huawei.com/kltDev",
        "example.com/gpu-scheduler-policy",
    ],
)
def test_known_keys_and_those_of_other_software_are_no_concern(key):
    assert list(unread_keys({"annotations": {key: "x"}})) == []


def test_labels_and_annotations_are_told_apart():
    labels = {"hami.io/gpu-scheduler-policy": "binpack", "hami.io/webhoook": "ignore", "hami.io/dra": "true", 7: "x"}
    found = list(unread_keys({"labels": labels, "annotations": {"hami.io/dra": "true", "hami.io/xyzzy": "", 7: ""}}))
    assert found[0] == "annotation hami.io/dra has no effect: hami-dra reads it as a label; move it to metadata.labels"
    assert (
        "it reads hami.io/device-scoring-weights, hami.io/gang-topology-key, hami.io/gpu-scheduler-policy" in found[1]
    )
    assert found[2].startswith("label hami.io/gpu-scheduler-policy has no effect: hami-dra reads it as an annotation")
    assert found[3].endswith("hami-dra does not read it: did you mean hami.io/webhook?")
    assert len(found) == 4


def test_many_unknown_keys_cost_little(monkeypatch):
    """A tenant chooses how many keys there are."""
    compared = []
    monkeypatch.setattr("controller.webhook.notices.nearest", lambda name, _known: compared.append(name) or "")
    wanted = pod("p", annotations={f"nvidia.com/{number}": "x" for number in range(20_000)})
    assert convert_pod(wanted, "default").warnings == ()
    assert len(compared) == 50
    many = pod("p", annotations={f"hami.io/{number}": "x" for number in range(20_000)})
    assert len(convert_pod(many, "default").warnings) == MOST


# --- claims and nodes --------------------------------------------------------------------------------------------------------


def test_a_claim_that_no_container_uses_is_noted():
    wanted = pod("p", "template:t", "shared")
    wanted["spec"]["containers"][1]["resources"]["claims"].pop()
    (warning,) = convert_pod(wanted, "default").warnings
    assert warning == (
        "spec.resourceClaims[c1] is used by no container: its devices are allocated, and no container sees them; add "
        "resources.claims: [{name: c1}] to a container, or remove the claim"
    )
    assert convert_pod(pod("p", "template:t", limits={"nvidia.com/gpu": 1}), "default").warnings == ()


def test_a_chosen_node_and_another_scheduler_are_noted_of_pods_with_claims():
    wanted = pod("p", "c", nodeName="n", schedulerName="hami-scheduler", labels={"hami.io/dra": "true"})
    scheduler, node_name = convert_pod(wanted, "default").warnings
    assert scheduler.startswith("spec.schedulerName is hami-scheduler")
    assert "write nodeSelector: {kubernetes.io/hostname: n} instead" in node_name
    foreign = pod("p", "c", schedulerName="hami-scheduler")
    assert convert_pod(foreign, "default").warnings == ()
    assert convert_pod(wanted, "default", Options(mode="native")).warnings == (node_name,)


# --- workloads ---------------------------------------------------------------------------------------------------------------

TEMPLATES = [
    ("apps/v1", "Deployment", "spec.template"),
    ("apps/v1", "StatefulSet", "spec.template"),
    ("apps/v1", "DaemonSet", "spec.template"),
    ("apps/v1", "ReplicaSet", "spec.template"),
    ("batch/v1", "Job", "spec.template"),
    ("batch/v1", "CronJob", "spec.jobTemplate.spec.template"),
]


def owning(version, kind, inner, **metadata):
    spec = {"template": inner}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", **metadata}, "spec": spec}


@pytest.mark.parametrize(("version", "kind", "path"), TEMPLATES)
def test_policies_on_the_metadata_of_a_workload_belong_on_its_pods(version, kind, path):
    policy = {"hami.io/node-scheduler-policy": "spread"}
    inner = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    wanted = owning(version, kind, inner, annotations=policy, labels={"hami.io/webhook": "ignore"})
    stands = f"is set on the {kind}, and hami-dra reads it on pods: move it to {path}.metadata"
    expected = (
        f"annotation hami.io/node-scheduler-policy {stands}.annotations",
        f"label hami.io/webhook {stands}.labels",
    )
    assert workload_notices(wanted, "team", Options()) == expected
    assert convert_documents(documents(wanted)).warnings == tuple(
        f"in.yaml, document 1: {kind} w: {each}" for each in expected
    )
    repeated = owning(version, kind, {**inner, "metadata": {"annotations": policy}}, annotations=policy)
    assert workload_notices(repeated, "team", Options()) == ()


@pytest.mark.parametrize(("version", "kind", "path"), TEMPLATES)
def test_what_the_webhook_would_refuse_is_said_of_the_workload(version, kind, path):
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "16Gi"}
    inner = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    (warning,) = workload_notices(owning(version, kind, inner), "team", Options())
    assert warning.startswith(
        'its pods will be refused: container "main": resources.limits["nvidia.com/gpumem"] is \'16Gi\''
    )
    assert 'write "16384"' in warning


def test_a_pod_and_its_workload_are_told_the_same():
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/mig-3g.20gb": 1}}}]}
    (of_pod,) = workload_notices({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}, "team", Options())
    (of_workload,) = workload_notices(owning("apps/v1", "Deployment", {"spec": spec}), "team", Options())
    assert of_workload == f"its pods: {of_pod}"
    assert "write a claim of class nvidia-mig.hami.io" in of_pod


@pytest.mark.parametrize("inner", [None, [], "x", {}, {"spec": None}, {"metadata": [], "spec": {}}])
def test_templates_of_any_shape_are_survived(inner):
    for version, kind, _ in TEMPLATES:
        workload_notices(owning(version, kind, inner), "team", Options())
        workload_notices({"apiVersion": version, "kind": kind, "metadata": [], "spec": inner}, "team", Options())


def test_pods_of_one_workload_say_it_once_in_a_simulation():
    spec = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    wanted = workload("Deployment", "d", spec, replicas=3)
    wanted["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "binpack"}
    of_workload, of_pods = simulated(node("n"), wanted).notices
    assert of_workload.startswith(
        "in.yaml, document 2: Deployment default/d: annotation hami.io/gpu-scheduler-policy is set"
    )
    assert of_pods.startswith(
        "in.yaml, document 2: Pod default/d-0 (and 2 more): spec.resourceClaims[gpu] is used by no"
    )


VALUES = {
    "hami.io/node-scheduler-policy": ("binpak", "is not one of binpack, spread, fair-share (did you mean binpack?)"),
    "hami.io/gpu-scheduler-policy": ("spread,Mutex", "(did you mean mutex?)"),
    "hami.io/packing-weights": ("theta=2", "theta"),
    "hami.io/device-scoring-weights": ("slot=1", "name each of slot, core and memory once"),
    "hami.io/gpu-topology": ("require", "(did you mean required?)"),
    "nvidia.com/numa-bind": ("yes", "is neither true nor false"),
    "volcano.sh/vgpu-mode": ("migg", "is not one of hami-core, mig (did you mean mig?)"),
}


@pytest.mark.parametrize("key", VALUES)
def test_a_value_that_cannot_be_used_is_told_at_apply(key):
    value, words = VALUES[key]
    told = [text for text in warnings({}, annotations={key: value}) if key in text]
    assert len(told) == 1
    assert told[0].startswith(f"annotation {key}: '{value}'")
    assert words in told[0]


def test_all_values_that_cannot_be_used_are_told_at_once():
    annotations = {key: value for key, (value, _) in VALUES.items()}
    told = warnings({}, annotations=annotations)
    assert [sum(f"annotation {key}: " in text for text in told) for key in annotations] == [1] * len(annotations)


def test_a_refused_pod_hears_of_its_annotations_too_each_once():
    annotations = {key: value for key, (value, _) in VALUES.items()}
    with pytest.raises(ConversionRefused) as refused:
        convert_pod(
            pod("p", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": "4Gi"}, annotations=annotations), "default"
        )
    problems = refused.value.problems
    assert [sum(f"annotation {key}: " in text for text in problems) for key in annotations] == [1] * len(annotations)
    assert sum("nvidia.com/gpumem" in text for text in problems) == 1


def test_values_that_can_be_used_are_not_told():
    good = {
        "hami.io/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "spread,mutex",
        "nvidia.com/vgpu-mode": "mig, hami-core",
        "hami.io/gpu-topology": "required",
        "nvidia.com/use-gputype": "",
    }
    assert warnings({"nvidia.com/gpu": 1}, annotations=good) == ()


def test_a_template_with_a_value_that_cannot_be_used_is_told_at_apply():
    outer = workload("Deployment", "web", pod("p", limits={"nvidia.com/gpu": 1})["spec"])
    outer["spec"]["template"]["metadata"]["annotations"] = {"hami.io/node-scheduler-policy": "binpak"}
    (told,) = workload_notices(outer, "default", Options())
    assert "'binpak' is not one of binpack" in told
