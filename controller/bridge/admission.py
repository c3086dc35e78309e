"""One admission request: convert the pod, make the template it needs, answer.

Called by `controller.bridge.server` for the API server's AdmissionReviews, and by `controller.bridge.memory_webhook`. In: JSON. Out: JSON. Never raises for what a pod contains: that is a denial whose message names object, field, fix.
"""

import asyncio
import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.bridge.convert import ConversionRefused, Options, convert_pod, pod_key
from controller.bridge.extended import clash_warnings
from controller.bridge.jsonpatch import difference
from controller.bridge.quota import QuotaReader, excesses
from controller.bridge.templates import TemplateMaker, TemplateTaken
from hami_dra.api import kinds
from hami_dra.api.resource import DeviceClass
from hami_dra.cluster.protocol import Cluster, ClusterError, Unavailable

log = logging.getLogger(__name__)

Raw = dict[str, Any]
_CLASSES_FRESH: Final = 60.0
_PATIENCE: Final = 7.0
"""Seconds for everything that is asked of the API server: less than the `timeoutSeconds` of the configuration."""


class BadReview(ValueError):
    """The request body is not an AdmissionReview of v1; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`pod` is None when it is refused, and `denied` says why."""

    pod: Raw | None
    warnings: tuple[str, ...] = ()
    denied: str = ""
    forbidden: bool = False
    """It is well-formed, but not allowed here."""


class Admission:
    def __init__(
        self, cluster: Cluster, options: Options | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._options = options or Options()
        self._clock = clock
        self._templates = TemplateMaker(cluster, clock=clock)
        self._quotas = QuotaReader(cluster, clock=clock)
        self._classes: tuple[DeviceClass, ...] = ()
        self._classes_read = float("-inf")

    async def review(self, body: object) -> Raw:
        """An AdmissionReview with a request → one with a response. Raises BadReview."""
        request = _request(body)
        response: Raw = {"uid": request["uid"], "allowed": True}
        if request.get("operation") == "CREATE" and request.get("kind", {}).get("kind") == kinds.POD.name:
            before = request["object"]
            verdict = await self.admit(before, str(request.get("namespace") or ""), dry_run=bool(request.get("dryRun")))
            if verdict.warnings:
                response["warnings"] = list(verdict.warnings)
            if verdict.pod is None:
                response["allowed"] = False
                code, reason = (403, "Forbidden") if verdict.forbidden else (422, "Invalid")
                response["status"] = {"code": code, "reason": reason, "message": verdict.denied}
            elif patch := difference(before, verdict.pod):
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    async def admit(self, pod: Mapping[str, Any], namespace: str, *, dry_run: bool) -> Verdict:
        try:
            conversion = convert_pod(pod, namespace, self._options)
        except ConversionRefused as error:
            return Verdict(None, denied=str(error))
        if conversion.request is not None and self._options.mode == "exclusive":
            too_much = excesses(conversion.request, await self._quotas.read(namespace), self._options.vendors)
            if too_much:
                denied = "; ".join(f"{pod_key(pod, namespace)}: {excess}" for excess in too_much)
                return Verdict(None, denied=denied, forbidden=True)
        warnings = list(conversion.warnings)
        if conversion.left:
            warnings.extend(clash_warnings(conversion.left, await self._device_classes()))
        if not dry_run:
            for template in conversion.templates:
                try:
                    async with asyncio.timeout(_PATIENCE):
                        await self._templates.ensure(template)
                except (Unavailable, TimeoutError) as error:
                    # the pod may come in: the controller makes the template from its annotation
                    log.warning("%s: %s", pod_key(pod, namespace), error)
                    warnings.append("its ResourceClaimTemplate could not be made yet; the controller will")
                except (TemplateTaken, ClusterError) as error:
                    return Verdict(None, denied=f"{pod_key(pod, namespace)}: {error}")
        return Verdict(conversion.pod, tuple(warnings))

    async def _device_classes(self) -> tuple[DeviceClass, ...]:
        """At most a minute old. Only warnings hang on them, so a failure to read them is no reason to refuse a pod."""
        if self._classes_read < self._clock() - _CLASSES_FRESH:
            try:
                self._classes = (await self._cluster.list(kinds.DEVICE_CLASS)).items
                self._classes_read = self._clock()
            except ClusterError as error:
                log.warning("no warnings about clashing DeviceClasses: %s", error)
        return self._classes


def _request(body: object) -> Raw:
    if not isinstance(body, dict) or body.get("apiVersion") != "admission.k8s.io/v1":
        raise BadReview("not an AdmissionReview of admission.k8s.io/v1; admissionReviewVersions must be [v1]")
    request = body.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise BadReview("not an AdmissionReview: request.uid is missing")
    if request.get("operation") == "CREATE" and not isinstance(request.get("object"), dict):
        raise BadReview("not an AdmissionReview: request.object is missing")
    return request
