"""What filters that look beyond one node read."""

from collections.abc import Mapping

from msgspec import Struct

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.affinity_terms import AffinityTerm
from controller.cluster.pods.existing_terms import ExistingTerms
from controller.cluster.pods.pod_groups import PodGroups, PodSelector
from controller.cluster.pods.pod_names import PodNames
from controller.cluster.pods.pod_shapes import PodShapes
from controller.rules.node_rules import NodeRules
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
