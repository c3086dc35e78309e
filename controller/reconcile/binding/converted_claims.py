"""Creates the claims of converted pods, from the annotation of each pod.

Run by the leader in both modes. The webhook writes nothing: it converts the pod, names a claim of
this pod alone, and puts the request into the annotation `hami.io/converted-request`; the claim is
created here, owned by the pod, once that is stored. A pod that a later admission step refuses
therefore leaves nothing behind. (A template instead would have to exist before the pod:
kube-controller-manager reports each one that it does not find as a Warning on the pod.)

Pods that were converted in files, or by an earlier version, name a template: where it is lost, it is
created again in the same way, and pods that need the same one share one request.

Several objects are created concurrently, and namespaces take turns (`Lanes`). A failure is reported
as an event on each waiting pod and retried after a pause that doubles.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from controller.reconcile.runtime import Context, messages
from controller.webhook import LegacyConversion, is_same_request
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from hami_dra.api.podclaims import claim_refs, is_created_by_us
from hami_dra.api.podstate import is_pending
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import AlreadyExists, ClusterError

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_PER_NAMESPACE: Final = 4
_WATCH_LAG: Final = 1.0
_RETRY_FIRST: Final = 0.5
_RETRY_MOST: Final = 300.0
"""Seconds between two attempts for one pod."""


_Made = ResourceClaim | ResourceClaimTemplate


class ConvertedClaims:
    def __init__(self, context: Context, conversion: LegacyConversion) -> None:
        self._context = context
        self._guard = context.guard("converted claims")
        self._conversion = conversion
        self._lanes = Lanes(_PER_NAMESPACE, _AT_ONCE)
        self._making: dict[str, list[str]] = {}
        """Kind and key of what is being created → pods that came to need it meanwhile."""
        self._retries: dict[str, Backoff] = {}
        """By uid of the pod."""

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Note a new or changed pod. Subscribed by the term."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._retries.pop(old.metadata.uid, None)
        if new is not None and self._lacks_a_claim(new):
            self._lanes.add(new.metadata.namespace, new.key, partial(self._check, new.key))

    def template_changed(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        """Recreate a deleted template for the pods that still need it. Subscribed by the term."""
        if old is not None and new is None:
            for waiting in self._context.informers.pods_waiting_for_template(old.key):
                self.pod_changed(None, waiting)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Recreate a deleted claim. Subscribed by the term."""
        if old is not None and new is None:
            for waiting in self._context.informers.pods_of(old.key):
                self.pod_changed(None, waiting)

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost."""
        for pod in list(self._context.informers.pods.store):
            self.pod_changed(None, pod)
        async with self._lanes:
            await asyncio.Event().wait()

    async def _check(self, key: str) -> None:
        with self._guard.each(f"Pod {key}"):
            await self._make_for(key)

    async def _make_for(self, key: str) -> None:
        """Create the claim or template of one pod, if necessary."""
        pod = self._context.informers.pod(key)
        if pod is None or not self._lacks_a_claim(pod):
            return
        try:
            body = self._conversion.claim_or_template(pod)
        except ValueError as error:
            self._report(pod, f"its claim cannot be made: {error}")
            return
        if body is None:
            self._report_changed(pod)
            return
        if (stored := self._stored(body)) is not None:
            self._compare(pod, body, stored)
        elif (waiting := self._making.get(_name(body))) is not None:
            waiting.append(key)
        else:
            await self._create(pod, body)

    async def _create(self, pod: Pod, body: Mapping[str, Any]) -> None:
        waiting = self._making[_name(body)] = [pod.key]
        try:
            stored = await self._created(pod, body)
        except ClusterError as error:
            log.warning("%s not made, %d pods wait for it: %s", _name(body), len(waiting), error)
            for key in waiting:
                self._try_again(key, f"its {_name(body)} is not made yet: {error}")
        else:
            self._compare(pod, body, stored)
            for key in waiting:
                if (found := self._context.informers.pod(key)) is not None:
                    self._retries.pop(found.metadata.uid, None)
        finally:
            del self._making[_name(body)]

    async def _created(self, pod: Pod, body: Mapping[str, Any]) -> _Made:
        """Return the object as it is stored, regardless of who created it. Raises ClusterError, LeadershipLost."""
        stored: _Made
        try:
            if _is_template(body):
                stored = await self._context.writer.create(
                    RESOURCE_CLAIM_TEMPLATE, body, namespace=pod.metadata.namespace
                )
                self._context.informers.observe_template(stored)
            else:
                stored = await self._context.writer.create(RESOURCE_CLAIM, body, namespace=pod.metadata.namespace)
                self._context.informers.observe_claim(stored)
        except AlreadyExists:
            # Another client was faster: the watch delivers it.
            await self._context.clock.sleep(_WATCH_LAG)
            if (seen := self._stored(body)) is None:
                raise
            return seen
        log.info("%s made for pod %s", _name(body), pod.key)
        return stored

    def _stored(self, body: Mapping[str, Any]) -> _Made | None:
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        return self._context.informers.template(key) if _is_template(body) else self._context.informers.claim(key)

    def _try_again(self, key: str, why: str) -> None:
        pod = self._context.informers.pod(key)
        if pod is None:
            return
        self._report(pod, why)
        pause = self._retries.setdefault(pod.metadata.uid, Backoff(_RETRY_FIRST, _RETRY_MOST)).next()
        self._lanes.add_later(pause, pod.metadata.namespace, key, partial(self._check, key))

    def _compare(self, pod: Pod, body: Mapping[str, Any], stored: _Made) -> None:
        """Report on the pod if a different object has the name that its request needs."""
        if not is_same_request(body, stored):
            self._report(
                pod,
                f"{_name(body)} exists with other content than its name stands for; delete it, and "
                "the pod; the controller makes the right one for the next",
            )

    def _report_changed(self, pod: Pod) -> None:
        """Report a claim that is never made, as the annotation describes none of this name."""
        for ref in claim_refs(pod):
            if not ref.template and is_created_by_us(pod, ref) and self._context.informers.claim(ref.key) is None:
                self._report(
                    pod,
                    f"spec.resourceClaims[{ref.pod_claim_name}]: ResourceClaim {ref.key} is not made: its name stands for "
                    f"another request than annotation {names.CONVERTED_REQUEST} describes, which was changed or copied; "
                    "create the pod again",
                )

    def _report(self, pod: Pod, note: str) -> None:
        self._context.events.report(POD, pod, messages.warning(messages.INVALID_CLAIM, note))

    def _lacks_a_claim(self, pod: Pod) -> bool:
        """Return whether a claim of the converted pod does not exist yet."""
        return is_pending(pod) and any(
            is_created_by_us(pod, ref)
            and (not ref.key if ref.template else self._context.informers.claim(ref.key) is None)
            for ref in claim_refs(pod)
        )


def _is_template(body: Mapping[str, Any]) -> bool:
    return bool(body["kind"] == RESOURCE_CLAIM_TEMPLATE.name)


def _name(body: Mapping[str, Any]) -> str:
    return f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"
