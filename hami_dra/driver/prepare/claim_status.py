"""`status.devices` of a claim: the state of each device that this driver prepared, for people and
for other controllers.

`entries` is pure: in: the claim and its record (or the reason of a failure), the time; out: JSON of
AllocatedDeviceStatus. `ClaimStatusWriter` writes it asynchronously: an answer to kubelet never
waits for it, and nothing depends on it.

Written by server-side apply with the driver as field manager: the list is keyed by driver, pool,
device and shareID, so entries of other drivers are not touched. It needs `patch` on
`resourceclaims/status` and `associated-node:patch` on `resourceclaims/driver`. The API server
accepts only devices that the claim is allocated, and removes entries itself when the claim is
deallocated; so nothing is removed when a claim is unprepared, as in other drivers.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hami_dra.api import names
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.api.quantity import Format, Quantity
from hami_dra.api.resource import AllocatedDeviceStatus, ResourceClaim
from hami_dra.api.times import timestamp
from hami_dra.driver.prepare.records import GrantedDevice, Record
from hami_dra.driver.workqueue import WorkQueue
from hami_dra.kube.protocol import Cluster, Conflict, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

Json = dict[str, Any]

READY: Final = "Ready"
PREPARED: Final = "Prepared"
FAILED: Final = "PrepareFailed"
_MOST_MESSAGE: Final = 1_000
"""Characters; the API accepts 32768, people read fewer."""
_MOST_DATA: Final = 10 * 1024
"""AllocatedDeviceStatusDataMaxLength."""
_MOST_WAITING: Final = 4_096
_AT_ONCE: Final = 8
_PER_NAMESPACE: Final = 2
"""Concurrent writes of claims, and those of one namespace: its admission webhook may be slow."""


# --- content --------------------------------------------------------------------------------------


def entries(driver: str, claim: ResourceClaim, outcome: Record | str, now: datetime) -> list[Json]:
    """Return an entry for each device of `driver` in the allocation; `outcome`: its record, or why it failed."""
    allocation = claim.status.allocation
    held = (
        {(each.pool, each.device, each.share_id): each for each in outcome.held} if isinstance(outcome, Record) else {}
    )
    notes = outcome.notes if isinstance(outcome, Record) else ()
    found: OrderedDict[tuple[str, str, str], Json] = OrderedDict()
    for result in allocation.devices.results if allocation is not None else ():
        key = (result.pool, result.device, result.share_id or "")
        if result.driver != driver or key in found:
            continue
        entry: Json = {"driver": driver, "pool": result.pool, "device": result.device}
        if result.share_id:
            entry["shareID"] = result.share_id
        entry["conditions"] = [_condition(driver, key, claim, outcome, now)]
        if key in held:
            entry["data"] = _data(held[key], notes)
        found[key] = entry
    return list(found.values())


def _condition(
    driver: str, key: tuple[str, str, str], claim: ResourceClaim, outcome: Record | str, now: datetime
) -> Json:
    ready = isinstance(outcome, Record)
    status = "True" if ready else "False"
    condition: Json = {
        "type": READY,
        "status": status,
        "reason": PREPARED if ready else FAILED,
        "message": "the device is ready for the containers of this claim"
        if isinstance(outcome, Record)
        else outcome[:_MOST_MESSAGE],
        "lastTransitionTime": _since(driver, key, claim.status.devices, status) or timestamp(now),
    }
    if claim.metadata.generation:
        condition["observedGeneration"] = claim.metadata.generation
    return condition


def _since(driver: str, key: tuple[str, str, str], known: Sequence[AllocatedDeviceStatus], status: str) -> str | None:
    for entry in known:
        if (entry.driver, entry.pool, entry.device, entry.share_id or "") == (driver, *key):
            for condition in entry.conditions:
                if (condition.type, condition.status) == (READY, status):
                    return condition.last_transition_time
    return None


def _data(held: GrantedDevice, notes: Sequence[str]) -> Json:
    data: Json = {"uuid": held.card}
    if held.admin:
        data["adminAccess"] = True
    elif held.shared and not held.whole:
        formats = {names.CAP_MEMORY: Format.BINARY_SI}
        data["limits"] = {
            name: str(Quantity.from_int(amount, formats.get(name, Format.DECIMAL_SI)))
            for name, amount in sorted(held.consumed.items())
        }
    if held.partition is not None and held.partition.by_runtime:
        data["partition"] = {"profile": held.partition.profile}
    elif held.partition is not None and held.partition.uuid:
        data["partition"] = {
            "uuid": held.partition.uuid,
            "profile": held.partition.profile,
            "placement": held.partition.start,
        }
    if held.assigned:
        data["assigned"] = dict(held.assigned)
    if notes and len(json.dumps(data | {"notes": list(notes)})) <= _MOST_DATA:
        data["notes"] = list(notes)
    return data


# --- writing --------------------------------------------------------------------------------------


@dataclass(eq=False)
class ClaimStatusWriter:
    """Write the status; `run()` until cancelled. `add` never blocks and never fails."""

    cluster: Cluster
    driver: str
    now: Callable[[], datetime]
    _waiting: dict[str, tuple[ResourceClaim, Record | str]] = field(default_factory=dict)
    _written: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Uid → last content written, without times, so that a repeated call of kubelet writes nothing.

    Only of prepared claims: the API server empties the status when a claim is deallocated, and a
    named claim may then get the same allocation again.
    """
    _queue: WorkQueue[tuple[str, str]] = field(init=False)
    """Namespaces and uids."""

    def __post_init__(self) -> None:
        self._queue = WorkQueue(self._write, workers=_AT_ONCE, lane=lambda key: key[0], width=_PER_NAMESPACE)

    async def run(self) -> None:
        await self._queue.run()

    def add(self, claims: Mapping[str, ResourceClaim], outcomes: Mapping[str, Record | str]) -> None:
        """Queue the status after a prepare call; by the uid in kubelet's call."""
        for uid, outcome in outcomes.items():
            claim = claims.get(uid)
            if claim is None or claim.metadata.uid != uid or len(self._waiting) >= _MOST_WAITING:
                continue
            self._waiting[uid] = (claim, outcome)
            self._queue.add((claim.metadata.namespace, uid))

    def forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._waiting.pop(uid, None)
            self._written.pop(uid, None)

    async def _write(self, key: tuple[str, str]) -> None:
        _, uid = key
        if uid not in self._waiting:
            return
        claim, outcome = self._waiting[uid]
        said = entries(self.driver, claim, outcome, self.now())
        signature = _without_times(said)
        if said and self._written.get(uid) != signature:
            await self._apply(claim, said)
            if uid in self._waiting:  # else it was unprepared meanwhile
                self._written[uid] = signature
            while len(self._written) > _MOST_WAITING:
                self._written.popitem(last=False)
        if self._waiting.get(uid) == (claim, outcome):
            del self._waiting[uid]

    async def _apply(self, claim: ResourceClaim, said: list[Json]) -> None:
        """Apply the status. Raises ClusterError if a retry may succeed."""
        meta = claim.metadata
        body = {
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "status": {"devices": said},
        }
        try:
            await self.cluster.patch(
                RESOURCE_CLAIM, meta.name, body, namespace=meta.namespace, subresource="status", manager=self.driver
            )
        except (NotFound, Conflict):
            log.debug("ResourceClaim %s was deleted or replaced: its status is not written", claim.key)
        except (Invalid, Forbidden) as error:
            log.warning("ResourceClaim %s: status.devices is not written: %s", claim.key, error)


def _without_times(said: Sequence[Json]) -> str:
    bare = [
        entry | {"conditions": [{**each, "lastTransitionTime": ""} for each in entry["conditions"]]} for entry in said
    ]
    return json.dumps(bare, sort_keys=True)
