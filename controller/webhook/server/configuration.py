"""The webhook's certificate authority in its own webhook configurations.

Called by `controller.webhook.server`. Nothing else in the configurations is changed: which requests
the webhook receives, and what happens when it does not answer, is decided at installation
(`controller.webhook.installation`).
"""

import base64
from copy import deepcopy
from typing import Any, Final

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.kube.protocol import Cluster, Conflict, NotFound

_ATTEMPTS: Final = 5


async def ensure_trust(cluster: Cluster, name: str, authorities: bytes) -> bool:
    """Make every webhook of the configurations of this name trust exactly these PEM certificates.

    Returns whether something had to be changed. Raises NotFound if the MutatingWebhookConfiguration
    is not installed, and other ClusterErrors; the other one only gives advice.
    """
    changed = await _ensure(cluster, kinds.MUTATING_WEBHOOK, name, authorities)
    try:
        return await _ensure(cluster, kinds.VALIDATING_WEBHOOK, name, authorities) or changed
    except NotFound:
        return changed


async def _ensure(cluster: Cluster, kind: Kind[Any], name: str, authorities: bytes) -> bool:
    wanted = base64.b64encode(authorities).decode()
    attempt = 0
    while True:
        raw = await cluster.get_raw(kind, name)
        webhooks: list[dict[str, Any]] = deepcopy(raw.get("webhooks") or [])
        if all(webhook["clientConfig"].get("caBundle") == wanted for webhook in webhooks):
            return False
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = wanted
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        try:
            # A merge patch replaces the whole list, so the list must come from the version just
            # read.
            await cluster.patch(kind, name, {"metadata": metadata, "webhooks": webhooks})
        except Conflict:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
        else:
            return True
