"""Annotations about MetaX cards beyond amounts (HAMi D/metax/sdevice.go: MutateAdmission,
CheckUUID, topologyAwareEnable).

Called by `Metax.preferences` and by the conversion of legacy pods. In: the annotations that are
set. Out: a frozen `MetaxPreferences`, or InvalidPreference.
"""

from collections.abc import Mapping
from typing import Final

from hami_dra.vendors.preferences import InvalidPreference, Preferences, card_lists, choice, switch

USE_UUID: Final = "metax-tech.com/use-gpuuuid"
NOUSE_UUID: Final = "metax-tech.com/nouse-gpuuuid"
QOS: Final = "metax-tech.com/sgpu-qos-policy"
APP_CLASS: Final = "metax-tech.com/sgpu-app-class"
TOPOLOGY_AWARE: Final = "metax-tech.com/sgpu-topology-aware"
SPREAD_TOPOLOGY: Final = "metax-tech.com/spread-topology"
"""Specific to hami-dra: the effect of node policy spread on topology. Meant for the controller's `--default`."""
ANNOTATIONS: Final = frozenset({USE_UUID, NOUSE_UUID, QOS, APP_CLASS, TOPOLOGY_AWARE, SPREAD_TOPOLOGY})

BEST_EFFORT: Final = "best-effort"
FIXED_SHARE: Final = "fixed-share"
BURST_SHARE: Final = "burst-share"
QOS_POLICIES: Final = (BEST_EFFORT, FIXED_SHARE, BURST_SHARE)

ONLINE: Final = "online"
OFFLINE: Final = "offline"
APP_CLASSES: Final = (ONLINE, OFFLINE)

PREFER: Final = "prefer"
PENALTY: Final = "penalty"


class MetaxPreferences(Preferences, frozen=True):
    qos: str = BEST_EFFORT
    """QoS of an sGPU. One that takes all cores is exclusive, so the value has no effect there."""
    app_class: str = ""
    """`online`, `offline`, or empty: an ordinary task."""
    topology_aware: bool = True
    """Whether nodes are compared by topology for sGPUs. On one node zones are considered in any case, as in HAMi."""
    penalty: bool = False
    """Under node policy spread the idler node comes first, and of equally idle ones that with the worse topology."""


def metax_preferences(annotations: Mapping[str, str]) -> MetaxPreferences:
    """Read the preferences. Raises InvalidPreference."""
    return MetaxPreferences(
        lists=card_lists(annotations, [USE_UUID], [NOUSE_UUID]),
        qos=qos_policy(annotations),
        app_class=app_class(annotations),
        topology_aware=switch(annotations, TOPOLOGY_AWARE, default=True),
        penalty=choice(annotations, SPREAD_TOPOLOGY, (PREFER, PENALTY), PREFER) == PENALTY,
    )


def qos_policy(annotations: Mapping[str, str]) -> str:
    """Return the QoS, best-effort by default; not read for online tasks. Raises InvalidPreference with HAMi's words."""
    if app_class(annotations) == ONLINE:
        return BEST_EFFORT
    value = annotations.get(QOS, BEST_EFFORT)
    if value not in QOS_POLICIES:
        raise InvalidPreference(QOS, f"{value!r}: {QOS} must be set one of [{', '.join(QOS_POLICIES)}]")
    return value


def app_class(annotations: Mapping[str, str]) -> str:
    """Return the class of the task, empty without one. Raises InvalidPreference with HAMi's words."""
    value = annotations.get(APP_CLASS, "")
    if value and value not in APP_CLASSES:
        raise InvalidPreference(APP_CLASS, f"{value!r}: {APP_CLASS} must be set one of [{', '.join(APP_CLASSES)}]")
    return value
