"""Nodes, the pods on them and the filter plugins, wired together. Owned and fed by the inventory."""

from collections.abc import Callable, Mapping

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.affinity_terms import NAMESPACES_MERGED, anti_affinity_of, attraction_of
from controller.cluster.pods.existing_terms import ExistingTerms, TermReading
from controller.cluster.pods.pod_groups import Meter, PodGroups
from controller.cluster.pods.pod_names import PodNames
from controller.cluster.pods.pod_shapes import PodShapes
from controller.cluster.pods.pods import PodBook
from controller.cluster.pods.resized_requests import RESIZES_BY_SUMS
from controller.cluster.volumes.volume_limits import VOLUME_LIMIT_SCALING
from controller.rules.declared_features import NodeDeclaredFeatures
from controller.rules.filter_state import FilterState
from controller.rules.node_filters import NodeFilters
from controller.rules.node_ports import NodePorts
from controller.rules.node_resources import NodeResources
from controller.rules.node_rules import NodeRules
from controller.rules.pod_affinity import PodAffinityPlugin
from controller.rules.pod_anti_affinity import PodAntiAffinityPlugin
from controller.rules.pod_topology_spread import PodTopologySpread
from controller.rules.volumes.volume_book import VolumeBook
from controller.rules.volumes.volume_plugins import CODES as VOLUME_CODES
from controller.rules.volumes.volume_plugins import VolumePlugin, VolumeVerdicts
from hami_dra.api.core import Namespace, Pod


class FilterAssembly:
    """`delegated`: whether a DeviceClass serves an extended resource. `namespaces`: by name, live;
    call `namespace_changed` after changing labels in it.
    """

    def __init__(self, delegated: Callable[[str], bool], namespaces: Mapping[str, Namespace]) -> None:
        nodes = self.nodes = NodeColumns()
        pod_names = self.pod_names = PodNames()
        groups, ports = PodGroups(nodes), NodePorts(nodes, pod_names)
        labels = self.labels = NodeLabels(nodes)
        shapes, reading = PodShapes(), TermReading()
        rules, apart = NodeRules(nodes, labels, shapes), ExistingTerms(nodes, namespaces, anti_affinity_of, reading)
        self.term_reading = reading
        state = self.state = FilterState(nodes, rules, groups, labels, apart, namespaces, pod_names, shapes)
        self.attraction = ExistingTerms(nodes, namespaces, attraction_of, reading)
        """Terms of the pods that are there that score nodes for others."""
        self.resources = NodeResources(nodes, delegated)
        self.volumes = VolumeBook(nodes, labels, pod_names, shapes)
        self.volume_verdicts = VolumeVerdicts(nodes, self.volumes)
        self._spread = PodTopologySpread(state)
        listeners = (groups, apart, self.attraction, ports, self.volumes)
        self.pods = PodBook(nodes, listeners, self._spread.shape_of)
        self.filters = NodeFilters(
            state,
            self.resources,
            ports,
            plugins=(
                *(VolumePlugin(code, self.volume_verdicts, shapes) for code in VOLUME_CODES),
                self._spread,
                PodAffinityPlugin(state),
                PodAntiAffinityPlugin(state),
                NodeDeclaredFeatures(state),
            ),
        )

    def holds_in_any_order(self, pod: Pod, row: int) -> bool:
        """Return whether the node admits the pod in any order in which kube-scheduler may bind the
        unbound ones, and lets each of them be bound where it is placed.
        """
        own, unbound = self.pods.placed(pod.metadata.uid), tuple(self.pods.unbound())
        spreading = self.pods.spreading(pod.metadata.namespace)
        return self.filters.holds_in_any_order(pod, row, own, unbound) and (
            not spreading or self._spread.leaves_room(pod, row, spreading, unbound)
        )

    def set_meter(self, meter: Callable[[], Meter | None]) -> None:
        """Report work that the terms of some namespace cause to the meter of the decision that is being made."""
        self.state.groups.meter = self.state.anti_affinity.meter = self.attraction.meter = meter
        self.volumes.binding.meter = meter

    def set_version(self, version: tuple[int, int]) -> None:
        """Let the plugins judge as those of this version of Kubernetes (major, minor), before pods are fed."""
        self.volumes.limits.scaling = version >= VOLUME_LIMIT_SCALING
        self.pods.resizes_by_sums = version >= RESIZES_BY_SUMS
        self.state.reads_unlabelled_namespaces = version < NAMESPACES_MERGED

    def namespace_changed(self, name: str, before: Namespace | None, after: Namespace | None) -> None:
        """Note that a namespace came (`before` is None), went, or changed its labels."""
        for terms in (self.state.anti_affinity, self.attraction):
            terms.namespace_changed(name)
        self.state.shapes.namespace_changed(before, after)
        self.state.groups.forget_recent()

    def refuses_by_labels(self, pod: Pod) -> bool:
        """Return whether a pod that is there may have an anti-affinity to pods with these labels."""
        return self.state.anti_affinity.may_be_about(pod)
