"""The eviction of a pod: which budget decides, and what an allowed eviction takes from it.

Called by the memory cluster only. In: raw JSON objects. Source: Kubernetes 1.37
pkg/registry/core/pod/storage/eviction.go.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from hami_dra.api.meta import LabelSelector
from hami_dra.api.selectors import label_selector_matches, selector_problem
from hami_dra.kube.protocol import Invalid, Protected

Raw = dict[str, Any]

_REFUSED: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_MOST_DISRUPTED: Final = 2000
"""Evictions that the disruption controller has not seen yet."""


def deciding_budget(pod: Raw, budgets: Iterable[Raw]) -> Raw | None:
    """Return the budget that must allow the eviction; None: nobody has to. Raises Invalid for two."""
    if _is_beyond_budgets(pod):
        return None
    protecting = [budget for budget in budgets if _protects(budget, pod)]
    if len(protecting) > 1:
        raise Invalid(
            f"evict Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}: This pod has more than one "
            "PodDisruptionBudget, which the eviction subresource does not support."
        )
    if not protecting or _counts_as_unhealthy(pod, protecting[0]):
        return None
    return protecting[0]


def charged(budget: Raw, pod: Raw, now: str) -> Raw:
    """Return the budget with this pod's disruption counted. Raises Protected if it allows none."""
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    allowed = int(status.get("disruptionsAllowed", 0))
    disrupted = status.get("disruptedPods") or {}
    does_not_allow = f"The disruption budget {name} does not allow evicting pods currently"
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        why = f"The disruption budget {name} is still being processed by the server."
    elif allowed < 0:
        why = f"{does_not_allow}: pdb disruptions allowed is negative"
    elif len(disrupted) > _MOST_DISRUPTED:
        why = f"{does_not_allow}: too many pending evictions not confirmed by PDB controller"
    elif not allowed:
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        needs = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        why = needs if healthy <= desired else does_not_allow
    else:
        disrupted = {**disrupted, pod["metadata"]["name"]: now}
        return {**budget, "status": {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}
    raise Protected(f"evict Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}: {_REFUSED} {why}")


def condemned(pod: Raw, now: str) -> Raw:
    """Return the pod with the condition that tells why it ends."""
    status = pod.get("status") or {}
    before: Raw = next((each for each in status.get("conditions") or () if each["type"] == "DisruptionTarget"), {})
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == "True" else now,
    }
    others = [each for each in status.get("conditions") or () if each["type"] != "DisruptionTarget"]
    return {**pod, "status": {**status, "conditions": [*others, condition]}}


def _is_beyond_budgets(pod: Raw) -> bool:
    """Return whether budgets do not matter: the pod does not run, or ends already."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Pending", "Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]


def _protects(budget: Raw, pod: Raw) -> bool:
    raw = (budget.get("spec") or {}).get("selector")
    selector = None if raw is None else msgspec.convert(raw, LabelSelector)
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return (
        budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and not selector_problem(selector)
        and label_selector_matches(selector, labels)
    )


def _counts_as_unhealthy(pod: Raw, budget: Raw) -> bool:
    """Return whether the pod is not ready, and its budget lets such pods go."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        return False
    status = budget.get("status") or {}
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    always = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    return always or healthy >= desired > 0
