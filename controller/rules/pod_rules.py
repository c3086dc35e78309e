"""What kube-scheduler's plugins say of the nodes for a pod, devices apart: the columns of nodes and
pods, and the rules on them, wired together. Owned and fed by the inventory; decisions ask.
"""

from collections.abc import Callable, Mapping

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns, Placed
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
from controller.rules.node_filters import NodeFilters, NodeFit, ShapeFit
from controller.rules.node_ports import NodePorts
from controller.rules.node_resources import NodeResources
from controller.rules.node_rules import NodeAffinity, NodeRules, Spares, TaintToleration
from controller.rules.plugin import PodRefusal
from controller.rules.pod_affinity import PodAffinityPlugin, PodAntiAffinityPlugin
from controller.rules.pod_topology_spread import PodTopologySpread
from controller.rules.preferences import NodePreferences, PodPreferences
from controller.rules.volumes.volume_book import VolumeBook
from controller.rules.volumes.volume_plugins import CODES as VOLUME_CODES
from controller.rules.volumes.volume_plugins import VolumePlugin, VolumeVerdicts
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Namespace, Pod


class PodRules:
    """`delegated`: whether a DeviceClass serves an extended resource. `namespaces`: by name, live;
    call `namespace_changed` after changing labels in it.

    Where a pod counts already, its own usage does not count against it.
    """

    def __init__(self, delegated: Callable[[str], bool], namespaces: Mapping[str, Namespace]) -> None:
        nodes = self.nodes = NodeColumns()
        pod_names = self.pod_names = PodNames()
        groups, ports = PodGroups(nodes), NodePorts(nodes, pod_names)
        labels = self.labels = NodeLabels(nodes)
        shapes, reading = PodShapes(), TermReading()
        rules, apart = NodeRules(nodes, labels, shapes), ExistingTerms(nodes, namespaces, anti_affinity_of, reading)
        self.term_reading = reading
        state = self._state = FilterState(nodes, rules, groups, labels, apart, namespaces, pod_names, shapes)
        attraction = self._attraction = ExistingTerms(nodes, namespaces, attraction_of, reading)
        """Terms of the pods that are there that score nodes for others."""
        self._resources = NodeResources(nodes, delegated)
        self.volumes = VolumeBook(nodes, labels, pod_names, shapes)
        self._volume_verdicts = VolumeVerdicts(nodes, self.volumes)
        self._spread = PodTopologySpread(state)
        listeners = (groups, apart, attraction, ports, self.volumes)
        self.pods = PodBook(nodes, listeners, self._spread.shape_of)
        self._filters = NodeFilters(
            state,
            node_plugins=(
                TaintToleration(nodes, rules),
                NodeAffinity(nodes, rules),
                ports,
                self._resources,
                Spares(nodes),
            ),
            plugins=(
                *(VolumePlugin(code, self._volume_verdicts, shapes) for code in VOLUME_CODES),
                self._spread,
                PodAffinityPlugin(state),
                PodAntiAffinityPlugin(state),
                NodeDeclaredFeatures(state),
            ),
        )
        self._preferences = NodePreferences(state, attraction)

    def node_fit(self, pod: Pod, *, uses_spares: bool = False) -> NodeFit:
        return self._filters.of(pod, self._own(pod), uses_spares=uses_spares)

    def shape_fit(self, pod: Pod, *, uses_spares: bool = False) -> ShapeFit | None:
        """Return the cached fit of the pod's shape. None: it fits nowhere, or is counted already."""
        return None if self._own(pod) is not None else self._filters.of_shape(pod, uses_spares=uses_spares)

    def follow_fit(self, pod: Pod, *, uses_spares: bool = False) -> Callable[[Pod], ShapeFit | None]:
        """Return `shape_fit` for pods of this shape, at little cost where no plugin has a say that looks
        at more than one node, while nothing but such pods comes or goes.
        """
        current = self._filters.follow(pod, uses_spares=uses_spares)
        if current is None:
            return lambda other: self.shape_fit(other, uses_spares=uses_spares)
        return lambda other: current() if self._own(other) is None else None

    def why_unfit(self, pod: Pod, fit: NodeFit, row: int) -> str:
        """Return why a node does not fit, with plugin, object and figure. `fit`: just returned."""
        return self._filters.sentence(pod, self._own(pod), fit, row)

    def fits_in_any_order(self, pod: Pod, node_name: str) -> bool:
        """Return whether the node admits the pod in any order in which kube-scheduler may bind the
        unbound ones, and lets each of them be bound where it is placed.
        """
        row, unbound = self.nodes.index_of(node_name), tuple(self.pods.unbound())
        spreading = self.pods.spreading(pod.metadata.namespace)
        return row < 0 or (
            self._filters.holds_in_any_order(pod, row, self._own(pod), unbound)
            and (not spreading or self._spread.leaves_room(pod, row, spreading, unbound))
        )

    def held(self, pod: Pod) -> PodRefusal | None:
        """Return why no node can have the pod until one of its volumes changes, or None."""
        return self._volume_verdicts.of(pod, None).held

    def preferences(self, pod: Pod) -> PodPreferences | None:
        """Return what the pod prefers of nodes; None if nothing. For use at once."""
        return self._preferences.of(pod, self._own(pod))

    def left(self, pod: Pod, resource: str) -> Ints:
        """Return what the nodes have left; without a total `MOST` less usage. Shape (size,)."""
        return self._resources.left(resource, self._own(pod))

    def refuses_by_labels(self, pod: Pod) -> bool:
        """Return whether a pod that is there may have an anti-affinity to pods with these labels."""
        return self._state.anti_affinity.may_be_about(pod)

    def set_meter(self, meter: Callable[[], Meter | None]) -> None:
        """Report work that the terms of some namespace cause to the meter of the decision that is being made."""
        self._state.groups.meter = self._state.anti_affinity.meter = self._attraction.meter = meter
        self.volumes.binding.meter = meter

    def set_version(self, version: tuple[int, int]) -> None:
        """Let the plugins judge as those of this version of Kubernetes (major, minor), before pods are fed."""
        self.volumes.limits.scaling = version >= VOLUME_LIMIT_SCALING
        self.pods.resizes_by_sums = version >= RESIZES_BY_SUMS
        self._state.reads_unlabelled_namespaces = version < NAMESPACES_MERGED
        self._preferences.set_version(version)

    def namespace_changed(self, name: str, before: Namespace | None, after: Namespace | None) -> None:
        """Note that a namespace came (`before` is None), went, or changed its labels."""
        for terms in (self._state.anti_affinity, self._attraction):
            terms.namespace_changed(name)
        self._state.shapes.namespace_changed(before, after)
        self._state.groups.forget_recent()

    def _own(self, pod: Pod) -> Placed | None:
        return self.pods.placed(pod.metadata.uid)
