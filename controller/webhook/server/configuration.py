"""The webhook's certificate authority in its own MutatingWebhookConfiguration.

Called by `controller.webhook.server`. Nothing else in the configuration is changed: which requests
the webhook receives, and what happens when it does not answer, is decided at installation
(`controller.webhook.installation`).
"""

import base64
from copy import deepcopy
from typing import Any, Final

from hami_dra.api import kinds
from hami_dra.kube.protocol import Cluster, Conflict

_ATTEMPTS: Final = 5


async def ensure_trust(cluster: Cluster, name: str, authorities: bytes) -> bool:
    """Make every webhook of the configuration trust exactly these PEM certificates.

    Returns whether something had to be changed. Raises NotFound if the configuration is not
    installed, and other ClusterErrors.
    """
    wanted = base64.b64encode(authorities).decode()
    attempt = 0
    while True:
        raw = await cluster.get_raw(kinds.MUTATING_WEBHOOK, name)
        webhooks: list[dict[str, Any]] = deepcopy(raw.get("webhooks") or [])
        if all(webhook["clientConfig"].get("caBundle") == wanted for webhook in webhooks):
            return False
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = wanted
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        try:
            # A merge patch replaces the whole list, so the list must come from the version just
            # read.
            await cluster.patch(kinds.MUTATING_WEBHOOK, name, {"metadata": metadata, "webhooks": webhooks})
        except Conflict:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
        else:
            return True
