"""Devices to slices: splitting, names, the fence taint; and what must hold of a pool as a whole."""

import pytest

from hami_dra.driver.limits import check_pools, device_limit
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import Pool, fenced, machine_pools, pool_of, slice_bodies, slice_body, slice_name
from tests.support.slice_limits import check_slice


def plain(count):
    return [{"name": f"d{number}"} for number in range(count)]


def sizes(pool):
    return [len(content.devices) for content in pool.slices]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, [0]), (1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])]
)
def test_a_slice_holds_128_devices_and_no_devices_is_one_empty_slice(count, expected):
    assert sizes(pool_of("d.example.com", "n1", plain(count))) == expected


def test_devices_keep_their_order_over_slices():
    pool = pool_of("d.example.com", "n1", plain(300))
    assert [device["name"] for content in pool.slices for device in content.devices] == [f"d{n}" for n in range(300)]


def test_the_fence_halves_what_a_slice_holds_and_goes_without_a_trace():
    pool = pool_of("d.example.com", "n1", plain(129))
    behind = fenced(pool, fence=True)
    assert sizes(behind) == [64, 64, 1]
    taint = {"key": "hami.io/controller-allocates", "effect": "NoSchedule"}
    assert all(device["taints"] == [taint] for content in behind.slices for device in content.devices)
    assert fenced(behind, fence=True) == behind
    assert fenced(behind, fence=False) == pool
    assert all(not check_slice(body) for body in slice_bodies([behind]))


def test_other_taints_stay_when_the_fence_goes():
    own = {"key": "gpu.example.com/xid", "effect": "NoSchedule", "value": "79"}
    pool = pool_of("d.example.com", "n1", [{"name": "a", "taints": [own]}])
    behind = fenced(pool, fence=True)
    assert [taint["key"] for taint in behind.slices[0].devices[0]["taints"]] == [
        own["key"],
        "hami.io/controller-allocates",
    ]
    assert fenced(behind, fence=False) == pool


def test_counters_are_in_slices_of_their_own():
    counters = [{"name": f"gpu-{n}", "counters": {"memory": {"value": "10"}}} for n in range(9)]
    devices = [
        {
            "name": f"mig-{n}",
            "consumesCounters": [{"counterSet": f"gpu-{n % 9}", "counters": {"memory": {"value": "1"}}}],
        }
        for n in range(65)
    ]
    pool = pool_of("d.example.com", "n1", devices, shared_counters=counters)
    assert [(len(content.shared_counters), len(content.devices)) for content in pool.slices] == [
        (8, 0), (1, 0), (0, 64), (0, 1),
    ]  # fmt: skip
    bodies = slice_bodies([pool])
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)


def test_list_attributes_halve_it_too():
    assert device_limit([{"name": "a", "attributes": {"numaNodes": {"ints": [0, 1]}}}]) == 64
    assert device_limit([{"name": "a", "attributes": {"numaNode": {"int": 0}}}]) == 128


def test_a_slice_as_it_is_created():
    pool = Pool(
        "d.example.com", "n1", pool_of("d.example.com", "n1", plain(1)).slices, node_uid="u-1", labels={"a": "b"}
    )
    assert slice_body(pool, 0, 7) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": slice_name(pool, 0),
            "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1", "controller": True}],
        },
        "spec": {
            "driver": "d.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 7, "resourceSliceCount": 1},
            "devices": [{"name": "d0"}],
        },
    }


def test_names_sort_by_index_and_never_collide():
    one = pool_of("a.example.com", "b-c", plain(300))
    names = [slice_name(one, index) for index in range(300)]
    assert names == sorted(names)
    assert names[0].startswith("00000-a.example.com-b-c-")
    assert names[255].startswith("000ff-")
    other = pool_of("a.example.com-b", "c", plain(1))
    assert slice_name(other, 0) != names[0]


def test_the_longest_names_are_still_names():
    node = ".".join(["n" * 62] * 4)
    pool = pool_of("d" * 63, node, plain(1))
    assert len(slice_name(pool, 0)) <= 253
    assert not check_slice(slice_body(pool, 0, 1))
    assert slice_name(pool, 0) != slice_name(pool_of("d" * 63, node[:-1], plain(1)), 0)


# --- a pool as a whole -----------------------------------------------------------------------------------------------


def problems(bodies):
    return [str(violation) for violation in check_pools(bodies)]


def test_a_good_pool_has_no_problems():
    assert not problems(
        slice_bodies([*machine_pools(machine("dgx-h100", "a")), pool_of("d.example.com", "b", plain(200))])
    )


def test_a_missing_slice_is_found():
    bodies = slice_bodies([pool_of("d.example.com", "n1", plain(200))])
    assert problems(bodies[:1]) == [
        "d.example.com/n1: spec.pool.resourceSliceCount: is 2, but the pool has 1 slices: set it to that number"
    ]


def test_two_generations_are_found():
    bodies = slice_bodies([pool_of("d.example.com", "n1", plain(200))])
    bodies[1]["spec"]["pool"]["generation"] = 4
    assert any("generation: differs between slices (1, 4)" in problem for problem in problems(bodies))


def test_a_device_in_two_slices_is_found():
    bodies = slice_bodies([pool_of("d.example.com", "n1", plain(200))])
    bodies[1]["spec"]["devices"][0]["name"] = "d7"
    assert any("'d7' occurs twice" in problem for problem in problems(bodies))


def test_an_unknown_counter_is_found():
    counters = [{"name": "gpu", "counters": {"memory": {"value": "10"}}}]
    devices = [{"name": "a", "consumesCounters": [{"counterSet": "gpu", "counters": {"cores": {"value": "1"}}}]}]
    (problem,) = problems(slice_bodies([pool_of("d.example.com", "n1", devices, shared_counters=counters)]))
    assert "spec.devices[a].consumesCounters[gpu]: no slice of the pool has the counters cores" in problem


def test_something_that_is_not_a_slice_gets_an_answer_too():
    assert [violation.field for violation in check_slice({})] != []
    assert [violation.field for violation in check_slice({"metadata": [], "spec": {}})] != []
    (violation,) = check_slice({"metadata": {"name": "s"}, "spec": {"driver": 5, "pool": {"name": "n"}}})
    assert (violation.object, violation.field) == ("s", "spec.driver")
