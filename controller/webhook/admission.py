"""Answer one admission request: convert the pod, or give advice. The request has no side effects.

Called by `controller.webhook.server` for the API server's AdmissionReviews, and by
`controller.webhook.memory_webhook`. In: JSON. Out: JSON. Never raises for the contents of a pod:
those lead to a denial whose message names the object, the field and the fix. The ResourceClaim that
the converted pod names is created by the controller, once the pod is stored.
"""

import base64
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from controller.webhook.convert import ConversionRefused, Options, convert_pod, pod_key
from controller.webhook.quota import QuotaReader, excesses
from controller.webhook.workloads import POD_TEMPLATES, group_and_kind, is_pod, unconverted_notices, workload_notices
from hami_dra.api import kinds
from hami_dra.api.resource import DeviceClass
from hami_dra.kube.protocol import Cluster, ClusterError


def clash_warnings(resources: Iterable[str], classes: Iterable[DeviceClass]) -> tuple[str, ...]:
    """Return a warning for each resource of several DeviceClasses: the last created counts, then the first by name."""
    by_resource: dict[str, list[DeviceClass]] = {}
    for device_class in classes:
        if device_class.spec.extended_resource_name:
            by_resource.setdefault(device_class.spec.extended_resource_name, []).append(device_class)
    warnings = []
    for resource in resources:
        mapping = sorted(by_resource.get(resource, ()), key=lambda one: one.metadata.name)
        if len(mapping) > 1:
            # max returns the first of equals
            taken = max(mapping, key=lambda one: one.metadata.creation_timestamp or "")
            all_names = ", ".join(one.metadata.name for one in mapping)
            warnings.append(
                f"{resource} is mapped by several DeviceClasses ({all_names}); Kubernetes takes the one created last, "
                f"{taken.metadata.name}. Remove extendedResourceName from the others"
            )
    return tuple(warnings)


Operation = dict[str, Any]


def difference(before: Any, after: Any, path: str = "") -> list[Operation]:
    """Return the JSON patch (RFC 6902) that turns `before` into `after`; empty if they are equal.

    Lists are compared position by position: a conversion only appends to lists.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        return _objects(before, after, path)
    if isinstance(before, list) and isinstance(after, list):
        return _lists(before, after, path)
    if type(before) is type(after) and before == after:  # Python's True equals 1; JSON's does not
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _objects(before: dict[str, Any], after: dict[str, Any], path: str) -> list[Operation]:
    operations = [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in before if key not in after]
    for key, value in after.items():
        child = f"{path}/{_escape(key)}"
        if key in before:
            operations.extend(difference(before[key], value, child))
        else:
            operations.append({"op": "add", "path": child, "value": value})
    return operations


def _lists(before: list[Any], after: list[Any], path: str) -> list[Operation]:
    common = min(len(before), len(after))
    operations: list[Operation] = []
    for index in range(common):
        operations.extend(difference(before[index], after[index], f"{path}/{index}"))
    operations.extend({"op": "remove", "path": f"{path}/{index}"} for index in reversed(range(common, len(before))))
    operations.extend({"op": "add", "path": f"{path}/-", "value": value} for value in after[common:])
    return operations


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


log = logging.getLogger(__name__)

Raw = dict[str, Any]
_CLASSES_FRESH: Final = 60.0
_API_VERSION: Final = "admission.k8s.io/v1"
_WRITES: Final = frozenset({"CREATE", "UPDATE"})


class BadReview(ValueError):
    """The request body is not a v1 AdmissionReview; the message says what is missing."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Request(msgspec.Struct, frozen=True):
    """The fields of an AdmissionRequest that the webhook reads."""

    uid: str
    operation: str = ""
    kind: _Kind = _Kind()
    namespace: str = ""
    object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    request: _Request


class ReviewVerdict(Struct, frozen=True):
    """Result for one pod. `pod` is None if it is refused; `denied` then says why."""

    pod: Raw | None
    warnings: tuple[str, ...] = ()
    denied: str = ""
    forbidden: bool = False
    """The pod is well-formed, but not allowed here (HTTP 403)."""


class Admission:
    """Review pods at admission.

    `refuse_over_quota`: refuse pods that can never fit their namespace's quota, and say what the
    quota allows. Every caller can read the quota from that answer, so set it only where all callers
    are known to be the API server. Pods in `excluded_namespaces` are admitted unchanged.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: Options | None = None,
        *,
        refuse_over_quota: bool = True,
        excluded_namespaces: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options or Options()
        self._clock = clock
        self._quotas = QuotaReader(cluster, clock) if refuse_over_quota else None
        self._excluded = frozenset(excluded_namespaces)
        self._classes: tuple[DeviceClass, ...] = ()
        self._classes_read = float("-inf")

    async def review(self, body: object) -> Raw:
        """Answer an AdmissionReview that holds a request with one that holds a response. Raises BadReview."""
        request = _request(body)
        response: Raw = {"uid": request.uid, "allowed": True}
        is_new_pod = request.operation == "CREATE" and request.kind.kind == kinds.POD.name
        if is_new_pod and request.object is not None and request.namespace not in self._excluded:
            before = request.object
            verdict = await self.admit(before, request.namespace, unique=request.uid)
            if verdict.warnings:
                response["warnings"] = list(verdict.warnings)
            if verdict.pod is None:
                response["allowed"] = False
                code, reason = (403, "Forbidden") if verdict.forbidden else (422, "Invalid")
                response["status"] = {"code": code, "reason": reason, "message": verdict.denied}
            elif patch := difference(before, verdict.pod):
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}

    async def advise(self, body: object, *, converted: bool) -> Raw:
        """Answer with warnings at most. `converted`: whether pods of its namespace are. Raises BadReview."""
        request = _request(body)
        response: Raw = {"uid": request.uid, "allowed": True}
        found = request.object or {}
        if request.operation in _WRITES and (is_pod(found) or group_and_kind(found) in POD_TEMPLATES):
            if not converted:
                warnings = unconverted_notices(found, request.namespace, self._options)
            elif request.namespace in self._excluded:
                warnings = ()
            else:
                warnings = workload_notices(found, request.namespace, self._options)
            if warnings:
                response["warnings"] = list(warnings)
        return {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}

    async def admit(self, pod: Mapping[str, Any], namespace: str, *, unique: str) -> ReviewVerdict:
        """`unique`: differs for every request."""
        try:
            conversion = convert_pod(pod, namespace, self._options, unique=unique)
        except ConversionRefused as error:
            return ReviewVerdict(None, denied=str(error))
        if conversion.request is not None and self._options.mode == "exclusive" and self._quotas is not None:
            too_much = excesses(conversion.request, await self._quotas.read(namespace))
            if too_much:
                denied = "; ".join(f"{pod_key(pod, namespace)}: {excess}" for excess in too_much)
                return ReviewVerdict(None, denied=denied, forbidden=True)
        warnings = list(conversion.warnings)
        if conversion.left:
            warnings.extend(clash_warnings(conversion.left, await self._device_classes()))
        return ReviewVerdict(conversion.pod, tuple(warnings))

    async def _device_classes(self) -> tuple[DeviceClass, ...]:
        """Return the DeviceClasses, at most a minute old: for warnings only, so a failure refuses no pod."""
        if self._classes_read < self._clock() - _CLASSES_FRESH:
            try:
                self._classes = (await self._cluster.list(kinds.DEVICE_CLASS)).items
                self._classes_read = self._clock()
            except ClusterError as error:
                log.warning("no warnings about clashing DeviceClasses: %s", error)
        return self._classes


def _request(body: object) -> _Request:
    try:
        review = msgspec.convert(body, _Review)
    except msgspec.ValidationError as error:
        raise BadReview(f"not an AdmissionReview: {error}") from None
    if review.api_version != _API_VERSION:
        raise BadReview(f"not an AdmissionReview of {_API_VERSION}; admissionReviewVersions must be [v1]")
    if review.request.operation == "CREATE" and review.request.object is None:
        raise BadReview("not an AdmissionReview: request.object is missing")
    return review.request
