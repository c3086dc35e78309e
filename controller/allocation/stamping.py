"""The parts of an allocation that `decide` leaves out to stay pure: the timestamp, and the id of
each share.

Called by `reconcile` right before the status is written, and by `simulate`. The only module that
decides which results get a share id.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from hami_dra.api.times import timestamp

Json = dict[str, Any]


def stamped(allocation: Mapping[str, Any], now: datetime, new_share_id: Callable[[], str]) -> Json:
    """Return the AllocationResult (JSON) with an allocation timestamp, and a share id for each
    result that takes a share. Changes nothing in place; the rest is shared with `allocation`.

    Without the timestamp kube-scheduler (1.36 and later) can never reserve the claim; without a
    share id it counts the whole device as taken. A result takes a share if it has
    `consumedCapacity`, even an empty one.
    """
    devices = allocation.get("devices") or {}
    results = [
        {**result, "shareID": new_share_id()} if "consumedCapacity" in result else result
        for result in devices.get("results") or ()
    ]
    stamp = {"allocationTimestamp": timestamp(now)}
    return {**allocation, "devices": {**devices, "results": results}, **stamp} if results else {**allocation, **stamp}


def new_share_id() -> str:
    """Return a random UUID in lower case, as the API server requires."""
    return str(uuid.uuid4())
