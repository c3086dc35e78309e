"""What `prepare` makes of claims, and what it refuses."""

import pytest

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.inventory.pools import compile_slice
from hami_dra.api.resource import ResourceSlice
from tests.support.allocation import (
    GPU,
    alternative,
    claim,
    class_of,
    device,
    exactly,
    first_of,
    parse,
    problem_of,
    slice_of,
)

OUR_DRIVER = "nvidia.hami.io"


def config(driver=OUR_DRIVER, requests=(), **parameters):
    opaque = {"driver": driver, "parameters": {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", **parameters}}
    return {"opaque": opaque} | ({"requests": list(requests)} if requests else {})


def device_of(driver=OUR_DRIVER, **keywords):
    raw = slice_of(device("gpu-0", **keywords))
    raw["spec"]["driver"] = driver
    return compile_slice(parse(raw, ResourceSlice)).devices[0]


def only_view(problem):
    (view,) = problem.views
    return view


# --- resolving -----------------------------------------------------------------------------------------------------------


def test_requests_come_resolved_and_named_as_results_name_them():
    problem = problem_of(claim(exactly("a", 2), first_of("b", alternative("big"), alternative("small")), name="x"))
    assert [view.name for view in problem.views] == ["a", "b/big", "b/small"]
    assert [view.parent_name for view in problem.views] == ["a", "b", "b"]
    assert [(view.request_index, view.alternative) for view in problem.views] == [(0, 0), (1, 0), (1, 1)]
    assert {view.claim_key for view in problem.views} == {"ns/x"}
    assert problem.views[0].count == 2
    assert problem.views[0].device_class.metadata.name == "gpu"


def test_count_and_mode_have_the_api_server_s_defaults():
    raw = claim({"name": "r", "exactly": {"deviceClassName": "gpu"}})
    assert only_view(problem_of(raw)).count == 1


def test_allocated_claims_are_not_in_the_problem():
    done = claim(exactly(), name="done") | {"status": {"allocation": {"devices": {"results": []}}}}
    problem = problem_of(done, claim(exactly(), name="open"))
    assert [each.claim.metadata.name for each in problem.claims] == ["open"]
    assert problem.views[0].claim_index == 0


def test_requests_of_one_shape_are_recognised():
    problem = problem_of(
        claim(exactly("a", capacity={"memory": "1Gi"}), exactly("b", 3, capacity={"memory": "1Gi"}), exactly("c"))
    )
    first, second, third = problem.views
    assert first.shape == second.shape != third.shape
    assert (first.shape_index, second.shape_index, third.shape_index) == (0, 0, 1)


def test_the_shape_of_a_request_changes_with_its_class():
    before = only_view(problem_of(claim(exactly()))).shape
    after = only_view(problem_of(claim(exactly()), classes=[class_of("true")])).shape
    assert before != after


def test_constraints_cover_requests_by_name_or_all():
    problem = problem_of(
        claim(
            exactly("a"),
            first_of("b", alternative("x"), alternative("y")),
            constraints=[
                {"matchAttribute": "d/everywhere"},
                {"matchAttribute": "d/b", "requests": ["b"]},
                {"distinctAttribute": "d/y", "requests": ["a", "b/y"]},
            ],
        )
    )
    assert {view.name: view.constraints for view in problem.views} == {"a": (0, 2), "b/x": (0, 1), "b/y": (0, 1, 2)}
    assert problem.views[2].match_attributes == ("d/everywhere", "d/b")
    assert problem.views[2].distinct_attributes == ("d/y",)


# --- what a request takes of a device ----------------------------------------------------------------------------------------


def test_demand_lists_every_capacity_in_whole_units():
    view = only_view(problem_of(claim(exactly(capacity={"memory": "1500m"}))))
    shared = device_of(shared=True, capacity={"memory": "4", "cores": "100"})
    assert view.consumed(shared) == {"memory": 2, "cores": 100}


def test_a_device_that_cannot_be_shared_is_taken_whole():
    view = only_view(problem_of(claim(exactly(capacity={"memory": "1"}))))
    assert view.consumed(device_of(capacity={"memory": "4"})) == {"memory": 4}
    assert not view.shared(device_of(capacity={"memory": "4"}))


def test_a_device_that_can_never_do_has_no_demand():
    view = only_view(problem_of(claim(exactly(capacity={"memory": "5"}))))
    assert view.consumed(device_of(capacity={"memory": "4"})) is None
    assert view.consumed(device_of(capacity={"tflops": "4"})) is None
    assert view.consumed(device_of(capacity={"memory": "8"})) == {"memory": 8}


def test_a_negative_amount_names_claim_request_and_device():
    view = only_view(problem_of(claim(exactly("r", capacity={"memory": "-1"}), name="x")))
    with pytest.raises(
        AllocatorError, match=r"ResourceClaim ns/x: request r: capacity of device .*/gpu-0: -1 is negative"
    ):
        view.consumed(device_of(capacity={"memory": "4"}))


def test_a_capacity_that_is_no_quantity_is_an_error_that_names_the_device():
    view = only_view(problem_of(claim(exactly())))
    with pytest.raises(AllocatorError, match=r"capacity of device .*/gpu-0: 'lots' is not a quantity"):
        view.consumed(device_of(shared=True, capacity={"memory": "lots"}))


def test_devices_alike_and_devices_apart_are_told_apart():
    view = only_view(problem_of(claim(exactly())))
    small, large = (device_of(shared=True, capacity={"memory": size}) for size in ("1", "2"))
    again = device_of(shared=True, capacity={"memory": "1"})
    assert [view.consumed(each) for each in (small, large, again)] == [{"memory": 1}, {"memory": 2}, {"memory": 1}]


def test_without_the_gate_capacity_plays_no_part_and_nothing_is_shared():
    view = only_view(problem_of(claim(exactly()), features=FeatureGates(consumable_capacity=False)))
    shared = device_of(shared=True, capacity={"memory": "4"})
    assert view.consumed(shared) == {"memory": 4}
    assert not view.shared(shared)


# --- memory by percentage ----------------------------------------------------------------------------------------------------


def consumed_with(class_config=(), claim_config=(), request=None):
    problem = problem_of(claim(request or exactly("r"), config=claim_config), classes=[class_of(config=class_config)])
    card = device_of(shared=True, capacity={"memory": "1000", "cores": "100"})
    return problem.views[0].consumed(card)["memory"]


def test_a_percentage_replaces_the_memory_request():
    assert consumed_with(claim_config=[config(memoryPercent=30)]) == 300
    request = exactly("r", capacity={"memory": "5"})
    assert consumed_with(claim_config=[config(memoryPercent=30)], request=request) == 300


def test_the_claim_s_percentage_wins_over_the_class_s_and_the_later_over_the_earlier():
    assert consumed_with([config(memoryPercent=10)]) == 100
    assert consumed_with([config(memoryPercent=10)], [config(memoryPercent=20)]) == 200
    assert consumed_with([config(memoryPercent=10)], [config(priority=1)]) == 100
    assert consumed_with([], [config(memoryPercent=20), config(memoryPercent=25)]) == 250


def test_a_percentage_holds_for_the_requests_it_names_and_on_its_driver():
    assert consumed_with(claim_config=[config(memoryPercent=20, requests=["other"])]) == 1000
    assert consumed_with(claim_config=[config(memoryPercent=20, requests=["r"])]) == 200
    assert consumed_with(claim_config=[config("metax.hami.io", memoryPercent=20)]) == 1000
    by_sub = first_of("r", alternative("x"))
    assert consumed_with(claim_config=[config(memoryPercent=20, requests=["r/x"])], request=by_sub) == 200


def test_parameters_of_other_drivers_are_not_read():
    foreign = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig", "sharing": {}}}}
    assert consumed_with([foreign], [foreign]) == 1000


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"memoryPercent": 0}, "memoryPercent: .*greater than or equal to 1"),
        ({"memoryPercent": 101}, "memoryPercent: .*less than or equal to 100"),
        ({"memoryPercentage": 10}, "memoryPercentage: there is no such field"),
        ({"kind": "GpuConfig"}, "kind: .*DeviceConfig"),
    ],
)
def test_bad_parameters_name_claim_or_class_and_field(parameters, says):
    with pytest.raises(
        AllocatorError, match=rf"ResourceClaim ns/c: spec.devices.config\[0\].opaque.parameters: {says}"
    ):
        consumed_with(claim_config=[config(**parameters)])
    with pytest.raises(AllocatorError, match=rf"DeviceClass gpu: spec.config\[0\].opaque.parameters: {says}"):
        consumed_with([config(**parameters)])


def test_a_card_without_memory_cannot_give_a_percentage_of_it():
    problem = problem_of(claim(exactly(), config=[config(memoryPercent=10)]))
    assert only_view(problem).consumed(device_of(shared=True, capacity={"cores": "100"})) is None


# --- refusals ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (claim(exactly(deviceClassName="h100")), "ResourceClaim ns/c: request r: DeviceClass h100 does not exist"),
        (claim(exactly(deviceClassName="x-vgpu.hami.io")), r"install those of hami-dra \(deviceclasses/\)"),
        (claim(exactly(deviceClassName="")), "deviceClassName is empty"),
        (claim({"name": "r"}), "neither exactly nor firstAvailable"),
        (claim(exactly(allocationMode="Some")), "allocationMode 'Some' is neither ExactCount nor All"),
        (claim(exactly(count=-1)), "count is -1"),
        (claim(exactly(selectors=[{}])), r"request r: selectors\[0\]: only CEL selectors are known"),
        (claim(exactly(capacity={"memory": "lots"})), r"capacity.requests\[memory\]: 'lots' is not a quantity"),
        (claim(exactly(), constraints=[{"requests": ["r"]}]), r"constraints\[0\]: neither matchAttribute nor"),
        (claim(exactly("a", 30), exactly("b", 3)), "request b: 3 devices, with 30 for the requests before it"),
        (claim(exactly("a", 4_611_686_018_427_387_904)), "more than the 32 that one claim can hold"),
        (claim(first_of("a", alternative("x", 33), alternative("y", 40))), "request a: 33 devices"),
    ],
)
def test_what_cannot_be_searched_for_is_an_error_that_names_it(raw, says):
    with pytest.raises(AllocatorError, match=says):
        problem_of(raw)


def test_the_smallest_alternative_decides_about_the_limit():
    assert problem_of(claim(first_of("a", alternative("x", 33), alternative("y", 32))))


@pytest.mark.parametrize(
    ("raw", "gate"),
    [
        (claim(first_of("a", alternative("x"))), "DRAPrioritizedList"),
        (claim(exactly(capacity={"memory": "1"})), "DRAConsumableCapacity"),
        (claim(first_of("a", alternative("x", capacity={"memory": "1"}))), "DRAConsumableCapacity"),
        (claim(exactly(adminAccess=False)), "DRAAdminAccess"),
        (claim(exactly(derivedAttributes=[{"name": "d/x", "expression": "1"}])), "DRADerivedAttributes"),
    ],
)
def test_what_a_gate_switches_off_is_refused_not_ignored(raw, gate):
    with pytest.raises(AllocatorError, match=gate):
        problem_of(raw, features=FeatureGates.parse(f"{gate}=false"))


def test_admin_access_needs_a_labelled_namespace():
    raw = claim(exactly(adminAccess=True), namespace="team")
    with pytest.raises(
        AllocatorError, match=r'the label resource.kubernetes.io/admin-access: "true" on namespace team'
    ):
        problem_of(raw, admin_namespaces={"kube-system"})
    assert only_view(problem_of(raw, admin_namespaces={"team"})).admin_access
    assert only_view(problem_of(raw)).admin_access  # not checked: as upstream's allocator


def test_a_selector_that_does_not_compile_is_kept_until_a_device_is_held_against_it():
    problem = problem_of(claim(exactly(where="noSuchVar")), classes=[GPU])
    (error,) = problem.selector_errors
    assert "ResourceClaim ns/c: request r: selectors[0] does not compile" in str(error)
    assert not problem_of(claim(exactly())).selector_errors


def test_selectors_that_ask_for_a_uuid_are_known():
    asks = {
        'device.attributes["hami.io"].uuid == "GPU-1"': True,
        'device.attributes["hami.io"]["uuid"] in ["GPU-1"]': True,
        'device.attributes["hami.io"].productName == "uuid"': False,
    }
    for expression, expected in asks.items():
        (selector,) = only_view(problem_of(claim(exactly(where=expression)))).selectors
        assert selector.asks_for_uuid is expected, expression
