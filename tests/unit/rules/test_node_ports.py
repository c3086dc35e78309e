"""Host ports: which conflict, which pods have them, and what a refusal says."""

import pytest

from controller.reasons import catalogue
from controller.rules.node_ports import HostPort, host_ports
from tests.cards import node, pod
from tests.unit.rules.filtered import Filtered


def ports(*wanted, **container):
    return {"name": "main", "ports": list(wanted), **container}


def asking(*wanted, name="wanting", **spec):
    return pod(name, containers=[ports(*wanted)], **spec)


@pytest.mark.parametrize(
    ("mine", "theirs", "conflict"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "0.0.0.0"}, True),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        ({"containerPort": 80}, {"hostPort": 80}, False),
    ],
    ids=str,
)
def test_a_port_is_taken_once_per_address_and_protocol(mine, theirs, conflict):
    world = Filtered(node("n1"), node("n2")).run(asking(theirs, name="web", nodeName="n1"))
    assert world.refused(asking(mine)) == ({"n1": catalogue.NODE_PORTS} if conflict else {})


def test_a_refusal_names_port_and_pod():
    world = Filtered(node("n1")).run(asking({"hostPort": 8080}, name="web", nodeName="n1"))
    assert world.why(asking({"hostPort": 8080})) == {"n1": "NodePorts: port 8080/TCP is taken by Pod default/web"}


def test_a_port_is_free_when_its_pod_goes_and_taken_by_a_pod_that_is_assumed():
    web = asking({"hostPort": 80}, name="web", nodeName="n1")
    world = Filtered(node("n1")).run(web)
    world.inventory.pod_changed(web, None)
    assert world.refused(asking({"hostPort": 80})) == {}
    world.inventory.assume_pod(asking({"hostPort": 80}, name="next"), "n1")
    assert world.refused(asking({"hostPort": 80})) == {"n1": catalogue.NODE_PORTS}
    assert world.refused(asking({"hostPort": 80}, name="next")) == {}  # its own does not stand in its way


def test_sidecars_have_ports_and_init_containers_have_none():
    sidecar = ports({"hostPort": 80}, restartPolicy="Always")
    assert host_ports(pod("a", initContainers=[sidecar])) == (HostPort(80, "TCP", "0.0.0.0"),)
    assert host_ports(pod("a", initContainers=[ports({"hostPort": 80})])) == ()


def test_on_the_network_of_the_host_every_port_is_one():
    assert host_ports(asking({"containerPort": 80}, hostNetwork=True)) == (HostPort(80, "TCP", "0.0.0.0"),)


def test_a_taken_port_is_named_before_a_lacking_resource():
    world = Filtered(node("n1", allocatable={"cpu": "1", "pods": "9"})).run(
        asking({"hostPort": 80}, name="web", nodeName="n1")
    )
    wanted = pod("wanting", containers=[ports({"hostPort": 80}, resources={"requests": {"cpu": "2"}})])
    assert world.refused(wanted) == {"n1": catalogue.NODE_PORTS}
