"""What a claim holds on its node, with which parameters, and the sentences for claims that cannot be read."""

import msgspec
import pytest
from msgspec.structs import replace

from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.prepare.claim import check_identity, fingerprint, read_claim
from hami_dra.driver.prepare.errors import Refused
from tests.support.preparing import DRIVER, GIB, PreparedNode, claim, claim_json, result, share


@pytest.fixture
def inventory(tmp_path):
    return PreparedNode(tmp_path).inventory


def config(source, parameters, *requests, driver=DRIVER):
    body = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", **parameters}
    entry = {"source": source, "opaque": {"driver": driver, "parameters": body}}
    return entry | ({"requests": list(requests)} if requests else {})


def test_amounts_are_whole_units(inventory):
    (held,) = read_claim(claim("c", share("gpu-0", memory="1500M", cores="30")), inventory).held
    assert held.consumed == {"memory": 1_500_000_000, "cores": 30, "shares": 1}
    assert (held.request, held.device, held.card, held.share_id) == ("r", "gpu-0", "GPU-0", "share-r")
    assert held.shared
    assert not held.whole


def test_what_is_not_said_is_all_there_is(inventory):
    (held,) = read_claim(claim("c", result("gpu-0", share_id="s", cores="10")), inventory).held
    assert held.consumed == {"memory": 16 * GIB, "cores": 10, "shares": 10}


def test_all_memory_and_cores_is_a_whole_card(inventory):
    (held,) = read_claim(claim("c", share("gpu-0", memory="16Gi", cores="100")), inventory).held
    assert held.whole


def test_a_partition_holds_its_slices(inventory):
    (held,) = read_claim(claim("c", result("gpu-2-mig-2g-10gb-2")), inventory).held
    assert (held.partition.card, held.partition.profile, held.partition.start) == ("GPU-2", "2g.10gb", 2)
    assert held.partition.id is None
    assert ("gpu-2", "memory-slice-2", 1) in held.counters
    assert ("gpu-2", "memory-slice-3", 1) in held.counters
    assert held.consumed == {}


def test_results_of_other_drivers_are_not_ours(inventory):
    held = read_claim(claim("c", result("x", driver="other.io"), share("gpu-0")), inventory).held
    assert [each.device for each in held] == ["gpu-0"]


def test_parameters_of_the_class_come_before_those_of_the_claim(inventory):
    entries = [
        config("FromClaim", {"priority": 1}),
        config("FromClass", {"priority": 0, "qos": "fixed-share"}),
        config("FromClaim", {"qos": "burst-share"}, "other"),
        config("FromClaim", {"memoryPercent": 50}, driver="other.io"),
    ]
    (held,) = read_claim(claim("c", share("gpu-0"), config=entries), inventory).held
    assert held.parameters["priority"] == 1
    assert held.parameters["qos"] == "fixed-share"
    assert "memoryPercent" not in held.parameters


@pytest.mark.parametrize(
    ("requests", "expected"),
    [(("want",), 1), (("want/small",), 1), (("want/large",), None), (("wan",), None), ((), 1)],
)
def test_parameters_go_by_the_names_of_requests(inventory, requests, expected):
    entries = [config("FromClaim", {"priority": 1}, *requests)]
    (held,) = read_claim(claim("c", share("gpu-0", "want/small"), config=entries), inventory).held
    assert held.parameters.get("priority") == expected
    assert held.parent == "want"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (claim("c", share("gpu-0"), deletionTimestamp="2026-01-01T00:00:00Z"), "metadata.deletionTimestamp is set"),
        (claim("c"), f"has no device of driver {DRIVER}"),
        (claim("c", share("gpu-0", pool="n2")), "results[0].pool is 'n2', but this node's pool is 'n1'"),
        (claim("c", share("gpu-7")), "results[0].device is 'gpu-7', which driver nvidia.hami.io does not publish"),
        (claim("c", share("gpu-0", memory="lots")), "results[0].consumedCapacity[memory]"),
        (claim("c", share("gpu-0", memory="-1Gi")), "cannot be negative"),
        (claim("c", share("gpu-0", memory="1e400")), "no device has as much"),
        (
            claim("c", share("gpu-0"), config=[config("FromClass", {"priority": 7})]),
            "status.allocation.devices.config[0].opaque.parameters: priority",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_claim_and_field(inventory, given, words):
    with pytest.raises(Refused) as refused:
        read_claim(given, inventory)
    assert "ResourceClaim default/c: " in str(refused.value)
    assert words in str(refused.value)


def test_a_claim_that_is_not_allocated(inventory):
    given = claim("c")
    given = replace(given, status=replace(given.status, allocation=None))
    with pytest.raises(Refused, match=r"status\.allocation is empty"):
        read_claim(given, inventory)


def test_a_claim_of_the_same_name_is_another_claim():
    check_identity(claim("c"), "uid-c")
    with pytest.raises(Refused, match="deleted and created again under the same name"):
        check_identity(claim("c"), "uid-old")


def test_a_fingerprint_changes_with_what_the_driver_is_given_and_with_nothing_else():
    base = fingerprint(claim("c", share("gpu-0")), DRIVER)
    assert base == fingerprint(claim("c", share("gpu-0"), result("x", driver="other.io"), labels={"a": "b"}), DRIVER)
    assert base != fingerprint(claim("c", share("gpu-1")), DRIVER)
    assert base != fingerprint(claim("c", share("gpu-0", share_id="new")), DRIVER)
    assert base != fingerprint(claim("c", share("gpu-0"), config=[config("FromClaim", {"priority": 1})]), DRIVER)


def test_what_another_driver_tells_without_conditions_is_no_obstacle():
    """The API server writes null for a list that was left out."""
    raw = claim_json("c", share("gpu-0"))
    raw["status"]["devices"] = [{"driver": "other.io", "pool": "p", "device": "d", "conditions": None}]
    found = msgspec.json.decode(msgspec.json.encode(raw), type=ResourceClaim)
    assert found.status.devices[0].conditions == ()
