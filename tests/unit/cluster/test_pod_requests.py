"""What a pod asks of its node, as kube-scheduler counts it."""

import pytest

from controller.cluster.incremental.saturation import MOST
from controller.cluster.pod_resources import amount, pod_requests
from tests.cards import pod

GIB = 1 << 30


def container(name="c", *, limits=None, restart="", **requests):
    made = {"name": name, "resources": {"requests": requests, "limits": limits or {}}}
    return {**made, "restartPolicy": restart} if restart else made


def requests(**spec):
    return {name: value for name, value in pod_requests(pod(**spec)).items() if name != "pods"}


def test_containers_add_up():
    assert requests(containers=[container(cpu="500m", memory="1Gi"), container(cpu="1.5")]) == {
        "cpu": 2000,
        "memory": GIB,
    }


def test_every_pod_is_one_pod():
    assert pod_requests(pod())["pods"] == 1


def test_a_limit_without_a_request_is_the_request():
    assert requests(containers=[container(limits={"cpu": "2", "memory": "1Gi"}, cpu="1")]) == {
        "cpu": 1000,
        "memory": GIB,
    }


def test_init_containers_need_the_largest():
    init = [container(cpu="3"), container(cpu="1", memory="2Gi")]
    assert requests(containers=[container(cpu="2", memory="1Gi")], initContainers=init) == {
        "cpu": 3000,
        "memory": 2 * GIB,
    }


@pytest.mark.parametrize(
    ("init", "cpu"),
    [
        ([container(restart="Always", cpu="1")], 3000),
        ([container(restart="Always", cpu="1"), container(cpu="5")], 6000),
        ([container(cpu="5"), container(restart="Always", cpu="1")], 5000),
        ([container(restart="Always", cpu="1"), container(restart="Always", cpu="4")], 7000),
    ],
    ids=["beside the app", "before an init container", "after it", "two"],
)
def test_sidecars_add_up_and_run_beside_what_comes_after_them(init, cpu):
    assert requests(containers=[container(cpu="2")], initContainers=init)["cpu"] == cpu


def test_the_overhead_comes_on_top():
    assert requests(containers=[container(cpu="1")], overhead={"cpu": "250m", "memory": "1Gi"}) == {
        "cpu": 1250,
        "memory": GIB,
    }


def test_pod_level_requests_replace_the_sum():
    spec = {"resources": {"requests": {"cpu": "3", "example.com/x": "9"}}}
    assert requests(containers=[container(cpu="1", memory="1Gi")], **spec) == {"cpu": 3000, "memory": GIB}


def test_a_pod_level_limit_is_the_request_only_where_no_container_has_one():
    spec = {"resources": {"limits": {"cpu": "3", "memory": "4Gi", "hugepages-2Mi": "4Mi"}}}
    assert requests(containers=[container(cpu="1")], **spec) == {
        "cpu": 1000,
        "memory": 4 * GIB,
        "hugepages-2Mi": 4 << 20,
    }


def test_extended_resources_are_counted():
    assert requests(containers=[container(**{"example.com/x": "2"}), container(**{"example.com/x": 3})]) == {
        "example.com/x": 5
    }


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [("cpu", "0.0001", 1), ("memory", "0.5", 1), ("memory", "x", 0), ("memory", "1e40", MOST), ("cpu", 2, 2000)],
)
def test_amounts_are_integers(resource, text, expected):
    assert amount(resource, text) == expected
