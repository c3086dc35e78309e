"""The parts of an allocation that `decide` leaves out to stay pure: the timestamp, and the id of
each share.

Called by `reconcile` right before the status is written, and by `simulate`. The only module that
decides which results get a share id.
"""

import uuid
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from hami_dra.api.times import timestamp

Json = dict[str, Any]


def stamped(allocation: Mapping[str, Any], now: datetime, new_share_id: Callable[[], str]) -> Json:
    """Return the AllocationResult (JSON) with an allocation timestamp, and a share id for each
    result that takes a share.

    Without the timestamp kube-scheduler (1.36 and later) can never reserve the claim; without a
    share id it counts the whole device as taken. A result takes a share if it has
    `consumedCapacity`, even an empty one.
    """
    result = deepcopy(dict(allocation))
    for device in (result.get("devices") or {}).get("results") or ():
        if "consumedCapacity" in device:
            device["shareID"] = new_share_id()
    result["allocationTimestamp"] = timestamp(now)
    return result


def new_share_id() -> str:
    """Return a random UUID in lower case, as the API server requires."""
    return str(uuid.uuid4())
