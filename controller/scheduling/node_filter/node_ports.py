"""Host ports: a node has each port once per address and protocol (kube-scheduler's NodePorts).

0.0.0.0 is every address: it conflicts with all, and all with it. Only pods with host ports cost
anything here.
"""

from typing import Final, NamedTuple

import numpy as np

from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.core import Container, Pod

_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 (what pods write, nothing binds to it here)


class HostPort(NamedTuple):
    port: int
    protocol: str
    address: str

    def conflicts(self, other: "HostPort") -> bool:
        """Return whether both cannot be on one node.

        >>> web = HostPort(80, "TCP", "10.0.0.1")
        >>> web.conflicts(HostPort(80, "TCP", "0.0.0.0")), web.conflicts(HostPort(80, "UDP", "10.0.0.1"))
        (True, False)
        """
        return self[:2] == other[:2] and (
            self.address == other.address or _EVERY_ADDRESS in {self.address, other.address}
        )


HostPorts = tuple[HostPort, ...]


def host_ports(pod: Pod) -> HostPorts:
    """Return the host ports of a pod's containers and sidecars, each once."""
    spec = pod.spec
    if not any(container.ports for container in (*spec.containers, *spec.init_containers)):
        return ()
    found: dict[HostPort, None] = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            found.update(_ports_of(container, host_network=spec.host_network))
    for container in spec.containers:
        found.update(_ports_of(container, host_network=spec.host_network))
    return tuple(found)


class NodePorts:
    """The host ports in use, by port and node."""

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._by_port: dict[int, dict[str, dict[str, Placed]]] = {}
        """Port → node → uid → pod; addresses and protocols are read from the pod."""

    def add(self, uid: str, placed: Placed) -> None:
        for each in host_ports(placed.pod):
            self._by_port.setdefault(each.port, {}).setdefault(placed.node, {})[uid] = placed

    def remove(self, uid: str, placed: Placed) -> None:
        for each in host_ports(placed.pod):
            by_node = self._by_port.get(each.port, {})
            there = by_node.get(placed.node, {})
            there.pop(uid, None)
            if not there:
                by_node.pop(placed.node, None)
            if not by_node:
                self._by_port.pop(each.port, None)

    def taken(self, wanted: HostPorts, rows: Positions, own: Placed | None = None) -> Bools:
        """Return whether one of the ports is taken, for each of `rows`. Shape (len(rows),)."""
        taken: Bools = np.zeros(self._nodes.size, dtype=np.bool_)
        for port in wanted:
            for name in self._by_port.get(port.port, ()):
                row = self._nodes.index_of(name)
                if row >= 0 and not taken[row]:
                    taken[row] = self._user(port, name, own) is not None
        return taken[rows]

    def sentence(self, pod: Pod, row: int, own: Placed | None = None) -> str:
        name = self._nodes.names[row]
        for port in host_ports(pod):
            user = self._user(port, name, own)
            if user is not None:
                return f"NodePorts: port {port.port}/{port.protocol} is taken by Pod {user.pod.key}"
        return "NodePorts: its ports are taken"

    def _user(self, port: HostPort, node: str, own: Placed | None) -> Placed | None:
        """Return a pod on the node with a port in conflict."""
        for placed in self._by_port.get(port.port, {}).get(node, {}).values():
            if placed is not own and any(port.conflicts(other) for other in host_ports(placed.pod)):
                return placed
        return None


def _ports_of(container: Container, *, host_network: bool) -> dict[HostPort, None]:
    """Return the host ports of a container. On the host's network every port is one: the API server
    writes that into the pod, files may lack it.
    """
    found: dict[HostPort, None] = {}
    for port in container.ports:
        number = port.host_port or (port.container_port if host_network else 0)
        if number > 0:
            found[HostPort(number, port.protocol or "TCP", port.host_ip or _EVERY_ADDRESS)] = None
    return found
