"""The nodes of a fleet file: each with its Node object and its pools.

Called by `run` and by `hami-dra slices --fleet`. In: a FleetFile. Out: planned nodes, by name, in
the order of the file. Pure.
"""

import itertools
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.config import FleetFile, FleetNodes, Sharing
from hami_dra.api.errors import ConfigError
from hami_dra.api.hardware import Machine
from hami_dra.api.options import InvalidOption, VendorSettings
from hami_dra.api.quantity import Format, Quantity
from hami_dra.driver.simulated import (
    FabricMember,
    NotPublishedBy,
    UnknownMachine,
    foreign_devices,
    machine,
    nodes_of_fabric,
)
from hami_dra.driver.slices import Pool, machine_pools, pool_of
from hami_dra.vendors.publishing import Unpublishable
from hami_dra.vendors.registry import OPTIONS, plugin_of

Json = dict[str, Any]

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_ZONE = "topology.kubernetes.io/zone"
_PODS = "110"
_STORAGE = "1Ti"


class PlannedNode(Struct, frozen=True):
    name: str
    body: Json
    """The Node as it is created, without its status."""
    resources: dict[str, str]
    """Capacity and allocatable."""
    pools: tuple[Pool, ...]


def planned_nodes(file: FleetFile) -> dict[str, PlannedNode]:
    """Return the nodes of a fleet by name. Raises ConfigError, which names the entry of the file."""
    planned: dict[str, PlannedNode] = {}
    for number, group in enumerate(file.nodes):
        for index in range(group.count):
            zone = file.zones[len(planned) % len(file.zones)] if file.zones else ""
            try:
                node = _node(file, group, index, zone)
            except (UnknownMachine, NotPublishedBy, Unpublishable) as error:
                raise ConfigError(f"nodes[{number}]: {error}") from error
            planned[node.name] = node
    return planned


def pools_of(found: Machine, *, publish_as: str = "", sharing: Sharing | None = None) -> list[Pool]:
    """Return the pools of a machine. Raises Unpublishable or NotPublishedBy."""
    if publish_as:
        return [pool_of(publish_as, found.name, foreign_devices(publish_as, found))]
    return machine_pools(found, sharing_settings(sharing or {}))


def sharing_settings(sharing: Sharing) -> VendorSettings:
    """Read `sharing` of a fleet file. Raises Unpublishable, which names the field."""
    options = {option.field: option for option in OPTIONS if option.field}
    for name in sharing:
        if name not in options:
            raise Unpublishable(f"sharing.{name}: there is no such field; it has {', '.join(options)}")
    try:
        return VendorSettings.of({options[name]: written for name, written in sharing.items()})
    except InvalidOption as error:
        raise Unpublishable(f"sharing.{error.option.field}: {error.problem}") from error


def with_mig(found: Machine, *, enabled: bool) -> Machine:
    """Return the machine with all its GPUs in MIG mode, or none. Raises Unpublishable if no GPU supports it."""
    switched = [plugin_of(card.vendor).with_partition_mode(card, enabled) for card in found.cards]
    if enabled and not any(switched):
        raise Unpublishable(f"mig: {found.instance_type} has no GPU that supports MIG: leave mig out")
    return replace(found, cards=tuple(new or card for card, new in zip(found.cards, switched, strict=True)))


def _node(file: FleetFile, group: FleetNodes, index: int, zone: str) -> PlannedNode:
    name = group.node_name(index)
    found = machine(group.machine, name, _fabric_member(group, index))
    if group.mig is not None:
        found = with_mig(found, enabled=group.mig)
    labels = {
        names.HOSTNAME_LABEL: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        _INSTANCE_TYPE: found.instance_type,
        **({_ZONE: zone} if zone else {}),
        **found.labels,
        **{level.label: level.value_of(index) for level in group.topology},
        **group.labels,
        names.FLEET_LABEL: file.name,
    }
    body: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}
    if group.annotations:
        body["metadata"]["annotations"] = dict(group.annotations)
    if group.taints:
        body["spec"]["taints"] = [taint.model_dump(exclude_defaults=True) for taint in group.taints]
    resources = {
        "cpu": str(found.cpu),
        "memory": str(Quantity.from_int(found.memory, Format.BINARY_SI)),
        "ephemeral-storage": _STORAGE,
        "pods": _PODS,
        **group.allocatable,
    }
    pools = pools_of(found, publish_as=group.publish_as, sharing=group.sharing or file.sharing)
    own = {names.FLEET_LABEL: file.name}
    return PlannedNode(name, body, resources, tuple(replace(pool, labels=own) for pool in pools))


def _fabric_member(group: FleetNodes, index: int) -> FabricMember | None:
    """Return the node's place in its machine's fabric: runs of nodes fill one domain after the
    other, in each one clique after the other. Raises UnknownMachine or Unpublishable.

    18 nodes a domain, cliques [12, 6], node 30 → domain of node 18, clique 2.
    """
    nodes = nodes_of_fabric(group.machine)
    cliques = group.cliques or (nodes,)
    if sum(cliques) != nodes:
        problem = f"the fabric of {group.machine} has {nodes} nodes" if nodes else f"{group.machine} has no fabric"
        raise Unpublishable(
            f"cliques: {problem}, and {', '.join(map(str, cliques))} are {sum(cliques)}: leave them out"
        )
    if not nodes:
        return None
    domain, place = divmod(index, nodes)
    ends = itertools.accumulate(cliques)
    clique = next(number for number, end in enumerate(ends, 1) if place < end)
    return FabricMember(group.node_name(domain * nodes), clique)
