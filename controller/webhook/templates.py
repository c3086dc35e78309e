"""The lifecycle of ResourceClaimTemplates of pods that were converted in files, or by an earlier
version: comparison with a stored one, and deletion.

The leading controller creates those that are lost (`controller.reconcile.binding.converted_claims`)
and runs `TemplateCollector`. It does no harm to collect a template in the instant a new pod refers to it:
the controller recreates it from the pod's annotation.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from hami_dra.api import kinds, names
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, NotFound

log = logging.getLogger(__name__)

KIND: Final = kinds.RESOURCE_CLAIM_TEMPLATE
AFTER: Final = 60.0
"""Seconds that a template may exist without a pod that refers to it."""
INTERVAL: Final = 15.0


def is_same_request(body: Mapping[str, Any], stored: ResourceClaim | ResourceClaimTemplate) -> bool:
    """Return whether a stored claim or template requests the same as `body`, one as JSON. Metadata may differ."""
    ours = msgspec.json.decode(msgspec.json.encode(body), type=type(stored), strict=False)
    return _content(ours) == _content(stored)


def _content(item: ResourceClaim | ResourceClaimTemplate) -> object:
    """Return what is requested, with parameters as values. Returns None if it has parameters that cannot be read."""
    devices = (item.spec if isinstance(item, ResourceClaim) else item.spec.spec).devices
    try:
        config = [
            (entry.requests, entry.opaque.driver, msgspec.json.decode(entry.opaque.parameters))
            for entry in devices.config
            if entry.opaque is not None
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return devices.requests, devices.constraints, config


class Collection(Struct, frozen=True):
    """Templates to delete now, and by UID the time since when the others are unused."""

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
    """Return the templates that no pod has referred to for `after` seconds. Pure.

    `is_used` answers for a `namespace/name`; `unused_since` comes from the previous result. The
    time counts from the first such observation, so a new leader starts again. Templates without our
    labels, or whose name is not their hash, are never deleted.
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
    """Return whether a controller created it. Those of `hami-dra convert` belong to the user and lack the label."""
    labels = template.metadata.labels
    ours = labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
    return ours and template.metadata.name == f"hami-{labels.get(names.TEMPLATE_HASH_LABEL)}"


@dataclass(slots=True)
class TemplateCollector:
    """Delete unused templates, as the leader.

    `templates` are those that the controller knows, `is_used` says whether a pod refers to
    `namespace/name`, and `may_write` is called before each delete (leadership).
    """

    cluster: Cluster
    templates: Callable[[], Iterable[ResourceClaimTemplate]]
    is_used: Callable[[str], bool]
    _: KW_ONLY
    may_write: Callable[[], bool] = lambda: True
    interval: float = INTERVAL
    after: float = AFTER
    clock: Callable[[], float] = time.monotonic
    _unused_since: dict[str, float] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Run until cancelled. Failed deletes are logged and tried again in the next round."""
        while True:
            await self.once()
            await asyncio.sleep(self.interval)

    async def once(self) -> None:
        found = collect(list(self.templates()), self.is_used, self._unused_since, now=self.clock(), after=self.after)
        self._unused_since = found.unused_since
        for template in found.delete:
            if not self.may_write():
                return
            await self._delete(template)

    async def _delete(self, template: ResourceClaimTemplate) -> None:
        meta = template.metadata
        version = meta.resource_version
        try:
            await self.cluster.delete(KIND, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version)
        except (NotFound, Conflict):
            log.debug("template %s changed or was deleted before it could be collected", template.key)
        except ClusterError as error:
            log.warning("unused claim template %s not deleted: %s", template.key, error)
        else:
            log.info("deleted claim template %s: unused for %g s", template.key, self.after)
