"""Check of NVLink fabrics that span nodes: whether the label of a node says what its cards say.

Gangs that must run in one clique, and pods with a ComputeDomain, go by the label, as kube-scheduler
and NVIDIA's own driver do.
"""

from collections import defaultdict
from collections.abc import Iterator

from controller.insight.doctor.model import Finding, State
from hami_dra.api import names


def cliques(state: State) -> Iterator[Finding]:
    """Report nodes without the label of their cards' clique, or with another one."""
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
