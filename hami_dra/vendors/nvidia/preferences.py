"""Annotations about NVIDIA cards beyond amounts (HAMi D/nvidia/device.go: CheckType, CheckUUID, assertNuma, mode).

Called by `Nvidia.preferences`. In: the annotations that are set. Out: a frozen `NvidiaPreferences`,
or InvalidPreference.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.similar_names import did_you_mean
from hami_dra.vendors.preferences import InvalidPreference, Preferences, card_lists, choice, switch

USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
MODE: Final = "nvidia.com/vgpu-mode"
VOLCANO_MODE: Final = "volcano.sh/vgpu-mode"

HAMI_CORE: Final = "hami-core"
MIG: Final = "mig"
MPS: Final = "mps"
"""A mode of HAMi HEAD that no card has here."""
MODES: Final = (HAMI_CORE, MIG, MPS)
_SEPARATORS: Final = re.compile(r"[,;|/\s]+")
REQUIRED: Final = "required"
PREFERRED: Final = "preferred"

ANNOTATIONS: Final = frozenset(
    {USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID, MODE, VOLCANO_MODE, names.GPU_TOPOLOGY, names.NUMA_BIND}
)


class NvidiaPreferences(Preferences, frozen=True):
    linked: bool = False
    """Several cards only if NVLink joins every two of them."""
    numa_bind: bool = False
    """All cards of a request on one NUMA node."""


def nvidia_preferences(annotations: Mapping[str, str]) -> NvidiaPreferences:
    """Read the preferences. Raises InvalidPreference."""
    lists = card_lists(annotations, [USE_UUID], [NOUSE_UUID], use_types=[USE_TYPE], nouse_types=[NOUSE_TYPE])
    return NvidiaPreferences(
        lists=replace(lists, parts=wanted_parts(annotations)),
        linked=choice(annotations, names.GPU_TOPOLOGY, (REQUIRED, PREFERRED), PREFERRED) == REQUIRED,
        numa_bind=switch(annotations, names.NUMA_BIND, default=False),
    )


def wanted_parts(annotations: Mapping[str, str]) -> bool | None:
    """Return whether only MIG partitions (True), only cards shared by HAMi-core (False), or either
    fit. Raises InvalidPreference.

    As in HAMi a card fits if the text has its mode: `mig,hami-core` takes both, with any separator.
    Of two annotations both apply. HAMi reads `migg` as `mig`; here a word is a mode or refused.
    """
    allowed = {False, True}
    for name in (MODE, VOLCANO_MODE):
        text = annotations.get(name, "").strip()
        if not text:
            continue
        words = [word for word in _SEPARATORS.split(text) if word]
        if unknown := [word for word in words if word not in MODES]:
            raise InvalidPreference(
                name, f"{text!r} is not one of {', '.join(MODES[:2])}{did_you_mean(unknown[0].lower(), MODES[:2])}"
            )
        here = {part for part, mode in ((False, HAMI_CORE), (True, MIG)) if mode in words}
        if not here and MPS in words:
            raise InvalidPreference(
                name,
                f"{text!r}: hami-dra runs no MPS daemon. Write {HAMI_CORE} (limits of memory and cores by HAMi-core) or {MIG}, or "
                "ask for whole cards and start MPS in the pod",
            )
        allowed &= here
        if not allowed:
            raise InvalidPreference(name, f"{text!r} leaves no mode that a card could have; use {HAMI_CORE} or {MIG}")
    return None if len(allowed) == 2 else allowed.pop()
