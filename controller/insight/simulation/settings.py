"""Settings of a simulation. Pure."""

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct, field

from controller.allocation import FeatureGates, new_share_id
from controller.assessment import AssessmentSettings
from controller.decide import Options
from controller.gangs import Source
from controller.scoring import Policies
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.registry import OWN_DRIVERS


class SimulationSettings(Struct, frozen=True):
    """`policies` are the defaults that annotations override; `first_fit` overrides both."""

    policies: Policies = Policies()
    first_fit: bool = False
    honor_preferences: bool = True
    """Nodes that a pod prefers come before those that the node policy prefers."""
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    """Schedulers whose pods hami-dra places; pods of others are not placed."""
    preemption: bool = False
    """Pods that find no room preempt others."""
    preemptors: frozenset[str] | None = None
    """The pods, by key, that may preempt; None: all."""
    exceeds_budgets: bool = False
    """Preemption exceeds a PodDisruptionBudget if nothing else helps."""
    gang_sources: frozenset[Source] | None = None
    """Optional kinds of groups of pods that count as gangs; None: not known, so none does."""
    gates: FeatureGates = FeatureGates()
    kubernetes: tuple[int, int] | None = None
    """Version (major, minor) whose kube-scheduler is imitated; None: the newest that is known."""
    profiles: DriverProfiles = BUILT_IN_PROFILES
    """How devices of drivers that hami-dra does not ship are read."""
    explained: str = ""
    """`ns/name` of the pod whose decision is explained as well; empty: none."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time that the allocations carry."""
    new_share_id: Callable[[], str] = new_share_id

    @property
    def options(self) -> Options:
        """The options of its decisions."""
        return Options(first_fit=self.first_fit, honor_preferences=self.honor_preferences, gates=self.gates)

    @property
    def assessment(self) -> AssessmentSettings:
        """How its pods are assessed: also those that need no devices, for it plays kube-scheduler too."""
        return AssessmentSettings(self.scheduler_names, self.policies, OWN_DRIVERS, every_pod=True)
