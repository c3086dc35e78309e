"""Pure conversion of legacy pods to claim pods, shared by the webhook, `convert` and `simulate`.

In: a pod as JSON and options. Out: the pod with claims instead of vendor resources; in files also the
ResourceClaimTemplate that it names. Unknown fields survive, and the input is never changed.
Converting twice changes nothing more. Must not talk to a cluster.

    limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 7500}   →   claims: [{name: hami, request: nvidia-0}]

If the operator names a RuntimeClass for the vendor, a pod without one gets it, converted or not.

Two kinds of pods stay as they are: those labelled `hami.io/webhook: ignore`, and in native mode
those that request plain whole cards, which kube-scheduler serves as extended resources through a
DeviceClass (KEP-5004).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, count
from typing import Any, Final, Literal

from msgspec import Struct, field

from controller.webhook.notices import Served, pod_notices, unusable_values
from controller.webhook.raw_pod import Malformed, Raw, RawContainer, containers_of, object_in, objects_in
from controller.webhook.request import (
    CLAIM_NAME,
    ConvertedRequest,
    InvalidRequest,
    NamedRequest,
    claim_name,
    decode,
    is_claim_name,
    template,
)
from controller.webhook.sharing import share
from hami_dra.api import names
from hami_dra.api.printable import mebibytes
from hami_dra.api.served_pods import asks_for_hami_dra
from hami_dra.vendors.legacy import MAX_CARDS, InvalidLegacy, LegacyRequest, LegacyVendor
from hami_dra.vendors.registry import LEGACY_VENDORS

IGNORE: Final = "ignore"
UNCONVERTED: Final = frozenset({"kube-system", names.SYSTEM_NAMESPACE})
"""Namespaces whose pods the shipped webhook never sees (manifests/webhook.yaml)."""
RUNTIME_CLASS: Final = "runtimeClassName"
_TINY: Final = 100 << 20
"""Bytes of memory of a card: the context of a process alone takes more."""


class Options(Struct, frozen=True):
    mode: Literal["exclusive", "native"] = "exclusive"
    gate: bool = True
    """Add the scheduling gate where required (`_add_gate`). Never in native mode."""
    schedulers: tuple[str, ...] = ("default-scheduler",)
    """Only pods of these schedulers are gated, and there is a note about others; empty: no note."""
    is_served: Callable[[str], bool] = lambda _resource: False
    """Whether a device plugin or DeviceClass offers a resource of this name."""
    runtime_classes: Mapping[str, str] = field(default_factory=dict)
    """Vendor → name of the RuntimeClass whose handler brings the vendor's libraries into containers."""
    gang_sources: Collection[str] | None = None
    """As of `Served`."""

    @property
    def served(self) -> Served:
        """What notices must know. In native mode every scheduler may allocate."""
        schedulers = self.schedulers if self.mode == "exclusive" else ()
        return Served(schedulers, self.is_served, self.gang_sources)


class Conversion(Struct, frozen=True):
    pod: Raw
    templates: list[Raw]
    """ResourceClaimTemplates to create before the converted pod, also that of an earlier conversion."""
    warnings: tuple[str, ...] = ()
    request: ConvertedRequest | None = None
    """The devices that the pod's claim requests; None if nothing was converted."""
    left: tuple[str, ...] = ()
    """Extended resources left to kube-scheduler (native mode)."""


class ConversionRefused(ValueError):
    """The pod requests something impossible; each of the `problems` names the field and the fix."""

    def __init__(self, pod: str, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(f"{pod}: {problem}" for problem in problems))
        self.problems = problems


def asks_for_cards(raw_pod: Mapping[str, Any], is_served: Callable[[str], bool]) -> bool:
    """Return whether a container names a resource that is converted, and that nothing else serves."""
    try:
        resources = [each.resources for each in containers_of(object_in(dict(raw_pod), "spec", ""))]
    except Malformed:
        return False
    read = (name for vendor in LEGACY_VENDORS for name in vendor.resources)
    return any(name in each and not is_served(name) for name in read for each in resources)


def convert_pod(
    raw_pod: Mapping[str, Any], namespace: str, options: Options | None = None, *, unique: str = ""
) -> Conversion:
    """Convert a pod. Raises ConversionRefused with all problems of the pod at once.

    `unique`, which differs for every pod: name a claim of this pod alone, which the controller
    creates. Without it the pod names a template, as a file must that may be applied many times.
    """
    options = options or Options()
    pod: Raw = deepcopy(dict(raw_pod))
    try:
        metadata = object_in(pod, "metadata", "")
        if object_in(metadata, "labels", "metadata.").get(names.WEBHOOK_LABEL) == IGNORE:
            return Conversion(pod, [])
        conversion = _Conversion(pod, namespace, options, unique).run()
    except (_Problems, Malformed, InvalidRequest) as error:
        raise ConversionRefused(pod_key(raw_pod, namespace), error.args) from None
    if options.gate and options.mode == "exclusive":
        _add_gate(pod, options.schedulers)
    return conversion


def _add_gate(pod: Raw, schedulers: Collection[str]) -> None:
    """Add the scheduling gate in place where the API server allows one and the pod's scheduler knows it.

    The gate keeps kube-scheduler from trying for nothing. `manifests/gate-policy.yaml` states the same
    rule in CEL for pods that are not converted. It must never gate a pod that hami-dra will not place.
    Claims cannot be inspected at admission, so only pods that ask for hami-dra explicitly are gated.
    """
    spec = pod.get("spec") or {}
    gates = spec.get("schedulingGates") or []
    if (
        not spec.get("nodeName")
        and (spec.get("schedulerName") or "default-scheduler") in schedulers
        and spec.get("resourceClaims")
        and _says_so(pod.get("metadata") or {})
        and not any(gate.get("name") == names.GATE for gate in gates)
    ):
        spec["schedulingGates"] = [*gates, {"name": names.GATE}]


def _says_so(metadata: Mapping[str, Any]) -> bool:
    return asks_for_hami_dra(metadata.get("labels") or {}, metadata.get("annotations") or {})


def pod_key(pod: Mapping[str, Any], namespace: str) -> str:
    """Return how messages name the pod; pods of a ReplicaSet have no name of their own yet."""
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name") or f"{metadata.get('generateName') or '(no name)'}..."
    return f"Pod {namespace}/{name}"


class _Problems(Exception):
    """Carries problems out of the conversion."""


class _ContainerCards(Struct, frozen=True):
    container: RawContainer
    cards: LegacyRequest
    """The devices that this container requests; the shared request may be larger."""


class _Pointer(Struct, frozen=True):
    """The request of the claim that a container uses."""

    entry: _ContainerCards
    vendor: LegacyVendor
    request: str


class _Conversion:
    """One conversion. Changes `pod` in place, and only once the whole pod is known to be valid."""

    def __init__(self, pod: Raw, namespace: str, options: Options, unique: str) -> None:
        self._pod = pod
        self._unique = unique
        self._namespace = namespace
        self._options = options
        self._spec = object_in(pod, "spec", "")
        self._annotations = object_in(object_in(pod, "metadata", ""), "annotations", "metadata.")
        self._claims = objects_in(self._spec, "resourceClaims", "spec.")
        objects_in(self._spec, "schedulingGates", "spec.")
        self._problems: list[str] = []
        self._warnings: list[str] = []
        self._left: list[str] = []
        self._left_vendors: list[str] = []
        self._handled: list[tuple[RawContainer, LegacyVendor]] = []
        self._requests: list[NamedRequest] = []
        self._pointers: list[_Pointer] = []

    def run(self) -> Conversion:
        entry, earlier = self._converted_before()
        self._requests.extend(earlier)
        containers = list(containers_of(self._spec))
        for vendor in LEGACY_VENDORS:
            self._add_requests(vendor, containers)
        self._check_names(containers)
        if self._pointers:
            self._check_node()
        request = ConvertedRequest(tuple(self._requests))
        if request.cards > MAX_CARDS:
            self._problems.append(
                f"its containers ask for {request.cards} devices together, and a claim holds {MAX_CARDS}; split the pod"
            )
        runtime_class = self._runtime_class([*(named.vendor for named in self._requests), *self._left_vendors])
        if self._problems:
            values = unusable_values(object_in(self._pod, "metadata", ""))
            raise _Problems(*dict.fromkeys([*self._problems, *values]))
        is_ours = bool(self._pointers) or _says_so(object_in(self._pod, "metadata", ""))
        self._warnings.extend(pod_notices(self._pod, self._options.served, is_ours=is_ours))
        made = template(request, self._namespace) if self._requests else None
        for container, vendor in self._handled:
            container.strip(vendor)
        if made is not None and (self._pointers or (self._unique and entry and "resourceClaimName" in entry)):
            self._write(request, made, entry)
        if runtime_class:
            self._spec[RUNTIME_CLASS] = runtime_class
        return Conversion(
            pod=self._pod,
            templates=[made] if made and not self._unique else [],
            warnings=tuple(self._warnings),
            request=request if self._requests else None,
            left=tuple(dict.fromkeys(self._left)),
        )

    def _converted_before(self) -> tuple[Raw | None, tuple[NamedRequest, ...]]:
        """Return the claim entry and requests of an earlier conversion.

        New containers (injected sidecars) are added to them. An annotation without the claim that
        belongs to it was copied from elsewhere and is ignored.
        """
        annotation = self._annotations.get(names.CONVERTED_REQUEST)
        if not annotation:
            return None, ()
        try:
            request = decode(str(annotation))
            made = template(request, self._namespace)
        except InvalidRequest:
            return None, ()
        entry = next((entry for entry in self._claims if _names(entry, made)), None)
        return (entry, request.requests) if entry is not None else (None, ())

    def _add_requests(self, vendor: LegacyVendor, containers: list[RawContainer]) -> None:
        mentioned = [container for container in containers if container.mentions(vendor)]
        if not mentioned:
            return
        try:
            filters = vendor.filters(self._annotations)
            vendor.selectors(filters)
        except InvalidLegacy as error:
            self._problems.append(str(error))
            filters = {}
        container_cards = self._container_cards(vendor, mentioned, plain_stays=not filters)
        sharing = share([(entry.container.role, entry.cards) for entry in container_cards])
        first = sum(named.vendor == vendor.name for named in self._requests)
        added = [
            NamedRequest(f"{vendor.name}-{number}", vendor.name, cards, filters)
            for number, cards in enumerate(sharing.requests, first)
        ]
        self._requests.extend(added)
        self._pointers.extend(
            _Pointer(entry, vendor, added[index].name)
            for entry, index in zip(container_cards, sharing.request_of, strict=True)
        )
        self._warnings.extend(
            f"{container_cards[index].container.where} gets devices of its own for the whole life of the pod: what it asks for "
            f"cannot be compared with what the other containers ask for. {_to_share(container_cards)}"
            for index in sharing.alone
        )

    def _check_names(self, containers: Iterable[RawContainer]) -> None:
        """Refuse names that no vendor reads and that have a known replacement."""
        for container in containers:
            resources = container.resources
            for name in dict.fromkeys([*resources.limits, *resources.requests]):
                hints = (vendor.instead_of(name) for vendor in LEGACY_VENDORS)
                if (hint := next(filter(None, hints), "")) and not self._options.is_served(name):
                    self._problems.append(f"{container.where}: {resources.field(name)} is not read: write {hint}")

    def _check_node(self) -> None:
        """Refuse a pod that will never be scheduled (HAMi: `pod has node assigned`)."""
        if node := self._spec.get("nodeName"):
            self._problems.append(
                f"spec.nodeName is {node}, so no scheduler chooses devices for the pod, and it would wait forever (pod has node "
                f"assigned); write nodeSelector: {{kubernetes.io/hostname: {node}}} instead"
            )

    def _container_cards(
        self, vendor: LegacyVendor, containers: list[RawContainer], *, plain_stays: bool
    ) -> list[_ContainerCards]:
        native = self._options.mode == "native"
        container_cards = []
        for container in containers:
            resources = container.resources
            try:
                reading = vendor.read(resources)
                cards = reading.request and vendor.settled(reading.request, self._annotations)
            except InvalidLegacy as error:
                if str(error) not in self._problems:  # of an annotation: once for the pod
                    self._problems.append(f"{container.where}: {error}")
                continue
            small = _tiny_memory(cards)
            self._warnings.extend(f"{container.where}: {warning}" for warning in (*reading.warnings, *small))
            present = [name for name in vendor.resources if name in resources]
            if cards is not None and native and cards.memory_percent is not None:
                self._problems.append(
                    f"{container.where}: a percentage of memory is resolved on the device that is chosen, and in native mode "
                    "kube-scheduler chooses; ask for MiB"
                )
            elif cards is not None and native and plain_stays and vendor.is_plain(cards) and len(present) == 1:
                self._left.extend(present)
                self._left_vendors.append(vendor.name)
            else:
                self._handled.append((container, vendor))
                if cards is not None:
                    container_cards.append(_ContainerCards(container, cards))
        return container_cards

    def _runtime_class(self, vendors: Iterable[str]) -> str:
        """Return the RuntimeClass for a pod without one, as HAMi (pkg/device/nvidia/device.go, MutateAdmission)."""
        if self._spec.get(RUNTIME_CLASS) is not None:
            return ""
        configured = self._options.runtime_classes
        wanted = {vendor: configured[vendor] for vendor in sorted(set(vendors)) if configured.get(vendor)}
        if len(set(wanted.values())) > 1:
            listed = ", ".join(f"{name} for {vendor}" for vendor, name in wanted.items())
            self._problems.append(
                f"its containers ask for devices whose RuntimeClasses differ ({listed}), and a pod has one: set "
                f"spec.{RUNTIME_CLASS}, or split the pod"
            )
            return ""
        return next(iter(wanted.values()), "")

    def _write(self, request: ConvertedRequest, made: Raw, entry: Raw | None) -> None:
        if entry is None:
            entry = {"name": self._free_claim_name()}
            self._spec["resourceClaims"] = [*self._claims, entry]
        metadata = self._pod["metadata"] = self._pod.get("metadata") or {}
        if self._unique:
            base = str(metadata.get("name") or metadata.get("generateName") or "")
            entry.pop("resourceClaimTemplateName", None)
            entry["resourceClaimName"] = claim_name(base, made, self._unique)
        else:
            entry["resourceClaimTemplateName"] = made["metadata"]["name"]
        for pointer in self._pointers:
            container = pointer.entry.container.raw
            if env := pointer.vendor.env(pointer.entry.cards):
                added = [{"name": key, "value": value} for key, value in env.items()]
                container["env"] = [*(container.get("env") or []), *added]
            resources = container["resources"]
            resources["claims"] = [
                *(resources.get("claims") or []),
                {"name": entry["name"], "request": pointer.request},
            ]
        metadata["labels"] = {**(metadata.get("labels") or {}), names.DRA_LABEL: "true"}
        metadata["annotations"] = {**self._annotations, names.CONVERTED_REQUEST: request.encode()}

    def _free_claim_name(self) -> str:
        taken = {entry.get("name") for entry in self._claims}
        names = chain([CLAIM_NAME], (f"{CLAIM_NAME}-{number}" for number in count(2)))
        return next(name for name in names if name not in taken)


def _names(entry: Raw, made: Raw) -> bool:
    """Return whether the entry names the template, or a claim made from it."""
    return entry.get("resourceClaimTemplateName") == made["metadata"]["name"] or is_claim_name(
        str(entry.get("resourceClaimName")), made
    )


def _tiny_memory(cards: LegacyRequest | None) -> Iterator[str]:
    """Yield a warning about too little memory: `4000m` is written as 4, and who writes `4` may mean GiB."""
    memory = cards.capacity.get(names.CAP_MEMORY, 0) if cards else 0
    if 0 < memory < _TINY:
        yield f"it asks for {mebibytes(memory)} of memory of each device, which is too little to start most programs"


def _to_share(container_cards: Sequence[_ContainerCards]) -> str:
    """Return how to phrase the requests so that an init container can use the devices of the others."""
    if len({entry.cards.memory_percent is None for entry in container_cards}) > 1:
        return "Give the memory of both in MiB"
    return "Ask for the same amounts in both"
