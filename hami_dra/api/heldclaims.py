"""Holdings of a node driver for deleted claims: the annotation `hami.io/held-claims`.

Written by the node driver on the first ResourceSlice of its pool, read by the controller's
inventory. A claim's devices are in use from the moment kubelet has it prepared until kubelet has it
unprepared. If the claim object is deleted in between, nothing else in the cluster records this.
Pure. The text comes from a node, which may be compromised: `decode` bounds and checks all of it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from hami_dra.api.meta import Struct

MOST_LENGTH: Final = 2**14
"""Characters of the annotation: some 40 claims in full, or the devices of some 400."""
_MOST_AMOUNT: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_CAPACITY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,252}")
_NO_CONSUMPTION: Final[Mapping[str, int]] = {}


class InvalidHeldClaims(ValueError):
    """No driver writes such an annotation; the message says why."""


class HeldDevice(Struct, frozen=True):
    """One device of the slice's own driver and pool."""

    device: str
    consumed: dict[str, int] | None = None
    """Capacity → amount in its own unit, for a shared device. None: the device is held as a whole."""
    mark: int = 0
    """The tenant class that the allocation carries (`Vendor.mark`)."""


class HeldClaim(Struct, frozen=True):
    """One deleted claim. Without `uid`, the devices of several claims that did not fit."""

    uid: str = ""
    namespace: str = ""
    name: str = ""
    pods: tuple[str, ...] = ()
    """UIDs of the pods for which it was prepared."""
    devices: tuple[HeldDevice, ...] = ()


def encode(claims: Iterable[HeldClaim]) -> str:
    """Return the annotation's value, at most `MOST_LENGTH` long; empty for no claims.

    Claims that do not fit are merged into one without a UID that holds their devices as a whole:
    usage is overestimated rather than underestimated.
    """
    ordered = sorted(claims, key=lambda claim: (claim.uid, claim.name))
    if not ordered:
        return ""
    text = _encoded(ordered)
    if len(text) <= MOST_LENGTH:
        return text
    room = MOST_LENGTH - len(_encoded([_folded(ordered)]))
    listed = []
    for claim in ordered:
        room -= len(_encoded([claim]))
        if room < 0:
            break
        listed.append(claim)
    return _encoded([_folded(ordered[len(listed) :]), *listed])


def decode(text: str) -> tuple[HeldClaim, ...]:
    """Return the claims of the annotation. Raises InvalidHeldClaims."""
    if len(text) > MOST_LENGTH:
        raise InvalidHeldClaims(f"it has {len(text)} characters, and a driver writes at most {MOST_LENGTH}")
    try:
        claims = msgspec.json.decode(text, type=tuple[HeldClaim, ...])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidHeldClaims(f"it is not what a driver writes: {error}") from error
    for claim in claims:
        _check(claim)
    return claims


def _check(claim: HeldClaim) -> None:
    devices = [each.device for each in claim.devices]
    capacities = [name for each in claim.devices for name in each.consumed or _NO_CONSUMPTION]
    texts = [text for text in (claim.uid, claim.namespace, claim.name) if text]
    for form, found in ((_NAME, (*texts, *claim.pods, *devices)), (_CAPACITY, capacities)):
        for text in found:
            if not form.fullmatch(text):
                raise InvalidHeldClaims(f"{text[:64]!r} is no name")
    for each in claim.devices:
        amounts = [*(each.consumed or _NO_CONSUMPTION).values(), each.mark]
        if any(not 0 <= amount <= _MOST_AMOUNT for amount in amounts):
            raise InvalidHeldClaims(f"device {each.device}: an amount is negative or no int64")


def _folded(claims: Iterable[HeldClaim]) -> HeldClaim:
    devices = sorted({each.device for claim in claims for each in claim.devices})
    return HeldClaim(devices=tuple(HeldDevice(device=device) for device in devices))


def _encoded(claims: Iterable[HeldClaim]) -> str:
    return msgspec.json.encode(tuple(claims), order="deterministic").decode()
