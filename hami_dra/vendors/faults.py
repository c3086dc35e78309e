"""Kinds of failure: one taint key for each, so that a claim, an alert or an operator can distinguish them.

Called by `publishing` (the taint of a recorded fault) and by the node driver (the effect of a
kind). Pure. Codes come from `hami_dra.discovery` and are listed in docs/design/discovery.md; the code is
the value of the taint.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from hami_dra.api import names
from hami_dra.api.hardware import Fault


class FaultKind(StrEnum):
    """Names of the kinds for operators (`--taint-effect lost=NoSchedule`)."""

    LOST = "lost"
    """The card does not answer any more."""
    XID = "xid"
    """NVIDIA's driver reported an error of the hardware."""
    MEMORY = "memory-error"
    """Memory errors that cannot be corrected or mapped around."""
    UNHEALTHY = "unhealthy"
    """The vendor's tool calls the card unfit, in any words."""


TAINT_KEYS: Final = {
    FaultKind.LOST: names.LOST_TAINT,
    FaultKind.XID: names.XID_TAINT,
    FaultKind.MEMORY: names.MEMORY_ERROR_TAINT,
    FaultKind.UNHEALTHY: names.UNHEALTHY_TAINT,
}

_MEMORY_CODES: Final = ("ecc-", "row-remapping")
_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Valid values of a taint in the API."""


def kind_of(code: str) -> FaultKind:
    """Return the kind of a `Fault.code`; unknown codes are `unhealthy`."""
    if code == "lost":
        return FaultKind.LOST
    if code.startswith("xid-"):
        return FaultKind.XID
    if code.startswith(_MEMORY_CODES):
        return FaultKind.MEMORY
    return FaultKind.UNHEALTHY


def taints_of(faults: Iterable[Fault]) -> list[dict[str, Any]]:
    """Return one taint per kind, which keeps new claims off; its value is the code of the kind's first fault."""
    first: dict[FaultKind, str] = {}
    for fault in faults:
        first.setdefault(kind_of(fault.code), fault.code)
    return [
        {"key": TAINT_KEYS[kind], **({"value": code} if _VALUE.fullmatch(code) else {}), "effect": "NoSchedule"}
        for kind, code in sorted(first.items())
    ]
