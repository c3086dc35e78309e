"""The life of the ResourceClaimTemplates that conversions need: made when missing, collected when unused.

`TemplateMaker` is used by the admission server; `TemplateCollector` is run by the leading controller. A template that is
collected in the instant a new pod refers to it is no loss: the controller makes it again from the pod's annotation.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.bridge.request import same_content
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaimTemplate
from hami_dra.cluster.protocol import AlreadyExists, Cluster, ClusterError, Conflict, NotFound, Unavailable

log = logging.getLogger(__name__)

KIND: Final = kinds.RESOURCE_CLAIM_TEMPLATE
OURS: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY},{names.TEMPLATE_HASH_LABEL}"
"""Label selector: templates that a webhook or controller made. Those of `hami-dra convert` are the user's."""
_REMEMBERED_MOST: Final = 10_000
_ATTEMPTS: Final = 3


class TemplateTaken(Exception):
    """A template of this name asks for something else; the message says what to do."""


class TemplateMaker:
    """`remember`: seconds for which a template that was seen is taken to exist still."""

    def __init__(
        self, cluster: Cluster, *, remember: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._remember = remember
        self._clock = clock
        self._seen: dict[tuple[str, str], float] = {}

    async def ensure(self, template: Mapping[str, Any]) -> None:
        """Returns when a template of this name and content exists. Raises TemplateTaken or a ClusterError."""
        name, namespace = template["metadata"]["name"], template["metadata"]["namespace"]
        if self._seen.get((namespace, name), float("-inf")) > self._clock() - self._remember:
            return
        for _ in range(_ATTEMPTS):
            try:
                stored = await self._cluster.get_raw(KIND, name, namespace)
            except NotFound:
                try:
                    await self._cluster.create(KIND, template, namespace=namespace)
                except AlreadyExists:
                    continue  # another replica was faster: look at what it made
                break
            if not same_content(template, stored):
                raise TemplateTaken(
                    f"ResourceClaimTemplate {namespace}/{name} exists with other content than its name stands for; "
                    "delete it, and the webhook makes the right one"
                )
            break
        else:
            raise Unavailable(f"ResourceClaimTemplate {namespace}/{name} comes and goes")
        if len(self._seen) >= _REMEMBERED_MOST:
            self._seen.clear()
        self._seen[(namespace, name)] = self._clock()


@dataclass(frozen=True, slots=True)
class Collection:
    """What `collect` found: templates to delete now, and since when the others have been unused (by uid)."""

    delete: tuple[ResourceClaimTemplate, ...]
    unused_since: dict[str, float]


def collect(
    templates: Iterable[ResourceClaimTemplate],
    pods: Iterable[Pod],
    unused_since: Mapping[str, float],
    *,
    now: float,
    after: float,
) -> Collection:
    """A template may go when no pod has referred to it for `after` seconds. Pure; `unused_since` is the last answer's.

    The time counts from when this was first seen, so a new leader starts afresh. Templates without our labels, or whose
    name is not their hash, are nobody's to delete.
    """
    used = {
        (pod.metadata.namespace, entry.resource_claim_template_name)
        for pod in pods
        for entry in pod.spec.resource_claims
    }
    delete = []
    still_unused = {}
    for template in templates:
        meta = template.metadata
        ours = meta.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
        if not ours or meta.name != f"hami-{meta.labels.get(names.TEMPLATE_HASH_LABEL)}" or meta.deletion_timestamp:
            continue
        if (meta.namespace, meta.name) not in used:
            since = unused_since.get(meta.uid, now)
            still_unused[meta.uid] = since
            if now - since >= after:
                delete.append(template)
    return Collection(tuple(delete), still_unused)


class TemplateCollector:
    """`pods`: all pods as the controller knows them. `may_write` is asked before each delete (leadership)."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Callable[[], Iterable[Pod]],
        *,
        may_write: Callable[[], bool] = lambda: True,
        interval: float = 300.0,
        after: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._may_write = may_write
        self._interval = interval
        self._after = after
        self._clock = clock
        self._unused_since: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled. What goes wrong is logged and tried again at the next round."""
        while True:
            try:
                await self.once()
            except ClusterError as error:
                log.warning("unused claim templates not collected: %s", error)
            await asyncio.sleep(self._interval)

    async def once(self) -> None:
        """Raises ClusterError when the templates cannot be listed."""
        listing = await self._cluster.list(KIND, label_selector=OURS)
        found = collect(listing.items, self._pods(), self._unused_since, now=self._clock(), after=self._after)
        self._unused_since = found.unused_since
        for template in found.delete:
            if not self._may_write():
                return
            await self._delete(template)

    async def _delete(self, template: ResourceClaimTemplate) -> None:
        meta = template.metadata
        try:
            await self._cluster.delete(
                KIND, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (NotFound, Conflict):
            log.debug("template %s changed or went before it was collected", template.key)
        except ClusterError as error:
            log.warning("unused claim template %s not deleted: %s", template.key, error)
        else:
            log.info("deleted claim template %s: unused for %g s", template.key, self._after)
