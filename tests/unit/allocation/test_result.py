"""The allocation as it is written: results, configuration, node selector."""

import pytest

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from tests.support.allocation import (
    DRIVER,
    NODE,
    InUse,
    allocate,
    alternative,
    claim,
    class_of,
    device,
    exactly,
    first_of,
    slice_of,
)

LOCAL = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]}


def written(slices, raw, **options):
    solution = allocate(slices, raw, **options)
    assert solution is not None
    (allocation,) = solution.allocations()
    return allocation


def opaque(number):
    return {"opaque": {"driver": DRIVER, "parameters": {"number": number}}}


def from_class(number, **rest):
    return {"source": "FromClass", **opaque(number), **rest}


def from_claim(number, **rest):
    return {"source": "FromClaim", **opaque(number), **rest}


# --- results ------------------------------------------------------------------------------------------------------------------------


def test_a_plain_device_on_its_node():
    assert written([slice_of(device("gpu-0"))], claim(exactly("r"))) == {
        "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}]},
        "nodeSelector": LOCAL,
    }


def test_a_share_says_what_it_consumes_of_every_capacity_in_canonical_quantities():
    cores = {"value": "100", "requestPolicy": {"default": "100", "validRange": {"min": "0", "max": "100"}}}
    card = device("gpu-0", shared=True, capacity={"memory": "16Gi", "cores": cores, "shares": "10"})
    raw = claim(exactly(capacity={"memory": "7500Mi", "cores": "0"}))
    (result,) = written([slice_of(card)], raw)["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "7500Mi", "cores": "0", "shares": "10"}
    assert "shareID" not in result


def test_a_shared_device_without_capacities_is_still_marked_as_shared():
    (result,) = written([slice_of(device("gpu-0", shared=True))], claim(exactly()))["devices"]["results"]
    assert result["consumedCapacity"] == {}


def test_a_whole_device_says_nothing_about_capacity():
    raw = claim(exactly(capacity={"memory": "1Gi"}))
    (result,) = written([slice_of(device("gpu-0", capacity={"memory": "16Gi"}))], raw)["devices"]["results"]
    assert "consumedCapacity" not in result


def test_a_percentage_is_written_as_the_amount_of_the_chosen_card():
    raw_slice = slice_of(device("gpu-0", shared=True, capacity={"memory": "15360Mi"}))
    raw_slice["spec"]["driver"] = "nvidia.hami.io"
    parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "memoryPercent": 33}
    raw = claim(exactly(), config=[{"opaque": {"driver": "nvidia.hami.io", "parameters": parameters}}])
    allocation = written([raw_slice], raw, classes=[class_of()])
    assert allocation["devices"]["results"][0]["consumedCapacity"] == {"memory": str(15360 * 2**20 * 33 // 100)}
    assert allocation["devices"]["config"][0]["opaque"]["parameters"] == parameters


def test_tolerations_conditions_and_admin_access_are_copied():
    tolerations = [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
    card = device("gpu-0", bindingConditions=["ready"]) | {"bindingFailureConditions": ["broken"]}
    (result,) = written(
        [slice_of(card, skipNodeOperations=["NodePrepareResources"])],
        claim(exactly("watch", tolerations=tolerations, adminAccess=True)),
        features=FeatureGates(optional_node_operations=True),
        node={"metadata": {"name": NODE}, "status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}},
        usage=InUse(exclusive={"gpu-0"}),
    )["devices"]["results"]
    assert result == {
        "request": "watch",
        "driver": DRIVER,
        "pool": NODE,
        "device": "gpu-0",
        "adminAccess": True,
        "tolerations": tolerations,
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"],
        "skipNodeOperations": ["NodePrepareResources"],
    }


def test_an_alternative_is_named_with_its_request():
    raw = claim(first_of("r", alternative("big", 9), alternative("small")))
    assert written([slice_of(device("gpu-0"))], raw)["devices"]["results"][0]["request"] == "r/small"


# --- configuration --------------------------------------------------------------------------------------------------------------------

CARDS = [slice_of(*(device(f"gpu-{index}") for index in range(4)))]


def config_of(raw, **options):
    return written(CARDS, raw, **options)["devices"].get("config")


def test_the_class_comes_before_the_claim_and_each_once():
    classes = [class_of(config=[opaque(1), opaque(2)])]
    raw = claim(exactly("a"), exactly("b"), config=[opaque(3), {**opaque(4), "requests": ["b"]}])
    assert config_of(raw, classes=classes) == [
        from_class(1),
        from_class(2),
        from_claim(3),
        from_claim(4, requests=["b"]),
    ]


def test_a_class_names_its_requests_unless_it_has_all():
    classes = [class_of(config=[opaque(1)]), class_of(name="other", config=[opaque(2)])]
    raw = claim(exactly("a"), exactly("b", deviceClassName="other"), exactly("c"))
    assert config_of(raw, classes=classes) == [
        from_class(1, requests=["a", "c"]),
        from_class(2, requests=["b"]),
    ]


def test_only_the_chosen_alternative_brings_its_class_and_configuration():
    classes = [class_of(config=[opaque(1)]), class_of(name="other", config=[opaque(2)])]
    raw = claim(
        first_of("r", alternative("big", 9), alternative("small", deviceClassName="other")),
        exactly("s", deviceClassName="other"),
        config=[
            {**opaque(3), "requests": ["r/big"]},
            {**opaque(4), "requests": ["r/small"]},
            {**opaque(5), "requests": ["r"]},
            {**opaque(6), "requests": ["r/small", "s"]},
        ],
    )
    assert config_of(raw, classes=classes) == [
        from_class(2),
        from_claim(4, requests=["r/small"]),
        from_claim(5, requests=["r"]),
        from_claim(6),
    ]


def test_without_configuration_there_is_none():
    assert config_of(claim(exactly())) is None


# --- where it can be used -----------------------------------------------------------------------------------------------------------------


def reaching(name, **where):
    raw = slice_of(device(f"{name}-0"), name=name, pool=name)
    del raw["spec"]["nodeName"]
    raw["spec"] |= where
    return raw


def terms(*expressions, fields=()):
    term = {"matchExpressions": list(expressions)} | ({"matchFields": list(fields)} if fields else {})
    return {"nodeSelectorTerms": [term]}


ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
RACK = {"key": "rack", "operator": "Exists"}
LABELLED = {"metadata": {"name": NODE, "labels": {"zone": "a", "rack": "1"}}}


def selector_of(*slices, count):
    from controller.allocation.chooser import FirstFit
    from controller.allocation.search import solve
    from controller.inventory.pools import PoolBook, compile_slice
    from hami_dra.api.core import Node
    from hami_dra.api.resource import ResourceSlice
    from tests.support.allocation import parse, problem_of

    book = PoolBook()
    for raw in slices:
        book.put(compile_slice(parse(raw, ResourceSlice)))
    node = parse(LABELLED, Node)
    solution = solve(problem_of(claim(exactly(count=count))), node, book.on(node), InUse(), FirstFit())
    assert solution is not None
    return solution.allocations()[0].get("nodeSelector")


def test_devices_for_all_nodes_can_be_used_anywhere():
    assert selector_of(reaching("net", allNodes=True), count=1) is None


def test_conditions_of_several_slices_are_merged_without_repetition():
    again = {**ZONE, "values": ["b", "a"]}
    found = selector_of(
        reaching("a", nodeSelector=terms(ZONE)),
        reaching("b", nodeSelector=terms(again, RACK)),
        reaching("c", allNodes=True),
        count=3,
    )
    assert found == terms(ZONE, RACK)


def test_one_local_device_pins_all_to_the_node():
    local = slice_of(device("local-0"), name="local", pool="local")
    assert selector_of(reaching("a", nodeSelector=terms(ZONE)), local, count=2) == LOCAL


def test_a_device_that_binds_to_its_node_pins_too():
    net = reaching("net", allNodes=True)
    net["spec"]["devices"][0]["bindsToNode"] = True
    assert selector_of(net, count=1) == LOCAL


def test_selection_by_device_goes_by_the_device():
    mixed = reaching("mixed", perDeviceNodeSelection=True)
    mixed["spec"]["devices"] = [
        device("far") | {"nodeName": "node-2"},
        device("zone") | {"nodeSelector": terms(ZONE)},
        device("near") | {"nodeName": NODE},
    ]
    assert selector_of(mixed, count=1) == terms(ZONE)
    assert selector_of(mixed, count=2) == LOCAL


def test_a_selector_of_several_terms_cannot_be_merged():
    two = {"nodeSelectorTerms": [*terms(ZONE)["nodeSelectorTerms"], *terms(RACK)["nodeSelectorTerms"]]}
    with pytest.raises(AllocatorError, match=r"ResourceSlice a: the nodeSelector of device .* has 2 terms"):
        selector_of(reaching("a", nodeSelector=two), count=1)
