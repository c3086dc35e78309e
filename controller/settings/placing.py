"""How pods are placed: options of the controller, and of the commands that decide as it would.

As written: `controller.cli.policy_options` makes of them what `decide` takes.
"""

from typing import Annotated, Final

from msgspec import Struct

from controller.settings.common import ManageProfile, Mode, OptionalSource, SchedulerNames
from hami_dra.api import names
from hami_dra.api.flags import ON_OFF, SCHEDULER_NAME, Form, Option, duration, one_of_two

DEFAULT_SCHEDULER: Final = frozenset({"default-scheduler"})
GANGS_OF: Final = Option("Also treat these groups of pods as gangs; may be repeated.")


_NODE_POLICIES: Final = f"{', '.join(names.NODE_POLICIES[:-1])} or {names.NODE_POLICIES[-1]}"


class PolicyOptions(Struct, frozen=True):
    """What counts where no annotation of pod, claim, template or class does."""

    node_policy: Annotated[
        str, Option(f"Policy where no annotation sets one: {_NODE_POLICIES}.", values="node_policies")
    ] = names.BINPACK
    device_policy: Annotated[
        str,
        Option(
            f"Policy where no annotation sets one: {', '.join(names.DEVICE_POLICIES)}, or a comma-separated list. "
            "first-fit (Kubernetes' own order, vendor rules off) overrides annotations.",
            values="device_policies",
        ),
    ] = names.SPREAD
    packing_weights: Annotated[
        str,
        Option(
            "Weights of fair-share and scarce devices where no annotation sets them; default: theta=0.65,left=0.5,rare=0,large=0."
        ),
    ] = ""
    default: Annotated[
        tuple[str, ...],
        Option(
            "Value of a vendor's annotation where pod, claim, template and class do not set it; may be repeated: "
            "hami.io/gpu-topology=required.",
            metavar="NAME=VALUE",
        ),
    ] = ()


PRESENT_NODE_POLICY: Final = Option(
    "The controller's --node-policy, if it is not binpack.", values="node_policies", show_default=False
)
PRESENT_DEVICE_POLICY: Final = Option(
    "The controller's --device-policy, if it is not spread.", values="device_policies", show_default=False
)


class PresentPolicies(PolicyOptions, frozen=True):
    """What the running controller has, for a command that decides as it does."""

    node_policy: Annotated[str, PRESENT_NODE_POLICY] = names.BINPACK
    device_policy: Annotated[str, PRESENT_DEVICE_POLICY] = names.SPREAD
    packing_weights: Annotated[
        str, Option("The controller's --packing-weights, if they are not theta=0.65,left=0.5,rare=0,large=0.")
    ] = ""
    default: Annotated[
        tuple[str, ...],
        Option("The controller's --default, for vendors' annotations; may be repeated.", metavar="NAME=VALUE"),
    ] = ()


class PreemptionOptions(Struct, frozen=True, kw_only=True):
    """How pods of higher priority preempt others."""

    preemption_pdb: Annotated[
        bool,
        Option(
            "PodDisruptionBudgets in preemption: respect, or best-effort, which exceeds one where nothing else helps, as "
            "kube-scheduler does.",
            one_of_two("best-effort", "respect"),
        ),
    ] = False
    """True: they are exceeded where nothing else helps."""


class ControllerPreemption(PreemptionOptions, frozen=True, kw_only=True):
    """Whether the controller evicts, and how many pods. It needs more permissions then (manifests/optional/preemption.yaml)."""

    preemption: Annotated[
        bool,
        Option(
            "Preemption for pods that find no devices: devices evicts pods of lower priority where that makes room; off "
            "evicts none.",
            one_of_two("devices", "off"),
        ),
    ] = False
    preemption_delay: Annotated[
        float,
        Option(
            "How long no pod is evicted for one that found no devices, so that an autoscaler may act first; its annotation "
            "hami.io/preemption-delay goes before.",
            duration(least=0),
        ),
    ] = 0.0
    save_after: Annotated[
        float,
        Option(
            "How long a pod or gang waits for room before the place that is free soonest is reserved for it; 0 reserves none. "
            "It needs exclusive mode.",
            duration(least=0),
        ),
    ] = 600.0
    defrag: Annotated[
        bool,
        Option(
            "execute: pods with the label hami.io/movable are moved, one after the other, where that makes room for a pod or gang "
            "that has waited for --save-after; off moves none.",
            one_of_two("execute", "off"),
        ),
    ] = False
    deletion_cost: Annotated[
        bool,
        Option(
            "on: write pod-deletion-cost on pods of ReplicaSets, so that a scale-in frees whole devices and nodes.",
            ON_OFF,
        ),
    ] = False
    preemption_victims_most: int = 8
    """Victims of one pod; of a gang as many as it has devices, if that is more."""
    evictions_per_minute: Annotated[
        int,
        Option(
            "Pods that are evicted in a minute at most, for all others together; one that needs more waits for a minute without.",
            Form(least=1, most=1_000_000),
        ),
    ] = 60


class SchedulerOptions(Struct, frozen=True, kw_only=True):
    """What the schedulers around hami-dra do."""

    manage_profile: ManageProfile = ()
    preferences: Annotated[
        bool,
        Option(
            "Pods' preferences among nodes (preferred affinity, ScheduleAnyway, PreferNoSchedule): honor puts them above "
            "the node policy; ignore orders nodes as HAMi does.",
            one_of_two("honor", "ignore"),
        ),
    ] = True
    scheduler_name: SchedulerNames = DEFAULT_SCHEDULER
    gangs_of: Annotated[frozenset[OptionalSource] | None, GANGS_OF] = None
    """None: not known."""
    feature_gates: Annotated[
        str, Option("Kubernetes feature gates, A=true,B=false; default: those of Kubernetes 1.37.")
    ] = ""


class SimulatedScheduler(SchedulerOptions, frozen=True, kw_only=True):
    kubernetes_version: Annotated[
        str,
        Option(
            "Follow kube-scheduler of this version of Kubernetes. Default: the version of the live cluster; for "
            "files 1.37.",
            metavar="1.36",
        ),
    ] = ""


class ControllerScheduler(SchedulerOptions, frozen=True, kw_only=True):
    scheduler_name: Annotated[
        frozenset[str], Option("Only pods of these schedulers are placed; may be repeated.", SCHEDULER_NAME)
    ] = DEFAULT_SCHEDULER


class DriverOptions(Struct, frozen=True):
    """Which devices the controller allocates, and whether pods wait for it."""

    mode: Annotated[Mode, Option("native: kube-scheduler allocates; the controller only observes and accounts.")] = (
        "exclusive"
    )
    gate: Annotated[bool, Option("off: the scheduling gate is removed from pods at once.", ON_OFF)] = True
    manage: Annotated[
        tuple[str, ...],
        Option("A DRA driver to manage in addition to hami-dra's own; may be repeated.", metavar="DRIVER"),
    ] = ()
