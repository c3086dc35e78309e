"""The normalised request of a converted pod, and the ResourceClaim or ResourceClaimTemplate made from it.

Called by `controller.webhook` and by the controller, which creates the claim from the annotation
`hami.io/converted-request` of the pod that names it. Pure. The pod's author controls the
annotation, so it can express no more than legacy resources can: never CEL, tolerations, admin
access or another vendor's class.
"""

import hashlib
import json
from typing import Annotated, Any, Final

import msgspec

from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import CONVERTED_CLAIM
from hami_dra.api.quantity import Format, Quantity
from hami_dra.vendors.annotations import MOST_LENGTH, TOO_LONG
from hami_dra.vendors.legacy import MAX_CARDS, CardChoice, Filters, InvalidLegacy, LegacyRequest, LegacyVendor
from hami_dra.vendors.registry import LEGACY_VENDORS, plugin_names, plugin_of

CLAIM_NAME: Final = "hami"
"""Name of the entry in `spec.resourceClaims` of a converted pod; `hami-2`, ... if there is one already."""
# hexadecimal digits, 64 bits; an existing template's content is compared anyway
_HASH_LENGTH: Final = 16
_BASE_LENGTH: Final = 39
"""Characters of the pod's name in that of its claim, which then fits into a label."""


class InvalidRequest(ValueError):
    """The annotation is not a request that this webhook writes; the message says why."""


class NamedRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request of the claim: cards of one vendor, for one or several containers."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
    vendor: str
    cards: LegacyRequest
    filters: dict[str, tuple[str, ...]] = {}

    @property
    def choices(self) -> tuple[CardChoice, ...]:
        """Return the alternatives, the preferred one first."""
        return (self.cards, *self.cards.alternatives)


class ConvertedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All requests of a pod, in the order of the claim."""

    requests: Annotated[tuple[NamedRequest, ...], msgspec.Meta(min_length=1, max_length=MAX_CARDS)]

    @property
    def cards(self) -> int:
        """Return the largest number of cards that any choice of alternatives takes."""
        return sum(max(choice.count for choice in request.choices) for request in self.requests)

    def encode(self) -> str:
        """Return the annotation's text: equal requests give equal text."""
        return canonical_json(msgspec.to_builtins(self))


def decode(annotation: str) -> ConvertedRequest:
    """Parse the annotation. Raises InvalidRequest."""
    if len(annotation) > MOST_LENGTH or annotation == TOO_LONG:
        raise InvalidRequest(f"annotation {names.CONVERTED_REQUEST}: longer than {MOST_LENGTH} characters")
    try:
        request = msgspec.json.decode(annotation, type=ConvertedRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"annotation {names.CONVERTED_REQUEST}: {error}") from None
    if unknown := {named.vendor for named in request.requests} - {*plugin_names()}:
        raise InvalidRequest(
            f"annotation {names.CONVERTED_REQUEST}: unknown vendor {', '.join(sorted(unknown))}; "
            f"use one of {', '.join(sorted(plugin_names()))}"
        )
    for named in request.requests:
        if len({choice.count for choice in named.choices}) < len(named.choices):
            raise InvalidRequest(
                f"annotation {names.CONVERTED_REQUEST}: the alternatives of {named.name} must differ in how many devices they take"
            )
    if len({named.name for named in request.requests}) < len(request.requests):
        raise InvalidRequest(f"annotation {names.CONVERTED_REQUEST}: two requests have the same name")
    return request


def plugin_resources(request: ConvertedRequest) -> tuple[str, ...]:
    """Return the resources whose device plugins must not serve the pod: it must avoid nodes that offer one."""
    used = {named.vendor for named in request.requests}
    return tuple(name for vendor in LEGACY_VENDORS if vendor.name in used for name in vendor.plugin_resources)


def template(request: ConvertedRequest, namespace: str) -> dict[str, Any]:
    """Return the template, named after its content. Raises InvalidRequest for invalid filters or capacities."""
    devices: dict[str, Any] = {"requests": [], "config": []}
    for named in request.requests:
        vendor = plugin_of(named.vendor).legacy
        try:
            devices["requests"].append({"name": named.name, **_asked(named, vendor)})
        except InvalidLegacy as error:
            raise InvalidRequest(str(error)) from error
        if parameters := _parameters(named.cards):
            opaque = {"driver": vendor.driver, "parameters": parameters}
            devices["config"].append({"requests": [named.name], "opaque": opaque})
    if not devices["config"]:
        del devices["config"]
    spec = {"spec": {"devices": devices}}
    digest = hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:_HASH_LENGTH]
    return {
        "apiVersion": kinds.RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": kinds.RESOURCE_CLAIM_TEMPLATE.name,
        "metadata": {
            "name": f"hami-{digest}",
            **({"namespace": namespace} if namespace else {}),
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TEMPLATE_HASH_LABEL: digest},
        },
        "spec": spec,
    }


def claim_name(base: str, made: dict[str, Any], unique: str) -> str:
    """Return the name of one pod's claim. `base`: its name or generateName; `unique`: differs for every pod."""
    chance = hashlib.sha256(unique.encode()).hexdigest()[:10]
    name = f"{base[:_BASE_LENGTH].rstrip('-.')}-{CLAIM_NAME}-{_digest(made)[:8]}{chance}"
    return name.lstrip("-")


def is_claim_name(name: str, made: dict[str, Any]) -> bool:
    """Return whether `claim_name` gives such names for the template `made`."""
    match = CONVERTED_CLAIM.search(name)
    return match is not None and _digest(made).startswith(match[1])


def claim(made: dict[str, Any], name: str, pod: Pod, entry: str) -> dict[str, Any]:
    """Return the claim that one pod names in its `entry`, with the request of the template `made`."""
    meta = made["metadata"]
    owner = {"apiVersion": "v1", "kind": kinds.POD.name, "name": pod.metadata.name, "uid": pod.metadata.uid}
    return {
        "apiVersion": kinds.RESOURCE_CLAIM.api_version,
        "kind": kinds.RESOURCE_CLAIM.name,
        "metadata": {
            "name": name,
            "namespace": pod.metadata.namespace,
            "labels": meta["labels"],
            "annotations": {names.POD_CLAIM_NAME: entry},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": made["spec"]["spec"],
    }


def _digest(made: dict[str, Any]) -> str:
    digest: str = made["metadata"]["labels"][names.TEMPLATE_HASH_LABEL]
    return digest


def canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _asked(named: NamedRequest, vendor: LegacyVendor) -> dict[str, Any]:
    if not named.cards.alternatives:
        return {"exactly": _exactly(named.cards, named.filters, vendor)}
    choices = [{"name": f"{each.count}-cards", **_exactly(each, named.filters, vendor)} for each in named.choices]
    return {"firstAvailable": choices}


def _exactly(cards: CardChoice, filters: Filters, vendor: LegacyVendor) -> dict[str, Any]:
    """Return the request's `exactly` with all defaults, so that the stored template equals the generated one."""
    exactly: dict[str, Any] = {
        "deviceClassName": vendor.device_class(cards),
        "allocationMode": "ExactCount",
        "count": cards.count,
    }
    amounts = {name: _quantity(name, amount) for name, amount in sorted(cards.capacity.items())}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    selectors = list(vendor.selectors(filters))
    if cards.exact or cards.partition:
        selectors += [
            f'device.capacity["{vendor.driver}"].{name}.compareTo(quantity("{amount}")) == 0'
            for name, amount in amounts.items()
        ]
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    return exactly


def _quantity(name: str, amount: int) -> str:
    in_bytes = name == names.CAP_MEMORY
    return str(Quantity.from_int(amount, Format.BINARY_SI if in_bytes else Format.DECIMAL_SI))


def _parameters(cards: CardChoice) -> dict[str, Any]:
    if cards.memory_percent is None and cards.priority is None:
        return {}
    from hami_dra.api.config import DeviceConfig

    return DeviceConfig(memory_percent=cards.memory_percent, priority=cards.priority).of_claim()
