"""PodDisruptionBudgets: how many pods may be evicted, as the Eviction API and kube-scheduler count. Pure.

Sources: pkg/registry/core/pod/storage/eviction.go (1.37.1) for evictions, and
pkg/scheduler/framework/preemption/util.go, FilterVictimsWithPDBViolation, for best effort. They
differ in one thing: an empty selector selects all pods of the namespace, and for kube-scheduler none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_ready
from hami_dra.api.policy import PodDisruptionBudget
from hami_dra.api.selectors import ParsedSelector, parsed

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Budgets:
    """The budgets of a cluster. `best_effort`: counted as kube-scheduler does, not as evictions are.

    `refused`: UID of each pod that the API server did not evict a short while ago → why.
    """

    def __init__(
        self,
        budgets: Iterable[PodDisruptionBudget] = (),
        *,
        best_effort: bool = False,
        refused: Mapping[str, str] = _NONE,
    ) -> None:
        self.best_effort = best_effort
        self._refused = refused
        self._of_namespace: dict[str, list[tuple[PodDisruptionBudget, ParsedSelector]]] = {}
        for budget in budgets:
            if (selector := parsed(budget.spec.selector)) is not None and (selector.size or not best_effort):
                self._of_namespace.setdefault(budget.metadata.namespace, []).append((budget, selector))

    def refusing(self, refused: Mapping[str, str]) -> "Budgets":
        """Return the same budgets, with other pods that the API server did not evict."""
        found = Budgets(best_effort=self.best_effort, refused=refused)
        found._of_namespace = self._of_namespace
        return found

    def of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """Return the budgets that the pod is under."""
        budgets = self._of_namespace.get(pod.metadata.namespace, ())
        return [budget for budget, selector in budgets if selector.matches(pod.metadata.labels)]

    def forbids(self, pod: Pod) -> str:
        """Return why the pod cannot be evicted now, or empty. Budgets forbid nothing to best effort."""
        if why := self._refused.get(pod.metadata.uid, ""):
            return why
        if self.best_effort or not _is_protected(pod) or len(found := self.of(pod)) < 2:
            return ""
        names = " and ".join(sorted(budget.metadata.name for budget in found)[:2])
        return f"PodDisruptionBudgets {names} both select it, and the API server evicts no such pod"

    def exceeded_by(self, victims: Sequence[Pod]) -> list[Pod]:
        """Return those of the victims whose eviction exceeds a budget if they go in this order."""
        if not self._of_namespace:
            return []
        spent: Counter[str] = Counter()
        exceeded = []
        for pod in victims:
            over = False
            for budget in self.of(pod):
                if pod.metadata.name in budget.status.disrupted_pods or self._is_free(pod, budget):
                    continue
                spent[budget.key] += 1
                over = over or spent[budget.key] > budget.status.disruptions_allowed
            if over:
                exceeded.append(pod)
        return exceeded

    def _is_free(self, pod: Pod, budget: PodDisruptionBudget) -> bool:
        """Return whether the eviction of the pod costs the budget nothing: it does not count as healthy."""
        if self.best_effort:
            return False
        if not _is_protected(pod):
            return True
        if is_ready(pod):
            return False
        status = budget.status
        is_healthy = status.current_healthy >= status.desired_healthy > 0
        return is_healthy or budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"


def _is_protected(pod: Pod) -> bool:
    """Return whether budgets count for it at all: not before it runs."""
    return pod.status.phase != "Pending" and pod.metadata.deletion_timestamp is None
