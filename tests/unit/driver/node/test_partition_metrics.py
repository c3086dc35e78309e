"""MIG instances of containers under HAMi's names: what is prepared, and what Prometheus is told of it."""

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.tenants import held_partitions
from tests.support.preparing import DRIVER, NODE, PreparedNode, claim, pod, result

ONE, TWO = "gpu-2-mig-1g-5gb-6", "gpu-2-mig-2g-10gb-2"
NAMES = {
    NameSet.HAMI: {"hami_mig_device_info", "hami_node_gpu_mig_instance_info"},
    NameSet.HAMI_2_7: {"MigInfo", "nodeGPUMigInstance"},
}
EVERY_NAME = set().union(*NAMES.values())


@pytest.fixture
def node(tmp_path):
    node = PreparedNode(tmp_path)
    outcomes = node.prepare(claim("c", result(TWO, "a"), result(ONE, "b")), pods=[pod()])
    assert not isinstance(outcomes["uid-c"], str)
    return node


def exported(node, *also):
    """Name → labels of each sample."""
    parts = held_partitions(node.work.written, node.inventory)
    watched = MonitoredVendor(DRIVER, "nvidia", node.cards, frozenset(), (), None, partitions=parts)
    metrics = DriverMetrics()
    metrics.watch(NODE, lambda: [watched], also)
    found = {name: [] for name in EVERY_NAME}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if sample.name in found:
                assert sample.value == 1
                found[sample.name].append(sample.labels)
    return found


def test_instances_have_hamis_labels(node):
    one, two = sorted(node.instances(), key=lambda each: each.placement.size)
    found = exported(node, *NameSet)
    assert found["hami_mig_device_info"] == [
        {
            "node": NODE,
            "namespace": "default",
            "pod": "pod",
            "container": "main",
            "vdevice_index": str(number),
            "device_uuid": "GPU-2",
            "mig_uuid": instance.uuid,
            "profile": profile,
            "gpu_instance_id": str(instance.id),
            "compute_instance_id": "0",
        }
        for number, (instance, profile) in enumerate([(two, "2g.10gb"), (one, "1g.5gb")])
    ]
    assert {
        "node": NODE,
        "device_uuid": "GPU-2",
        "device_index": "2",
        "mig_uuid": two.uuid,
        "profile": "2g.10gb",
        "gpu_instance_id": str(two.id),
        "compute_instance_id": "0",
        "placement_start": "2",
        "placement_size": "2",
        "zone": "vGPU",
    } in found["hami_node_gpu_mig_instance_info"]
    assert found["MigInfo"][0] == {
        "podnamespace": "default",
        "podname": "pod",
        "ctrname": "main",
        "vdeviceid": "0",
        "deviceuuid": "GPU-2",
        "instanceid": str(two.id),
    }
    assert found["nodeGPUMigInstance"][0] == {
        "nodeid": NODE,
        "deviceuuid": "GPU-2",
        "deviceidx": "2",
        "migname": f"2g.10gb-{two.id}",
        "zone": "vGPU",
    }


@pytest.mark.parametrize("also", [[], [NameSet.HAMI], [NameSet.HAMI_2_7]])
def test_only_names_that_are_wanted_are_exported(node, also):
    wanted = set().union(*(NAMES[each] for each in also))
    assert {name for name, samples in exported(node, *also).items() if samples} == wanted


def test_an_instance_that_two_containers_share_is_one_of_the_node_and_two_of_containers(tmp_path):
    node = PreparedNode(tmp_path)
    node.prepare(claim("c", result(ONE)), pods=[pod(containers={"main": ["c"], "side": ["c"]})])
    found = exported(node, NameSet.HAMI)
    assert [each["container"] for each in found["hami_mig_device_info"]] == ["main", "side"]
    assert len(found["hami_node_gpu_mig_instance_info"]) == 1


def test_the_containers_of_a_claim_may_be_unknown(tmp_path):
    node = PreparedNode(tmp_path)
    node.prepare(claim("c", result(ONE)))
    found = exported(node, NameSet.HAMI)
    assert (len(found["hami_mig_device_info"]), len(found["hami_node_gpu_mig_instance_info"])) == (0, 1)


def test_a_restarted_driver_knows_them_and_what_is_given_back_is_gone(node):
    before = exported(node, *NameSet)
    node.restart()
    assert exported(node, *NameSet) == before
    node.unprepare(claim("c"))
    assert not any(exported(node, *NameSet).values())


def test_records_of_older_drivers_do_not_name_the_compute_instance(node):
    (record,) = node.work.written.values()
    older = [
        msgspec.structs.replace(each, partition=msgspec.structs.replace(each.partition, compute_id=None, size=0))
        for each in record.held
    ]
    assert held_partitions({record.uid: msgspec.structs.replace(record, held=older)}, node.inventory) == []
