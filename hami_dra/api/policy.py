"""PodDisruptionBudget of `policy/v1`: how many pods of an application may be evicted now.

Source: k8s.io/api policy/v1 (1.36, 1.37).
"""

import msgspec

from hami_dra.api.meta import LabelSelector, Object, Struct


class PodDisruptionBudgetSpec(Struct, frozen=True):
    selector: LabelSelector | None = None
    """None selects no pod, an empty one all pods of the namespace."""
    unhealthy_pod_eviction_policy: str | None = None
    """`AlwaysAllow`: pods that are not ready are evicted whatever the budget; else only while enough others are."""


class PodDisruptionBudgetStatus(Struct, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)
    """Names of pods that were evicted and are not seen as gone yet, and when."""


class PodDisruptionBudget(Object, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
