"""L2, L3: what an administrator sets in a DeviceClass as final or as a minimum holds, in the controller and on the node."""

import msgspec
import pytest

from controller.decide import decide
from hami_dra.api import kinds
from hami_dra.api.config import merge, read_device_config
from hami_dra.driver.prepare.claim import read_claim
from hami_dra.driver.prepare.errors import Refused
from hami_dra.driver.prepare.pods import read_pod
from tests.cards import card
from tests.support.harness import SPACE, play
from tests.support.manifests import claim, cluster, device_class, part, pod, simulated, slices
from tests.support.manifests import node as node_of
from tests.support.preparing import DRIVER, PreparedNode, env_of, only, pod_json, result, share
from tests.support.preparing import claim as allocated

QOS = "metax-tech.com/sgpu-qos-policy"


def config(driver=DRIVER, **parameters):
    body = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", **parameters}
    return {"opaque": {"driver": driver, "parameters": body}}


def administered(name="strict", driver=DRIVER, **parameters):
    found = device_class(name, driver)
    found["spec"]["config"] = [config(driver, **parameters)]
    return found


def asking(*configs, memory="4Gi", cores="50", name="c", class_name="strict", **metadata):
    found = claim(name, part(memory, cores, class_name), **metadata)
    found["spec"]["devices"]["config"] = list(configs)
    return found


def placed(*objects):
    """The message of the one pod, or "" where it was placed."""
    report = simulated(*cluster("n1"), *objects, pod("p", "c"))
    return report.unplaced[0]["message"] if report.unplaced else ""


# --- the controller --------------------------------------------------------------------------------------------------

STRICT = {"corePolicy": "force", "priority": 1, "final": ["corePolicy", "priority"]}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"priority": 0}, "priority is 0, but DeviceClass strict sets it to 1 and marks it final"),
        ({"corePolicy": "disable"}, "corePolicy is disable, but DeviceClass strict sets it to force"),
        ({"final": ["qos"], "qos": "fixed-share"}, "final may be set by a DeviceClass only"),
        ({"minimum": {"cores": 0}}, "minimum may be set by a DeviceClass only"),
    ],
)
def test_a_claim_that_sets_a_final_field_otherwise_is_refused(parameters, words):
    message = placed(administered(**STRICT), asking(config(**parameters)))
    assert message.startswith("ResourceClaim default/c: spec.devices.config: ")
    assert words in message


@pytest.mark.parametrize("parameters", [{}, {"priority": 1}, {"priority": 1, "corePolicy": "force"}])
def test_a_claim_that_says_the_same_or_nothing_is_placed(parameters):
    assert placed(administered(**STRICT), asking(config(**parameters))) == ""


def test_a_field_that_is_not_final_is_the_claims():
    assert placed(administered(priority=1, corePolicy="force", final=["corePolicy"]), asking(config(priority=0))) == ""


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cores": "0"}, "asks for cores: 0, less than the minimum of 10 that DeviceClass strict sets"),
        ({"cores": "9"}, "asks for cores: 9, less than the minimum of 10"),
        ({"memory": "1Mi"}, "asks for memory: 1Mi, less than the minimum of 1Gi"),
        ({"memory": "1Gi", "cores": "10"}, ""),
    ],
)
def test_a_class_may_set_minimums(asked, words):
    message = placed(administered(minimum={"cores": 10, "memory": "1Gi"}), asking(**asked))
    assert (words in message) if words else message == ""


def test_without_a_minimum_no_share_of_cores_is_legal_as_in_hami():
    assert placed(administered(), asking(cores="0", memory="1Mi")) == ""


def test_a_percentage_does_not_slip_below_the_minimum():
    """One percent of a T4 of 15 GiB is less than 1 GiB."""
    small = asking(config(memoryPercent=1))
    del small["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"]
    assert placed(administered(minimum={"memory": "1Gi"}), small) != ""
    assert placed(administered(minimum={"memory": "100Mi"}), small) == ""


def test_an_annotation_is_no_way_around_a_final_field():
    metax = [*cluster("n1"), administered("sgpu", "metax.hami.io", qos="fixed-share", final=["qos"])]
    wanted = asking(class_name="sgpu")
    for annotations, words in (({QOS: "best-effort"}, "marks it final"), ({QOS: "fixed-share"}, "no node fits")):
        report = simulated(*metax, wanted, pod("p", "c", annotations=annotations))
        assert words in report.unplaced[0]["message"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"final": ["priority"]}, "final names priority, which has no value here"),
        ({"final": ["memory"]}, "final"),
        ({"minimum": {"cores": "many"}}, "minimum"),
    ],
)
def test_parameters_that_mean_nothing_are_named(parameters, words):
    message = placed(administered(**parameters), asking())
    assert message.startswith("DeviceClass strict: spec.config[0].opaque.parameters: ")
    assert words in message


def test_the_pod_is_told_by_an_event_of_its_own_reason():
    async def story(harness):
        found = administered(**STRICT)
        await harness.add(kinds.DEVICE_CLASS, found)
        await harness.add(
            kinds.NODE, {"metadata": {"name": "gpu"}, "status": {"allocatable": {"cpu": "8", "pods": "9"}}}
        )
        pool = {"name": "gpu", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": "gpu", "pool": pool, "devices": [card(0)]}
        await harness.add(kinds.RESOURCE_SLICE, {"metadata": {"name": "gpu"}, "spec": spec})
        wanted = asking(config(priority=0))
        wanted["metadata"]["namespace"] = SPACE
        await harness.add(kinds.RESOURCE_CLAIM, wanted)
        await harness.add(kinds.POD, pod("p", "c", namespace=SPACE))

        async def reported():
            return await harness.events("InvalidClaim")

        await harness.until(reported, seconds=30)
        [event] = await harness.events("InvalidClaim")
        assert event["regarding"]["name"] == "p"
        assert "DeviceClass strict" in event["note"]
        assert "priority" in event["note"]

    play(story, managed=frozenset({DRIVER}), decide=decide, quiet_time=0.0, probe=False)


# --- the node --------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    return PreparedNode(tmp_path)


def copied(source, **parameters):
    """As the allocation has it."""
    return {"source": source, **config(**parameters)}


def test_the_driver_refuses_what_somebody_else_allocated_against_the_class(node):
    """The last line: kube-scheduler, in native mode, knows nothing of final fields."""
    entries = [copied("FromClass", **STRICT), copied("FromClaim", priority=0)]
    with pytest.raises(Refused, match="priority is 0, but its DeviceClass sets it to 1 and marks it final"):
        read_claim(allocated("c", share("gpu-0"), config=entries), node.inventory)
    small = [copied("FromClass", minimum={"cores": 40})]
    with pytest.raises(Refused, match=r"consumedCapacity\[cores\] is 30, less than the minimum of 40"):
        read_claim(allocated("c", share("gpu-0", cores="30"), config=small), node.inventory)
    assert read_claim(allocated("c", result("gpu-1", admin=True), config=small), node.inventory)


def test_the_order_of_entries_is_no_way_around_the_class(node):
    entries = [copied("FromClaim", corePolicy="force"), copied("FromClass", **STRICT)]
    (held,) = read_claim(allocated("c", share("gpu-0"), config=entries), node.inventory).held
    assert held.parameters == {
        "apiVersion": "hami.io/v1alpha1",
        "kind": "DeviceConfig",
        "corePolicy": "force",
        "priority": 1,
    }
    assert not isinstance(read_device_config(b'{"corePolicy": "force"}'), str)


def test_a_container_cannot_switch_off_limits_that_its_class_enforces(node):
    c = allocated("c", share("gpu-0"), config=[copied("FromClass", limits="enforced", final=["limits"])])
    found = pod_json()
    found["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    outcome = node.prepare(c, pods=[read_pod(found)])["uid-c"]
    assert not isinstance(outcome, str), outcome
    device = only(node.specs())
    assert env_of(device)["CUDA_DISABLE_CONTROL"] == "false"
    assert "/etc/ld.so.preload" in {mount["containerPath"] for mount in device["containerEdits"]["mounts"]}


def test_what_the_allocator_records_agrees_with_a_final_field():
    """It writes the QoS of a MetaX card into the allocation as the claim's, and the driver reads it beside the class's."""
    name, wanted = "sgpu", asking(class_name="sgpu")
    objects = [
        node_of("m1"),
        *slices("m1", "c500-8"),
        administered(name, "metax.hami.io", qos="fixed-share", final=["qos"]),
    ]
    report = simulated(*objects, wanted, pod("p", "c"))
    [placed_pod] = report.placements
    [held] = placed_pod["claims"]
    by_source = {"FromClass": [], "FromClaim": []}
    for entry in held["allocation"]["devices"]["config"]:
        parameters = read_device_config(msgspec.json.encode(entry["opaque"]["parameters"]))
        by_source[entry["source"]].append(parameters)
    assert [found.qos for found in by_source["FromClaim"]] == ["fixed-share"]
    assert merge(by_source["FromClass"], by_source["FromClaim"], name).qos == "fixed-share"
