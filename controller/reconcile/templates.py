"""Makes missing ResourceClaimTemplates of converted pods again, from what the annotation of the pod says.

Run by the leader in both modes. A pending pod that refers to a template which does not exist, and carries the annotation, puts
it on the list; a failure is told on the pod and tried again later.
"""

import asyncio
import logging

from controller.reconcile import messages
from controller.reconcile.context import Context
from controller.reconcile.demand import Bridge
from controller.reconcile.pods import claim_refs, is_pending
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD, RESOURCE_CLAIM_TEMPLATE
from hami_dra.api.resource import ResourceClaimTemplate
from hami_dra.cluster.protocol import AlreadyExists, ClusterError

log = logging.getLogger(__name__)

_TRY_AGAIN = 10.0


class TemplateKeeper:
    def __init__(self, context: Context, bridge: Bridge) -> None:
        self._world = context.world
        self._writer = context.writer
        self._clock = context.clock
        self._events = context.events
        self._bridge = bridge
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()

    def pod_changed(self, _old: Pod | None, new: Pod | None) -> None:
        """Subscribed by the term."""
        if new is not None and self._lacks_template(new) and new.key not in self._queued:
            self._queued.add(new.key)
            self._waiting.put_nowait(new.key)

    def template_changed(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        """Subscribed by the term."""
        if old is not None and new is None:
            for waiting in self._world.pods_waiting_for_template(old.key):
                self.pod_changed(None, waiting)

    async def run(self) -> None:
        """Until cancelled. Raises LeadershipLost."""
        for pod in list(self._world.pods.store):
            self.pod_changed(None, pod)
        async with asyncio.TaskGroup() as group:
            while True:
                key = await self._waiting.get()
                self._queued.discard(key)
                found = self._world.pod(key)
                if found is not None and self._lacks_template(found) and not await self._make(found):
                    self._queued.add(key)
                    group.create_task(self._later(key))

    async def _later(self, key: str) -> None:
        await self._clock.sleep(_TRY_AGAIN)
        self._waiting.put_nowait(key)

    def _lacks_template(self, pod: Pod) -> bool:
        if names.CONVERTED_REQUEST not in pod.metadata.annotations or not is_pending(pod):
            return False
        return any(not ref.key and not self._world.template(ref.template) for ref in claim_refs(pod))

    async def _make(self, pod: Pod) -> bool:
        """Whether there is nothing left to do."""
        namespace = pod.metadata.namespace
        try:
            body = self._bridge.template(pod)
            if body is None:
                return True
            made = await self._writer.create(RESOURCE_CLAIM_TEMPLATE, body, namespace=namespace)
            log.info("claim template %s made again for pod %s", made.key, pod.key)
        except AlreadyExists:
            return True
        except (ValueError, ClusterError) as error:
            log.warning("claim template of pod %s not made: %s", pod.key, error)
            note = f"its claim template is missing and could not be made again: {error}"
            self._events.tell(POD, pod, messages.warning(messages.INVALID_CLAIM, note))
            return isinstance(error, ValueError)
        return True
