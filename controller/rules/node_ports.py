"""Host ports: a node has each port once per address and protocol (kube-scheduler's NodePorts).

0.0.0.0 is every address: it conflicts with all, and all with it. Only pods with host ports cost
anything here.
"""

from typing import Final, NamedTuple

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pods.pod_names import PodNames
from controller.reasons.catalogue import NODE_PORTS, NUMBERS
from controller.rules.plugin import NodePlugin
from hami_dra.api.arrays import Bools, Codes, Positions
from hami_dra.api.core import Container, Pod

_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 (what pods write, nothing binds to it here)


_SOME_ADDRESS: Final = ""


class HostPort(NamedTuple):
    port: int
    protocol: str
    address: str

    @property
    def entries(self) -> tuple["HostPort", ...]:
        """Return under what `NodePorts` has a user of this port: itself, and its number at some address."""
        return self, self._replace(address=_SOME_ADDRESS)

    @property
    def rivals(self) -> tuple["HostPort", ...]:
        """Return the entries whose users conflict with this port.

        >>> [each.address for each in HostPort(80, "TCP", "10.0.0.1").rivals]
        ['10.0.0.1', '0.0.0.0']
        """
        if self.address == _EVERY_ADDRESS:
            return (self._replace(address=_SOME_ADDRESS),)
        return self, self._replace(address=_EVERY_ADDRESS)


HostPorts = tuple[HostPort, ...]
_NOBODY: Final[dict[str, dict[str, Placed]]] = {}


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


class NodePorts(NodePlugin[HostPorts]):
    """The host ports in use, by port and node. A pod may have thousands of ports: what a question
    costs does not depend on how many others the users of a port have.
    """

    reasons = (NODE_PORTS,)

    def __init__(self, nodes: NodeColumns, pod_names: PodNames) -> None:
        super().__init__(nodes)
        self._pod_names = pod_names
        self._users: dict[HostPort, dict[str, dict[str, Placed]]] = {}
        """Entry of a port → node → uid → pod."""

    def add(self, uid: str, placed: Placed) -> None:
        for each in host_ports(placed.pod):
            for entry in each.entries:
                self._users.setdefault(entry, {}).setdefault(placed.node, {})[uid] = placed

    def remove(self, uid: str, placed: Placed) -> None:
        for each in host_ports(placed.pod):
            for entry in each.entries:
                by_node = self._users.get(entry, {})
                there = by_node.get(placed.node, {})
                there.pop(uid, None)
                if not there:
                    by_node.pop(placed.node, None)
                if not by_node:
                    self._users.pop(entry, None)

    def asked(self, pod: Pod) -> HostPorts | None:
        return host_ports(pod) or None

    def codes(self, pod: Pod, asked: HostPorts, rows: Positions, own: Placed | None) -> Codes:  # noqa: ARG002 (of the contract)
        return np.where(self._taken(asked, own)[rows], NUMBERS[NODE_PORTS], 0)

    def _taken(self, wanted: HostPorts, own: Placed | None = None) -> Bools:
        """Return whether one of the ports is taken. Shape (nodes.size,)."""
        rivals = dict.fromkeys(rival for port in wanted for rival in port.rivals)
        users = [by_node for rival in rivals if (by_node := self._users.get(rival)) is not None]
        taken: Bools = np.zeros(self._nodes.size, dtype=np.bool_)
        for name in set().union(*users):
            row = self._nodes.index_of(name)
            if row >= 0:
                taken[row] = True
        if own is not None and (row := self._nodes.index_of(own.node)) >= 0:
            there = [each for by_node in users for each in by_node.get(own.node, {}).values()]
            taken[row] = any(each is not own for each in there)
        return taken

    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:
        name = self._nodes.names[row]
        for port in host_ports(pod):
            user = self._user(port, name, own)
            if user is not None:
                return (
                    f"NodePorts: port {port.port}/{port.protocol} is taken by {self._pod_names.of(user.pod.key, pod)}"
                )
        return "NodePorts: its ports are taken"

    def _user(self, port: HostPort, node: str, own: Placed | None) -> Placed | None:
        """Return a pod on the node with a port in conflict."""
        for entry in port.rivals:
            for placed in self._users.get(entry, _NOBODY).get(node, {}).values():
                if placed is not own:
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
