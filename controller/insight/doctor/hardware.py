"""Checks of the published devices: device classes, slices and pools, competing device plugins."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from controller.insight.doctor.model import Finding, Severity, State
from controller.webhook import clash_warnings
from hami_dra.api import names
from hami_dra.api.nodelacks import InvalidLacks, Lack, LackKind, decode
from hami_dra.api.printable import counted, some
from hami_dra.api.resource import ResourceSlice
from hami_dra.vendors.registry import plugin_resources

_SHOWN: Final = 3
_FIXES: Final = {
    LackKind.LIBRARIES: "do what it says; the node's driver looks again every five minutes (--discover-every). docs/vendors/nvidia.md "
    "lists the ways in which containers get libraries",
    LackKind.PARTITIONS: "do what it says; docs/vendors/nvidia.md describes what MIG needs in the driver's container",
    LackKind.LIMITS: "install HAMi-core on the node (chart: vendors.nvidia.hamiCore; docs/vendors/nvidia.md#hami-core-on-the-nodes), or take "
    "only whole GPUs and MIG instances there",
    LackKind.USAGE: "chart: driver.usageCache: host, if no tenant would fill the node's disk on purpose (docs/monitoring.md says what that "
    "costs)",
}
_SEVERITIES: Final = {LackKind.LIMITS: Severity.WARNING, LackKind.USAGE: Severity.HINT}
"""Of the others: an error."""


def classes(state: State) -> Iterator[Finding]:
    """Check the extended resource names of device classes.

    Only native mode serves extended resources from classes; in exclusive mode the webhook converts
    them, but those of foreign drivers may still be requested.
    """
    resources = sorted({each.spec.extended_resource_name or "" for each in state.objects.classes} - {""})
    for resource in resources:
        for warning in clash_warnings([resource], state.objects.classes):
            owners = sorted(
                each.metadata.name for each in state.objects.classes if each.spec.extended_resource_name == resource
            )
            yield Finding.of(
                Severity.ERROR if state.installation.mode == "native" else Severity.WARNING,
                f"DeviceClass {', '.join(owners)}",
                warning.rpartition(". ")[0],
                f"remove spec.extendedResourceName from all but one of them: kubectl edit deviceclass {owners[-1]}",
            )


def slices(state: State) -> Iterator[Finding]:
    """Report pools that are unusable, have several generations, or belong to deleted nodes."""
    left_out = {f"ResourceSlice {item.metadata.name}": item for item in state.objects.slices}
    for what, problem in sorted(state.inventory.problems.items()):
        if (item := left_out.get(what)) is not None:
            yield _left_out(item, problem)
            continue
        yield Finding.error(
            what[:1].upper() + what[1:],
            f"{problem}: none of its devices can be allocated",
            "a running driver publishes the rest within seconds; if not, see the driver's log on that node",
        )
    generations: dict[tuple[str, str], set[int]] = defaultdict(set)
    gone: dict[str, list[str]] = defaultdict(list)
    there = {node.metadata.name for node in state.objects.nodes}
    for item in state.objects.slices:
        spec = item.spec
        if f"ResourceSlice {item.metadata.name}" in state.inventory.problems:
            continue
        generations[spec.driver, spec.pool.name].add(spec.pool.generation)
        if there and spec.node_name and spec.node_name not in there:
            gone[spec.node_name].append(item.metadata.name)
    for (driver, name), found in sorted(generations.items()):
        if len(found) > 1:
            yield Finding.warning(
                f"Pool {driver}/{name}",
                f"slices of generations {', '.join(map(str, sorted(found)))} are published; only the newest counts",
                "a running driver removes old ones within seconds; if not, delete them by hand",
            )
    for node, listed in sorted(gone.items()):
        shown = " ".join(sorted(listed)[:_SHOWN])
        yield Finding.warning(
            f"Node {node}",
            f"{counted(len(listed), 'ResourceSlice')} {'names' if len(listed) == 1 else 'name'} this node, which does not exist",
            f"kubectl delete resourceslice {shown}" + (" ..." if len(listed) > _SHOWN else ""),
        )


def _left_out(item: ResourceSlice, problem: str) -> Finding:
    node = item.spec.node_name
    suspect = f"find out what runs on node {node} as its driver or kubelet: " if node else ""
    return Finding.error(
        f"ResourceSlice {item.metadata.name}",
        f"{problem}: it is left out, and the node's own pool counts",
        f"{suspect}kubectl delete resourceslice {item.metadata.name}; manifests/slice-policy.yaml keeps such slices out",
    )


def node_lacks(state: State) -> Iterator[Finding]:
    """Report what containers would lack on a node, as its driver tells; hints once for all nodes."""
    hints: dict[tuple[str, Lack], list[str]] = defaultdict(list)
    for item in state.objects.slices:
        text = item.metadata.annotations.get(names.NODE_LACKS, "")
        if not text or item.spec.driver not in state.installation.own_drivers:
            continue
        try:
            lacks = decode(text)
        except InvalidLacks as error:
            yield Finding.warning(
                f"ResourceSlice {item.metadata.name}",
                f"its annotation {names.NODE_LACKS} cannot be read: {error}",
                "restart the driver of the node, which writes it again",
            )
            continue
        for lack in lacks:
            severity = _SEVERITIES.get(lack.kind, Severity.ERROR)
            if severity is Severity.HINT:
                hints[item.spec.driver, lack].append(item.spec.node_name or "")
                continue
            yield Finding.of(
                severity, f"Node {item.spec.node_name}", f"{item.spec.driver}: {lack.message}", _FIXES[lack.kind]
            )
    for (driver, lack), nodes in sorted(hints.items()):
        yield Finding.of(
            Severity.HINT, f"Node {some(sorted(nodes), 1)}", f"{driver}: {lack.message}", _FIXES[lack.kind]
        )


def device_plugins(state: State) -> Iterator[Finding]:
    """Report cards offered by both a device plugin and a driver: neither knows the other's allocations."""
    drivers: dict[str, set[str]] = defaultdict(set)
    for item in state.objects.slices:
        if item.spec.node_name and item.spec.devices:
            drivers[item.spec.node_name].add(item.spec.driver)
    nodes = state.inventory.nodes
    for node, published in sorted(drivers.items()):
        row = nodes.index_of(node)
        offered = [each for each in plugin_resources(published) if row >= 0 and nodes.offers(each)[row] > 0]
        if offered:
            yield Finding.error(
                f"Node {node}",
                f"a device plugin offers {', '.join(offered)}, and {', '.join(sorted(published))} publishes the same devices: "
                "the same device can go to pods of both",
                "remove the device plugin from this node (its DaemonSet), or the driver",
            )


def cliques(state: State) -> Iterator[Finding]:
    """Report nodes without the label of their cards' NVLink clique, or with another one: gangs and
    ComputeDomains go by the label.
    """
    published: dict[str, set[str]] = defaultdict(set)
    for item in state.objects.slices:
        if item.spec.driver not in state.installation.own_drivers or not item.spec.node_name:
            continue
        for device in item.spec.devices:
            cluster, clique = device.attributes.get(names.ATTR_CLUSTER), device.attributes.get(names.ATTR_CLIQUE)
            if cluster is not None and cluster.string and clique is not None and clique.int_ is not None:
                published[item.spec.node_name].add(f"{cluster.string}.{clique.int_}")
    labels = {node.metadata.name: node.metadata.labels for node in state.objects.nodes}
    for node, found in sorted(published.items()):
        if node not in labels or {labels[node].get(names.NVLINK_CLIQUE, "")} == found:
            continue
        yield _finding(node, sorted(found), labels[node].get(names.NVLINK_CLIQUE, ""))


def _finding(node: str, found: list[str], label: str) -> Finding:
    consequence = "gangs that must run in one clique and pods with a ComputeDomain"
    if len(found) > 1:
        problem = f"its GPUs are in several NVLink cliques: {', '.join(found)}"
        fix = "check the partitions of the fabric (NMX, fabric manager): all GPUs of a node belong to one"
    elif label:
        problem = f"label {names.NVLINK_CLIQUE} is {label}, but its GPUs are in {found[0]}: {consequence} are misplaced"
        fix = f"kubectl label node {node} --overwrite {names.NVLINK_CLIQUE}={found[0]}"
    else:
        problem = f"its GPUs are in NVLink clique {found[0]}, and no label says so: {consequence} are not placed there"
        fix = f"run GPU feature discovery on it, or: kubectl label node {node} {names.NVLINK_CLIQUE}={found[0]}"
    return Finding.warning(f"Node {node}", problem, fix)
