"""Taints with effect PreferNoSchedule (kube-scheduler's TaintToleration): the fewer a pod does not
tolerate, the better.
"""

from typing import Final

from controller.rules.filter_state import FilterState
from controller.rules.preferences.score import PluginScore, default_normalized
from controller.rules.taint_states import TaintVerdicts
from hami_dra.api.core import Node, Pod, Toleration
from hami_dra.api.selectors import tolerates

_PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"


class PreferNoSchedule:
    def __init__(self, state: FilterState) -> None:
        self._nodes, self._shapes = state.nodes, state.shapes
        self._states = state.rules.taints
        self._taints = TaintVerdicts(self._states, lambda node: _untolerated((), node))
        self._seen = -1
        self._is_used = False

    def score_for(self, pod: Pod) -> PluginScore | None:
        """Return the pod's score; None: no node has such a taint that the pod does not tolerate."""
        version = self._nodes.changes.version
        if version != self._seen:
            self._is_used = bool(self._taints.current().any())
            self._seen = version
        if not self._is_used:
            return None
        tolerations = tuple([each for each in pod.spec.tolerations if each.effect in {"", _PREFER_NO_SCHEDULE}])
        column = self._shapes.of(
            pod,
            "preferred taints",
            tolerations,
            lambda: TaintVerdicts(self._states, lambda node: _untolerated(tolerations, node)),
        )
        if not column.current().any():
            return None
        return lambda fitting: default_normalized(column.current()[fitting], reverse=True)


def _untolerated(tolerations: tuple[Toleration, ...], node: Node) -> int:
    return sum(
        taint.effect == _PREFER_NO_SCHEDULE and not any(tolerates(each, taint) for each in tolerations)
        for taint in node.spec.taints
    )
