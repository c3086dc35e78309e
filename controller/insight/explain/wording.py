"""Wording of explanations: requests, effective policies, compared figures. Pure.

Called by `explain.snapshot` and `explain.render`. Memory published in bytes is given in MiB; the
five vendors and most others publish bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from controller.allocation import ResolvedRequest
from controller.inventory import Device
from controller.scoring import Policies
from controller.views.explanation import PolicyUsed, RequestAsked
from hami_dra.api import names
from hami_dra.api.printable import mebibytes, printable
from hami_dra.api.quantity import Quantity
from hami_dra.vendors import device_codes

_MIB: Final = 1 << 20
_DEFAULT: Final = "default"
_LONGEST: Final = 200
ROLES: Final = ("shares", "cores", "memory")
_SLOTS, _CORES, _MEMORY = range(3)
_TEXTS: Final = {
    device_codes.CARD_MIG_INFEASIBLE: "the existing partitions of its device leave no room for it",
    device_codes.CUSTOM_FILTER_RULE: "it has no such capacity, or not as the request wants it",
    device_codes.RESOURCE_QUOTA_NOT_FIT: "it would exceed the namespace's quota",
}
"""What is said of a card without its figures."""


class Figures(Struct, frozen=True):
    """One card and what a request would take from it, by role: slots, cores, memory."""

    asked: tuple[int, int, int]
    used: tuple[int, int, int]
    total: tuple[int, int, int]


def origin(label: str) -> str:
    if label == _DEFAULT:
        return "controller default"
    return label if label.startswith("parameters") else f"annotation of {label}"


def policies_used(policies: Policies, claims: Iterable[str], *, first_fit: bool) -> tuple[PolicyUsed, ...]:
    """Return the effective policies; those equal for all claims appear once. `claims`: keys."""
    used = [PolicyUsed("node", policies.node_policy, origin(policies.node_policy_origin))]
    if policies.weighs_packing:
        packing = ",".join(f"{name}={getattr(policies.packing, name):g}" for name in policies.packing.__struct_fields__)
        used.append(PolicyUsed("packing", packing, origin(policies.packing_origin)))
    keys = list(claims)
    found: dict[tuple[str, str, str], list[str]] = {}
    for key in keys:
        device = policies.for_claim(key)
        weights = device.weights
        figures = f"slot={weights.slot},core={weights.core},memory={weights.memory}"
        value = names.FIRST_FIT if first_fit else device.name
        found.setdefault(("device", value, origin(device.origin)), []).append(key)
        found.setdefault(("weights", figures, origin(device.weights_origin)), []).append(key)
        for said in policies.stated.get(key, ()):
            where = f"{origin(said.origin)}, request {said.request}" if said.request else origin(said.origin)
            found.setdefault((said.annotation, said.value, where), []).append(key)
    for (axis, value, where), mine in found.items():
        used += [PolicyUsed(axis, value, where, claim) for claim in ([""] if len(mine) == len(keys) else mine)]
    return tuple(used)


def asked(view: ResolvedRequest, *, ours: bool) -> RequestAsked:
    amounts = [f"{name} {text}" for name, text in view.capacity_requests.items()]
    amounts += [f"memory {percent}% ({driver})" for driver, percent in view.memory_percents.items()]
    return RequestAsked(
        claim=view.claim_key,
        request=view.name,
        device_class=view.device_class.metadata.name,
        count=view.count,
        text=", ".join(amounts),
        ours=ours,
    )


def refusal(
    code: str, figures: Figures, view: ResolvedRequest, device: Device, listing: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the figures that led to a card's refusal; empty if the code says everything.

    `listing`: (name, value) of the annotations that allow the request only some devices.
    """
    used, total, profile = figures.used, figures.total, device.profile
    match code:
        case device_codes.CARD_UUID_MISMATCH | device_codes.CARD_TYPE_MISMATCH:
            uuid = f"its uuid is {device.string_attribute(profile.uuid) or 'not known'}"
            product = f"it is {device.string_attribute(profile.product) or 'of unknown type'}"
            has = uuid if code == device_codes.CARD_UUID_MISMATCH else product
            text = "; ".join(filter(None, (has, _requested(view, listing))))
        case device_codes.CARD_INSUFFICIENT_MEMORY:
            text = _short(figures, _MEMORY, _wanted(view, device, profile.memory))
        case device_codes.CARD_INSUFFICIENT_CORE:
            text = _short(figures, _CORES, _wanted(view, device, profile.cores))
        case device_codes.CARD_TIME_SLICING_EXHAUSTED if view.shared(device):
            text = _short(figures, _SLOTS, _wanted(view, device, profile.shares))
        case device_codes.CARD_TIME_SLICING_EXHAUSTED:
            text = "another claim holds it exclusively"
        case device_codes.EXCLUSIVE_CONFLICT:
            text = f"asks for a whole idle device, {used[_SLOTS]} of {total[_SLOTS]} shares are taken"
        case device_codes.CARD_COMPUTE_UNITS_EXHAUSTED:
            text = f"{used[_CORES]} of {total[_CORES]} cores are taken"
        case device_codes.CARD_NOT_HEALTH | device_codes.CARD_CORDONED if device.taints:
            text = "taints " + ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in device.taints)
        case device_codes.CARD_QOS_MISMATCH:
            text = f"its {used[_SLOTS]} tenants have another quality of service"
        case _:
            text = _TEXTS.get(code, "")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def amount(number: int, role: str) -> str:
    return mebibytes(number) if role == "memory" and number >= _MIB else str(number)


def of_total(used: int, total: int, role: str) -> str:
    """Return a text such as `15000 of 81920 MiB`."""
    if role == "memory" and total >= _MIB:
        return f"{mebibytes(used).removesuffix(' MiB')} of {mebibytes(total)}"
    return f"{used} of {total}"


def _short(figures: Figures, role: int, wanted: str) -> str:
    name = ROLES[role]
    asks = amount(figures.asked[role], name) if figures.asked[role] else wanted
    free = max(figures.total[role] - figures.used[role], 0)
    return f"asks {asks} of {name}, {of_total(free, figures.total[role], name)} are free"


def _wanted(view: ResolvedRequest, device: Device, capacity: str | None) -> str:
    """Return the amount that the claim asks for, for cards that could never provide it."""
    if capacity is not None and (text := view.capacity_requests.get(capacity)) is not None:
        return amount(Quantity.parse(text).value(), "memory") if capacity == device.profile.memory else text
    percent = view.memory_percent(device)
    if percent is None or capacity != device.profile.memory:
        return "all"
    return amount(device.card_memory * percent // 100, "memory") if device.card_memory else f"{percent}%"


def _requested(view: ResolvedRequest, listing: Sequence[tuple[str, str]]) -> str:
    """Return the annotations, else the selectors: of a converted pod, a selector says the same in CEL."""
    if listing:
        return "requested: " + ", ".join(f"{name}={printable(value)}" for name, value in listing)
    selectors = " && ".join(each.expression for each in view.selectors)
    return f"requested: {selectors}" if selectors else ""
