"""Policies, their notation, and all policies of one pod (`Policies`).

Used wherever policies are chosen or followed; `policy_resolution` finds those of a pod. Pure.
Values are HAMi's (S/policy at HEAD). An unknown value is never guessed: `InvalidPolicy` names it
and the choices.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.errors import InputError
from hami_dra.api.similar_names import did_you_mean
from hami_dra.vendors.preference_keys import NO_PREFERENCES, RequestPreferences


class Packing(Struct, frozen=True):
    """Defaults and formula: docs/design/packing.md."""

    theta: float = 0.65
    """A free card counts only while this fraction of its fair share of the node's CPU and memory is left."""
    left: float = 0.5
    """Cost of eight free cards of a node, in cards (`g`): the larger, the sooner nearly full nodes are filled up."""
    rare: float = 0.0
    """Cost of taking a card of the rarest type, in cards, if the commonest type would do."""
    large: float = 0.0
    """Cost of taking an endlessly large card, in cards, if the smallest that would do has next to no memory."""

    @property
    def minds_scarcity(self) -> bool:
        return self.rare > 0 or self.large > 0


_LARGEST: Final = 1000.0
"""Weight of `fair-share`."""
UNSAID: Final = "default"
NO_ENTRIES: Final[Mapping[str, Any]] = MappingProxyType({})
"""Shared by the policies of all pods, of which the latest decisions are kept."""


def _no_entries() -> Mapping[str, Any]:
    return NO_ENTRIES


class InvalidPolicy(InputError):
    """An annotation has a value that is not one of the choices. The pod is not placed until it is fixed."""


class Weights(Struct, frozen=True):
    """The weights of the three terms of the device score; integers, at least one above 0."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class DevicePolicy(Struct, frozen=True):
    """A device policy and its weights.

    `keys`: most important first; one for a plain policy, several for a list such as `spread,mutex`.
    """

    keys: tuple[str, ...] = (names.SPREAD,)
    weights: Weights = Weights()
    origin: str = UNSAID
    """The object whose annotation sets `keys`."""
    weights_origin: str = UNSAID

    @property
    def name(self) -> str:
        return ",".join(self.keys)

    @property
    def follows_node(self) -> bool:
        """Whether the node policy also orders the cards."""
        return self.keys[0] not in names.DEVICE_POLICIES

    @property
    def hami_keys(self) -> tuple[str, ...]:
        """The keys for vendors, who know HAMi's policies: those that pack are a `binpack` to them."""
        return (names.BINPACK,) if self.follows_node else self.keys


class Stated(Struct, frozen=True):
    """A vendor preference: an annotation, or an equivalent parameter, and its origin."""

    annotation: str
    value: str
    origin: str
    """`Pod default/x`, `default`, `parameters of ResourceClaim default/c or its DeviceClass`."""
    request: str = ""
    """Empty: it applies to the whole claim."""


class Policies(Struct, frozen=True):
    """The policies of one pod. `device_policies` is by claim key; claims that are not in it use `device_policy`."""

    node_policy: str = names.BINPACK
    node_policy_origin: str = "default"
    device_policy: DevicePolicy = DevicePolicy()
    device_policies: Mapping[str, DevicePolicy] = field(default_factory=_no_entries)
    request_preferences: Mapping[str, RequestPreferences] = field(default_factory=_no_entries)
    """By claim key: preferences for the vendors beyond amounts."""
    stated: Mapping[str, tuple[Stated, ...]] = field(default_factory=_no_entries)
    """By claim key: the origins of `request_preferences`. For people; decides nothing."""
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """Of defaults only: vendors' annotations for objects that have none (`--default`)."""

    packing: Packing = Packing()
    """Weights of `fair-share`, and of scarce cards under every policy."""
    packing_origin: str = "default"

    def for_claim(self, claim_key: str) -> DevicePolicy:
        """Return the device policy of a claim. If none was chosen, that of a node policy that has one."""
        found = self.device_policies.get(claim_key, self.device_policy)
        if self.has_ranking and found.origin == UNSAID and found.keys == DevicePolicy().keys:
            return DevicePolicy((self.node_policy,), found.weights, self.node_policy_origin)
        return found

    @property
    def has_ranking(self) -> bool:
        """Whether the node policy has a ranking of its own, which orders the cards of a node, too."""
        return self.node_policy not in names.HAMI_NODE_POLICIES

    @property
    def weighs_packing(self) -> bool:
        """Whether `packing` has an effect."""
        return self.has_ranking or self.packing.minds_scarcity

    @property
    def hami_node_policy(self) -> str:
        """The node policy for vendors, who know HAMi's."""
        return names.BINPACK if self.has_ranking else self.node_policy

    def preferences_of(self, claim_key: str, request: str) -> RequestPreferences:
        """Return the preferences of one request of a claim; `request` as allocation results spell it."""
        return self.request_preferences.get(claim_key, NO_PREFERENCES).for_request(request)


def parse_node_policy(value: str, where: str) -> str:
    """Parse a node policy, a deprecated one as what it stands for. Raises InvalidPolicy.

    `where`: the place of the value, for the message: an annotation of some object, or an option.
    """
    value = names.RENAMED_NODE_POLICIES.get(value, value)
    if value not in names.NODE_POLICIES:
        raise _unknown(where, value, names.NODE_POLICIES)
    return value


def parse_device_policy(value: str, where: str) -> tuple[str, ...]:
    """Parse a policy or a comma list of policies, each at most once. Raises InvalidPolicy."""
    keys = tuple(part.strip() for part in value.split(","))
    if unknown := [key for key in keys if key not in names.DEVICE_POLICIES]:
        raise _unknown(where, value, names.DEVICE_POLICIES, unknown[0])
    if len(set(keys)) != len(keys):
        raise InvalidPolicy(f"{where}: {value!r} names a policy twice")
    return keys


def parse_weights(value: str, where: str) -> Weights:
    """Parse `slot=1,core=2,memory=3`: all three, any order, integers >= 0 and not all 0 (HAMi
    HEAD).

    Raises InvalidPolicy.
    """
    problem = f"{where}: {value!r} is not like slot=1,core=1,memory=1"
    incomplete = f"{problem}: name each of slot, core and memory once"
    found: dict[str, int] = {}
    for name, number in _assignments(value, Weights.__struct_fields__, incomplete):
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise InvalidPolicy(f"{problem}: {name} must be an integer from 0 to 999999999")
        found[name] = int(number)
    if len(found) != 3:
        raise InvalidPolicy(incomplete)
    if not any(found.values()):
        raise InvalidPolicy(f"{problem}: at least one weight must be above 0")
    return Weights(**found)


def parse_packing_weights(value: str, where: str, default: Packing) -> Packing:
    """Parse `theta=0.65,left=0.5,rare=0,large=0`, any of them in any order; the others as in
    `default`.

    `theta` is above 0 up to 1, the others are from 0 to 1000. Raises InvalidPolicy.

    >>> parse_packing_weights("left=1", "Pod x", Packing()) == Packing(left=1.0)
    True
    """
    problem = f"{where}: {value!r} is not like theta=0.65,left=0.5,rare=0,large=0: name some of them, each at most once"
    found: dict[str, float] = {}
    for name, text in _assignments(value, Packing.__struct_fields__, problem):
        try:
            found[name] = float(text) if len(text) <= 32 else math.nan
        except ValueError:
            found[name] = math.nan
        if not 0.0 <= found[name] <= _LARGEST:
            raise InvalidPolicy(f"{where}: {name}={text!r} must be a number from 0 to {_LARGEST:.0f}")
    if not 0.0 < found.get("theta", 1.0) <= 1.0:
        raise InvalidPolicy(f"{where}: {value!r}: theta must be above 0 and at most 1")
    return replace(default, **found)


def _assignments(value: str, choices: Sequence[str], problem: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of `a=1,b=2`. Raises InvalidPolicy with `problem` for anything else, for
    names that are no choice, and for names that come twice.
    """
    seen = set()
    for part in value.split(","):
        name, equals, text = (each.strip() for each in part.partition("="))
        if not equals or name not in choices or name in seen:
            raise InvalidPolicy(problem)
        seen.add(name)
        yield name, text


def _unknown(where: str, value: str, choices: Sequence[str], part: str = "") -> InvalidPolicy:
    """`part`: of the value, that is no choice; empty: all of it."""
    near = did_you_mean((part or value).lower(), choices)
    return InvalidPolicy(f"{where}: {value!r} is not one of {', '.join(choices)}{near}")
