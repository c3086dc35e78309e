"""Resolution of a pod's policies: read from annotations, checked, with the origin of each.

Called by `scheduling.assessment` before `decide`. Pure. The order is pod,
claim, template, class, then the default; the first one found wins. There is one node policy per
pod; the device policy and its weights are per claim.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from controller.allocation.errors import AllocatorError
from controller.allocation.parameters import device_configs
from controller.scoring import policies
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate
from hami_dra.vendors.annotations import MOST_OF_TENANT, TOO_LONG, kept_annotations
from hami_dra.vendors.preference_keys import NO_PREFERENCES, RequestPreferences
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS, VENDORS, vendor_of

if TYPE_CHECKING:
    from hami_dra.api.config import DeviceConfig  # pydantic takes longer to import than a command may


def resolve_policies(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    templates: Mapping[str, ResourceClaimTemplate],
    classes: Mapping[str, DeviceClass],
    defaults: policies.Policies,
) -> policies.Policies:
    """Return the policies of the pod. Raises `InvalidPolicy`.

    `templates`: by claim key, the template of a generated claim, if known. `classes`: by name.
    """
    per_claim = [(claim, _sources(pod, claim, templates, classes)) for claim in claims]
    ranked = list(_by_rank(pod, [sources for _, sources in per_claim]))
    node_policy, node_policy_origin = defaults.node_policy, defaults.node_policy_origin
    packing, packing_origin = defaults.packing, defaults.packing_origin
    if found := _first(ranked, names.NODE_POLICY):
        value, node_policy_origin = found
        node_policy = policies.parse_node_policy(value, _annotation(node_policy_origin, names.NODE_POLICY))
    if found := _first(ranked, names.PACKING_WEIGHTS):
        value, packing_origin = found
        packing = policies.parse_packing_weights(value, _annotation(packing_origin, names.PACKING_WEIGHTS), packing)
    device_policies = {claim.key: _device_policy(sources, defaults.device_policy) for claim, sources in per_claim}
    request_preferences: dict[str, RequestPreferences] = {}
    stated: dict[str, tuple[policies.Stated, ...]] = {}
    for claim, sources in per_claim:
        wanted, said = _claim_preferences(claim, sources, classes, defaults)
        if wanted is not NO_PREFERENCES:
            request_preferences[claim.key], stated[claim.key] = wanted, said
    return policies.Policies(
        node_policy=node_policy,
        node_policy_origin=node_policy_origin,
        device_policy=_device_policy([pod], defaults.device_policy),
        device_policies=device_policies,
        request_preferences=request_preferences or policies.NO_ENTRIES,
        stated=stated or policies.NO_ENTRIES,
        packing=packing,
        packing_origin=packing_origin,
    )


def _first(sources: Iterable[Object], annotation: str) -> tuple[str, str] | None:
    """Return (value, object) of the first object that has the annotation."""
    for source in sources:
        value = source.metadata.annotations.get(annotation)
        if value is not None:
            return value, _label(source)
    return None


class _Final(NamedTuple):
    device_class: DeviceClass
    field: str
    value: str


def _claim_preferences(
    claim: ResourceClaim, sources: Sequence[Object], classes: Mapping[str, DeviceClass], defaults: policies.Policies
) -> tuple[RequestPreferences, tuple[policies.Stated, ...]]:
    """Return the preferences of a claim, and separately those of requests with other parameters.

    Raises InvalidPolicy.
    """
    found = _found(sources, defaults.annotations)
    request_preferences = _preferences(found)
    stated = [policies.Stated(name, value, origin) for name, (value, origin) in sorted(found.items())]
    apart = []
    for request, parameters, final in _parameters(claim, classes):
        where = f"parameters of ResourceClaim {claim.key} or its DeviceClass"
        there = {name: (value, where) for name, value in parameters.items()}
        _check_final(sources, final)
        own = _preferences(_found(sources, defaults.annotations, there) | {name: there[name] for name in final})
        if own != request_preferences:
            apart.append((request, own))
            stated += [policies.Stated(name, value, where, request) for name, (value, where) in sorted(there.items())]
    if apart:
        request_preferences = replace(request_preferences, by_request=tuple(apart))
    return request_preferences, tuple(stated)


def _parameters(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass]
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, _Final]]]:
    """Yield the requests with parameters that replace annotations: (name, annotations, final).

    Invalid parameters are left out: the allocator reports them.
    """
    for request in claim.spec.devices.requests:
        for exact in request.choices:
            device_class = classes.get(exact.device_class_name)
            if device_class is None or not (claim.spec.devices.config or device_class.spec.config):
                continue
            name = request.name if exact is request.exactly else f"{request.name}/{exact.name}"
            try:
                configs = device_configs(device_class, claim, frozenset({request.name, name}))
            except AllocatorError:
                continue
            found, final = _as_annotations(configs, device_class)
            if found:
                yield name, found, final


def _as_annotations(
    configs: "Mapping[str, DeviceConfig]", device_class: DeviceClass
) -> tuple[dict[str, str], dict[str, _Final]]:
    """Return the parameters that stand for an annotation, by its name; and those of them that the
    class makes final.

        metax.hami.io with qos best-effort -> {"metax-tech.com/sgpu-qos-policy": "best-effort"}, {}
    """
    found: dict[str, str] = {}
    final: dict[str, _Final] = {}
    for driver, config in configs.items():
        vendor = vendor_of(driver)
        if vendor is None:
            continue
        for field_name, value in config.model_dump(by_alias=True, exclude_none=True).items():
            annotation = vendor.parameters.get(field_name)
            if annotation is not None:
                found[annotation] = str(value)
                if field_name in config.final:
                    final[annotation] = _Final(device_class, field_name, str(value))
    return found, final


def _check_final(sources: Iterable[Object], final: Mapping[str, _Final]) -> None:
    """Raise InvalidPolicy for an annotation that contradicts a value marked final by a DeviceClass."""
    for source in sources:
        for name in final.keys() & source.metadata.annotations.keys():
            value, rule = source.metadata.annotations[name], final[name]
            if value != rule.value and not isinstance(source, DeviceClass):
                raise policies.InvalidPolicy(
                    f"{_annotation(_label(source), name)}: {value!r}, but {_label(rule.device_class)} sets {rule.field} to "
                    f"{rule.value} and marks it final; remove the annotation"
                )


def check_preferences(annotations: Mapping[str, str], where: str) -> None:
    """Raise InvalidPolicy if a vendor does not understand the annotations. `where`: the object that has them."""
    _preferences(
        {name: (value, policies.UNSAID) for name, value in annotations.items() if name in PREFERENCE_ANNOTATIONS}, where
    )


def invalid_values(annotations: Mapping[str, str]) -> list[str]:
    """Return a sentence for each annotation that `resolve_policies` refuses, all at once.

    >>> invalid_values({names.NODE_POLICY: "binpak"})
    ["annotation hami.io/node-scheduler-policy: 'binpak' is not one of binpack, spread, fair-share (did you mean binpack?)"]
    """
    kept = kept_annotations(annotations, of_tenant=True)
    found = [
        _problem_of(partial(read, kept[name], f"annotation {name}")) for name, read in _READERS.items() if name in kept
    ]
    stated = {name: kept[name] for name in sorted(PREFERENCE_ANNOTATIONS & kept.keys())}
    if together := _problem_of(partial(check_preferences, stated, _POD)):
        alone = [_problem_of(partial(check_preferences, {name: value}, _POD)) for name, value in stated.items()]
        found += [text.removeprefix(f"{_POD}: ") for text in (alone if any(alone) else [together])]
    return [text for text in found if text]


def _problem_of(parse: Callable[[], object]) -> str:
    try:
        parse()
    except policies.InvalidPolicy as error:
        return str(error)
    return ""


_POD: Final = "Pod"
_READERS: Final[Mapping[str, Callable[[str, str], object]]] = {
    names.NODE_POLICY: policies.parse_node_policy,
    names.DEVICE_POLICY: policies.parse_device_policy,
    names.SCORING_WEIGHTS: policies.parse_weights,
    names.PACKING_WEIGHTS: partial(policies.parse_packing_weights, default=policies.Packing()),
}

_Found = dict[str, tuple[str, str]]
"""Annotation → (value, where it is set)."""


def _found(sources: Iterable[Object], defaults: Mapping[str, str], parameters: _Found | None = None) -> _Found:
    """Return the values by annotation: from the first object that has it, else the parameters.

    Each annotation is looked up separately; defaults come last.
    """
    found = {name: (value, policies.UNSAID) for name, value in defaults.items() if name in PREFERENCE_ANNOTATIONS}
    if parameters:
        found |= {name: said for name, said in parameters.items() if name in PREFERENCE_ANNOTATIONS}
    named: set[str] = set()
    for source in sources:
        for name in PREFERENCE_ANNOTATIONS.intersection(source.metadata.annotations) - named:
            found[name] = source.metadata.annotations[name], _label(source)
            named.add(name)
    return found


def _preferences(found: _Found, where: str = "the controller's defaults") -> RequestPreferences:
    """Return the preferences that the vendors parse from the annotations. Raises InvalidPolicy.

    `where`: the place of values that come from no object.
    """
    if not found:
        return NO_PREFERENCES
    for name, (value, origin) in found.items():
        if value == TOO_LONG:
            raise policies.InvalidPolicy(
                f"{_annotation(origin, name)}: too long; what hami-dra reads of the annotations of one object may have "
                f"{MOST_OF_TENANT} characters in all"
            )
    request_preferences = []
    for vendor in VENDORS:
        stated_here = {name: value for name, (value, _) in found.items() if name in vendor.annotations}
        if stated_here:
            try:
                request_preferences.append((vendor.profile.driver, vendor.preferences(stated_here)))
            except InvalidPreference as error:
                origin = found[error.annotation][1] if error.annotation in found else policies.UNSAID
                named = where if origin == policies.UNSAID else origin
                raise policies.InvalidPolicy(f"{_annotation(named, error.annotation)}: {error}") from error
    return RequestPreferences(tuple(request_preferences))


def _sources(
    pod: Pod, claim: ResourceClaim, templates: Mapping[str, ResourceClaimTemplate], classes: Mapping[str, DeviceClass]
) -> list[Object]:
    """Return the objects whose annotations count for one claim, most specific first."""
    template = templates.get(claim.key)
    found: list[Object] = [pod, claim]
    if template is not None:
        found.append(template)
    for request in claim.spec.devices.requests:
        for exact in request.choices:
            device_class = classes.get(exact.device_class_name)
            if device_class is not None and device_class not in found:
                found.append(device_class)
    return found


def _by_rank(pod: Pod, per_claim: list[list[Object]]) -> Iterable[Object]:
    """Yield the objects in order: one node policy per pod, so all claims come before all templates
    before all classes.
    """
    yield pod
    for wanted in (ResourceClaim, ResourceClaimTemplate, DeviceClass):
        for sources in per_claim:
            yield from (source for source in sources if isinstance(source, wanted))


def _device_policy(sources: Sequence[Object], default: policies.DevicePolicy) -> policies.DevicePolicy:
    policy = default
    if found := _first(sources, names.DEVICE_POLICY):
        value, origin = found
        policy = replace(
            policy, keys=policies.parse_device_policy(value, _annotation(origin, names.DEVICE_POLICY)), origin=origin
        )
    if found := _first(sources, names.SCORING_WEIGHTS):
        value, origin = found
        weights = policies.parse_weights(value, _annotation(origin, names.SCORING_WEIGHTS))
        policy = replace(policy, weights=weights, weights_origin=origin)
    return policy


def _label(source: Object) -> str:
    return f"{type(source).__name__} {source.key}"


def _annotation(origin: str, name: str) -> str:
    return f"{origin}: annotation {name}"
