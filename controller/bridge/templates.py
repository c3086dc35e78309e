"""The life of the ResourceClaimTemplates that conversions need: is a stored one the right one, and when may it go.

The leading controller makes them (`controller.reconcile.templates`) and runs `TemplateCollector`. A template that is
collected in the instant a new pod refers to it is no loss: the controller makes it again from the pod's annotation.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hami_dra.api import kinds, names
from hami_dra.api.resource import ResourceClaimTemplate
from hami_dra.cluster.protocol import Cluster, ClusterError, Conflict, NotFound

log = logging.getLogger(__name__)

KIND: Final = kinds.RESOURCE_CLAIM_TEMPLATE
AFTER: Final = 60.0
"""Seconds without a pod that refers to a template until it goes."""
INTERVAL: Final = 15.0


def is_template(body: Mapping[str, Any], stored: ResourceClaimTemplate) -> bool:
    """Whether a stored template asks for what `body`, a template as JSON, asks for. Metadata may differ."""
    ours = msgspec.json.decode(msgspec.json.encode(body), type=ResourceClaimTemplate, strict=False)
    return _content(ours) == _content(stored)


def _content(template: ResourceClaimTemplate) -> object:
    """All that a claim takes over, parameters as values; None where somebody wrote parameters that cannot be read."""
    devices = template.spec.spec.devices
    try:
        config = [
            (entry.requests, entry.opaque.driver, msgspec.json.decode(entry.opaque.parameters))
            for entry in devices.config
            if entry.opaque is not None
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return devices.requests, devices.constraints, config


@dataclass(frozen=True, slots=True)
class Collection:
    """What `collect` found: templates to delete now, and since when the others have been unused (by uid)."""

    delete: tuple[ResourceClaimTemplate, ...]
    unused_since: dict[str, float]


def collect(
    templates: Iterable[ResourceClaimTemplate],
    is_used: Callable[[str], bool],
    unused_since: Mapping[str, float],
    *,
    now: float,
    after: float,
) -> Collection:
    """Find the templates that no pod has referred to for `after` seconds. Pure.

    `is_used` is asked about `namespace/name`; `unused_since` is the last answer's. The time counts from when
    this was first seen, so a new leader starts again. Templates without our labels, or whose name is not their
    hash, are nobody's to delete.
    """
    delete = []
    still_unused = {}
    for template in templates:
        meta = template.metadata
        if not _is_ours(template) or meta.deletion_timestamp or is_used(template.key):
            continue
        since = unused_since.get(meta.uid, now)
        still_unused[meta.uid] = since
        if now - since >= after:
            delete.append(template)
    return Collection(tuple(delete), still_unused)


def _is_ours(template: ResourceClaimTemplate) -> bool:
    """Whether a controller made it. Those of `hami-dra convert` lack the label: they are the user's."""
    labels = template.metadata.labels
    ours = labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
    return ours and template.metadata.name == f"hami-{labels.get(names.TEMPLATE_HASH_LABEL)}"


class TemplateCollector:
    """Delete unused templates, as the leader.

    `templates` are those that the controller knows, `is_used` says whether a pod refers to `namespace/name`, and
    `may_write` is asked before each delete (leadership).
    """

    def __init__(
        self,
        cluster: Cluster,
        templates: Callable[[], Iterable[ResourceClaimTemplate]],
        is_used: Callable[[str], bool],
        *,
        may_write: Callable[[], bool] = lambda: True,
        interval: float = INTERVAL,
        after: float = AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._templates = templates
        self._is_used = is_used
        self._may_write = may_write
        self._interval = interval
        self._after = after
        self._clock = clock
        self._unused_since: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled. What cannot be deleted is logged and tried again at the next round."""
        while True:
            await self.once()
            await asyncio.sleep(self._interval)

    async def once(self) -> None:
        found = collect(
            list(self._templates()), self._is_used, self._unused_since, now=self._clock(), after=self._after
        )
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
