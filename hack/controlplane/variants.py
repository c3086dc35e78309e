"""The control planes that tests and benchmarks ask for by name: a version, and what is switched on
beyond its defaults.

In: a name, e.g. `1.37.1` or `1.37.1-gangs`. Out: the options of `ControlPlane`. The gates and API
versions are those of the Kubernetes sources (pkg/features/kube_features.go,
pkg/controlplane/instance.go); between 1.36 and 1.37 most differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hack.controlplane import build


@dataclass(frozen=True)
class Variant:
    """A version with feature gates (for all components) and APIs that are off by default."""

    version: str
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `ControlPlane`."""
        return {
            "version": self.version,
            "feature_gates": self.feature_gates,
            "runtime_config": self.runtime_config,
        }


GANGS: Final = "1.37.1-gangs"
"""PodGroups of `scheduling.k8s.io/v1beta1`, which may have ResourceClaims: the beta gates, off by default."""
GANG_ALPHAS: Final = "1.37.1-gang-alphas"
"""Also topology constraints of PodGroups, and Jobs that make PodGroups."""
GANGS_1_36: Final = "1.36.4-gangs"
"""PodGroups of `scheduling.k8s.io/v1alpha2`."""

_BETAS: Final = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
_VARIANTS: Final[Mapping[str, Variant]] = {
    GANGS: Variant("1.37.1", _BETAS, {"scheduling.k8s.io/v1beta1": True}),
    GANG_ALPHAS: Variant(
        "1.37.1",
        {**_BETAS, "TopologyAwareWorkloadScheduling": True, "WorkloadWithJob": True},
        {"scheduling.k8s.io/v1beta1": True, "scheduling.k8s.io/v1alpha3": True},
    ),
    GANGS_1_36: Variant(
        "1.36.4",
        # merged into GenericWorkload in 1.37, where naming it is an error
        {"GenericWorkload": True, "GangScheduling": True},
        {"scheduling.k8s.io/v1alpha2": True},
    ),
}


def variant(name: str) -> Variant:
    """Return a variant by name; the name of a version is that version with its defaults. Raises BuildError."""
    return _VARIANTS.get(name) or Variant(build.target(name).name)
