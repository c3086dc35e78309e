"""What a pod says that nobody heeds: names without a reader, other schedulers, nodes chosen beforehand."""

import pytest

from controller.webhook.convert import ConversionRefused, Options, convert_pod
from controller.webhook.files import convert_documents
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
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
        ("cambricon.com/vmlu", "it has no vendor for these cards"),
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
    assert report.notes == []


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
