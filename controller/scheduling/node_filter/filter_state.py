"""What filters that look beyond one node read."""

from collections.abc import Mapping

from msgspec import Struct

from controller.scheduling.node_filter.affinity_terms import AffinityTerm
from controller.scheduling.node_filter.existing_terms import ExistingTerms
from controller.scheduling.node_filter.node_labels import NodeLabels
from controller.scheduling.node_filter.node_rules import NodeRules
from controller.scheduling.node_filter.nodes import NodeColumns
from controller.scheduling.node_filter.pod_groups import PodGroups, PodSelector
from controller.scheduling.node_filter.pod_names import PodNames
from controller.scheduling.node_filter.pod_shapes import PodShapes
from hami_dra.api.core import Namespace


class FilterState(Struct):
    nodes: NodeColumns
    rules: NodeRules
    groups: PodGroups
    labels: NodeLabels
    anti_affinity: ExistingTerms
    """Required anti-affinity of the pods that are there."""
    namespaces: Mapping[str, Namespace]
    """By name, live."""
    pod_names: PodNames
    shapes: PodShapes
    reads_unlabelled_namespaces: bool = False
    """See `AffinityTerm.pods`."""

    def pods_of(self, term: AffinityTerm) -> PodSelector:
        """Return the pods that the term means, for the pod that has it."""
        return term.pods(self.namespaces, unlabelled=self.reads_unlabelled_namespaces)
