"""Place the pods of a set of manifests, one after the other, without a cluster: the engine of `hami-dra simulate`.

Pure: takes parsed documents, gives a `Report`. Runs the same conversion, policies and `decide` as the controller; what
differs is only that every driver is ours, that pods go in file order, and that nothing is validated as the API server
would. Must not read files or print.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from controller.allocation.features import FeatureGates
from controller.bridge.convert import ConversionRefused, convert_pod
from controller.bridge.convert import Options as ConvertOptions
from controller.decide import Decision, Demand, Options, PodClaim, Refusal, decide
from controller.inventory.inventory import Inventory
from controller.scoring.policies import InvalidPolicy, Policies, resolve
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate

READ: tuple[Kind[Any], ...] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.RESOURCE_SLICE,
    kinds.DEVICE_CLASS,
    kinds.DEVICE_TAINT_RULE,
    kinds.RESOURCE_CLAIM,
    kinds.RESOURCE_CLAIM_TEMPLATE,
    kinds.RESOURCE_QUOTA,
    kinds.PRIORITY_CLASS,
    kinds.POD,
    *kinds.WORKLOADS,
)
_BY_NAME = {kind.name: kind for kind in READ}
FINISHED = frozenset({"Succeeded", "Failed"})


class BadManifest(ValueError):
    """A document cannot be read as its kind; the message names the document, the field and what is wrong."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`policies` are defaults below the annotations; `first_fit` overrides them all."""

    policies: Policies = Policies()
    first_fit: bool = False
    gates: FeatureGates = FeatureGates()


@dataclass(slots=True)
class Report:
    """The document that `simulate -o json` prints, and the notes that go to stderr."""

    placements: list[dict[str, Any]] = field(default_factory=list)
    unplaced: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {"placements": self.placements, "unplaced": self.unplaced}


def simulate(documents: Sequence[tuple[str, dict[str, Any]]], settings: Settings) -> Report:
    """`documents` are (where it came from, object). Raises `BadManifest`."""
    report = Report()
    run = _Run(settings, report)
    pods: list[tuple[str, dict[str, Any]]] = []
    workloads: list[tuple[str, Kind[Any], dict[str, Any]]] = []
    order: list[tuple[str, int]] = []
    for source, raw in documents:
        kind = _BY_NAME.get(str(raw.get("kind", "")))
        if kind is None or not str(raw.get("apiVersion", "")).startswith(kind.group):
            report.notes.append(f"{source}: kind {raw.get('kind') or '(none)'} is not used here, skipped")
        elif kind is kinds.POD:
            order.append(("pod", len(pods)))
            pods.append((source, raw))
        elif kind in kinds.WORKLOADS:
            order.append(("workload", len(workloads)))
            workloads.append((source, kind, raw))
        else:
            run.feed(source, kind, raw)
    run.assume_nodes()
    waiting: list[tuple[str, dict[str, Any]]] = []
    for what, position in order:
        if what == "pod":
            waiting.append(pods[position])
        else:
            source, kind, raw = workloads[position]
            waiting.extend((source, pod) for pod in expand(kind, raw, run.node_names))
    pending = [entry for entry in waiting if not run.running(*entry)]
    for source, raw in pending:
        run.place(source, raw)
    return report


def expand(kind: Kind[Any], raw: Mapping[str, Any], nodes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The pods a workload would make, named `<name>-<i>`. A DaemonSet makes one for each node, pinned to it."""
    meta = raw.get("metadata") or {}
    spec = raw.get("spec") or {}
    template = spec.get("template") or {}
    pins: list[str | None]
    if kind is kinds.DAEMON_SET:
        pins = list(nodes)
    elif kind is kinds.JOB:
        parallel = spec.get("parallelism")
        completions = spec.get("completions")
        count = 1 if parallel is None else int(parallel)
        pins = [None] * (count if completions is None else min(count, int(completions)))
    else:
        replicas = spec.get("replicas")
        pins = [None] * (1 if replicas is None else int(replicas))
    for number, node in enumerate(pins):
        pod_meta = deepcopy(dict(template.get("metadata") or {}))
        pod_meta["name"] = f"{meta.get('name', '')}-{number}"
        pod_meta["namespace"] = meta.get("namespace") or "default"
        pod_spec = deepcopy(dict(template.get("spec") or {}))
        if node is not None:
            _pin(pod_spec, node)
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": pod_spec}


def _pin(spec: dict[str, Any], node: str) -> None:
    """As the DaemonSet controller does: every required term also names the node."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    field_term = {"key": "metadata.name", "operator": "In", "values": [node]}
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term.setdefault("matchFields", []).append(field_term)


class _Run:
    """One simulation: the inventory and what has no place in it."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._inventory = Inventory()
        self._claims: dict[str, ResourceClaim] = {}
        self._templates: dict[str, ResourceClaimTemplate] = {}
        self._raw_templates: dict[str, dict[str, Any]] = {}
        self._classes: dict[str, DeviceClass] = {}
        self.node_names: list[str] = []
        self._slice_nodes: dict[str, None] = {}

    def feed(self, source: str, kind: Kind[Any], raw: dict[str, Any]) -> None:
        obj = _read(source, kind, raw)
        match kind.name:
            case "Node":
                self.node_names.append(obj.metadata.name)
                self._inventory.node_changed(None, obj)
            case "Namespace":
                self._inventory.namespace_changed(None, obj)
            case "ResourceSlice":
                self._slice_nodes[obj.spec.node_name or ""] = None
                self._inventory.slice_changed(None, obj)
            case "DeviceClass":
                self._classes[obj.metadata.name] = obj
                self._inventory.class_changed(None, obj)
            case "DeviceTaintRule":
                self._inventory.taint_rule_changed(None, obj)
            case "ResourceClaim":
                self._keep_claim(obj)
            case "ResourceClaimTemplate":
                self._templates[obj.key] = obj
                self._raw_templates[obj.key] = raw

    def assume_nodes(self) -> None:
        """Slices alone are enough to try something out: without any Node their nodes are taken to be there and empty."""
        missing = [name for name in self._slice_nodes if name and not self.node_names]
        for name in missing:
            self.feed("(assumed)", kinds.NODE, {"kind": "Node", "metadata": {"name": name}})
        if missing:
            self._report.notes.append(f"no Node in the input: assumed {', '.join(missing)}, ready and empty")

    def running(self, source: str, raw: dict[str, Any]) -> bool:
        """Whether this pod needs no place: it has one (it is counted on its node), or it has finished."""
        pod = _read(source, kinds.POD, raw)
        if pod.status.phase in FINISHED:
            return True
        if pod.spec.node_name:
            self._inventory.pod_changed(None, pod)
            return True
        return False

    def place(self, source: str, raw: dict[str, Any]) -> None:
        pod = _read(source, kinds.POD, raw)
        try:
            pod, demand = self._demand(source, raw)
        except (ConversionRefused, InvalidPolicy, _Missing) as error:
            self._unplaced(pod.key, {}, str(error), str(error))
            return
        options = Options(first_fit=self._settings.first_fit, gates=self._settings.gates)
        answer = decide(self._inventory, demand, options)
        if isinstance(answer, Refusal):
            self._unplaced(pod.key, dict(answer.reasons), answer.message, answer.error)
        else:
            self._placed(pod, demand, answer)

    def _demand(self, source: str, raw: dict[str, Any]) -> tuple[Pod, Demand]:
        namespace = (raw.get("metadata") or {}).get("namespace") or "default"
        conversion = convert_pod(raw, namespace, ConvertOptions(gate=False))
        self._report.notes.extend(f"{source}: {warning}" for warning in conversion.warnings)
        for made in conversion.templates:
            self.feed(source, kinds.RESOURCE_CLAIM_TEMPLATE, made)
        pod = _read(source, kinds.POD, conversion.pod)
        gates = [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
        if gates:
            raise _Missing(f"Pod {pod.key}: spec.schedulingGates: waits for {', '.join(gates)}")
        claims: list[PodClaim] = []
        templates: dict[str, ResourceClaimTemplate] = {}
        for entry in pod.spec.resource_claims:
            claim, template = self._claim_of(
                pod, entry.name, entry.resource_claim_name, entry.resource_claim_template_name
            )
            claims.append(PodClaim(entry.name, claim))
            if template is not None:
                templates[claim.key] = template
        policies = resolve(pod, [entry.claim for entry in claims], templates, self._classes, self._settings.policies)
        return pod, Demand(
            pod=pod,
            claims=tuple(claims),
            policies=policies,
            plugin_resources=conversion.resources,
        )

    def _claim_of(
        self, pod: Pod, entry: str, claim_name: str | None, template_name: str | None
    ) -> tuple[ResourceClaim, ResourceClaimTemplate | None]:
        namespace = pod.metadata.namespace
        if claim_name is not None:
            found = self._claims.get(f"{namespace}/{claim_name}")
            if found is None:
                raise _Missing(
                    f"Pod {pod.key}: spec.resourceClaims[{entry}]: ResourceClaim {namespace}/{claim_name} not found"
                )
            return found, None
        template = self._templates.get(f"{namespace}/{template_name}")
        if template is None:
            raise _Missing(
                f"Pod {pod.key}: spec.resourceClaims[{entry}]: ResourceClaimTemplate {namespace}/{template_name} not found"
            )
        inner = self._raw_templates[template.key].get("spec") or {}
        metadata = {**(inner.get("metadata") or {}), "name": f"{pod.metadata.name}-{entry}", "namespace": namespace}
        raw = {"kind": "ResourceClaim", "metadata": metadata, "spec": inner.get("spec") or {}}
        return cast(
            "ResourceClaim", _read(f"ResourceClaimTemplate {template.key}", kinds.RESOURCE_CLAIM, raw)
        ), template

    def _keep_claim(self, claim: ResourceClaim) -> None:
        self._inventory.claim_changed(self._claims.get(claim.key), claim)
        self._claims[claim.key] = claim

    def _placed(self, pod: Pod, demand: Demand, decision: Decision) -> None:
        new = {entry.claim.key: entry.allocation for entry in decision.allocations}
        claims = []
        for entry in demand.claims:
            allocation = new.get(entry.claim.key)
            if allocation is not None:
                status = {"allocation": allocation}
                claim = msgspec.structs.replace(
                    entry.claim, status=msgspec.convert(status, type(entry.claim.status), strict=False)
                )
                self._keep_claim(claim)
            claims.append(
                {
                    "name": entry.claim.metadata.name,
                    "namespace": entry.claim.metadata.namespace,
                    "podClaimName": entry.pod_claim_name,
                    "allocation": allocation or _as_json(entry.claim),
                }
            )
        spec = msgspec.structs.replace(pod.spec, node_name=decision.node)
        self._inventory.pod_changed(None, msgspec.structs.replace(pod, spec=spec))
        devices = [{"device": device, "score": round(score, 6)} for device, score in decision.score.devices]
        self._report.placements.append(
            {
                "pod": pod.key,
                "node": decision.node,
                "claims": claims,
                "score": {"node": round(decision.score.node, 6), "devices": devices},
            }
        )

    def _unplaced(self, key: str, reasons: dict[str, int], message: str, error: str) -> None:
        self._report.unplaced.append({"pod": key, "reasons": reasons, "message": message, "error": error})


class _Missing(Exception):
    """Something the pod refers to is not in the input."""


def _as_json(claim: ResourceClaim) -> dict[str, Any]:
    allocation = cast("dict[str, Any]", msgspec.to_builtins(claim.status.allocation))
    allocation.setdefault("devices", {}).setdefault("results", [])
    return allocation


def _read(source: str, kind: Kind[Any], raw: dict[str, Any]) -> Any:
    """As its Struct, with the namespace, name and uid that an API server would have given it."""
    metadata = dict(raw.get("metadata") or {})
    if kind.namespaced:
        metadata["namespace"] = metadata.get("namespace") or "default"
    metadata["uid"] = metadata.get("uid") or f"{kind.name}/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    try:
        obj: Object = msgspec.convert({**raw, "metadata": metadata}, kind.type, strict=False)
    except msgspec.ValidationError as error:
        name = metadata.get("name") or metadata.get("generateName") or "(no name)"
        raise BadManifest(f"{source}: {kind.name} {name}: {error}") from error
    return obj
