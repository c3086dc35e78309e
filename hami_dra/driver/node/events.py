"""Events on the Node: what its operator must know of the driver, in addition to the log.

Used by `service`. `tell` returns at once; `run` sends. The same text about the same node is sent
once in ten minutes. An event that cannot be sent is logged and lost: no device depends on it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from hami_dra.api.core import Node
from hami_dra.api.kinds import EVENT
from hami_dra.api.printable import event_note
from hami_dra.api.times import micro_timestamp
from hami_dra.kube.guard import LoopGuard, count_nothing
from hami_dra.kube.protocol import Cluster, ClusterError

log = logging.getLogger(__name__)

REPORTER: Final = "hami.io/driver"

_WAITING_MOST: Final = 100
_REPEAT_SECONDS: Final = 600.0
_NAMESPACE: Final = "default"
"""Namespace of events about cluster-scoped objects."""
_NAME_LENGTH: Final = 200


class NodeEvents:
    def __init__(
        self,
        cluster: Cluster,
        identity: str,
        wall: Callable[[], datetime],
        count: Callable[[str], None] = count_nothing,
    ) -> None:
        """Set up the sender. `identity` identifies this process, in at most 128 characters."""
        self._cluster = cluster
        self._identity = identity[:128]
        self._wall = wall
        self._guard = LoopGuard("events", count)
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: dict[tuple[str, str, str], float] = {}
        self._serial = 0

    def tell(self, node: Node, reason: str, note: str, *, warning: bool = True) -> None:
        now = asyncio.get_running_loop().time()
        key = node.metadata.uid, reason, note
        self._sent = {known: at for known, at in self._sent.items() if now - at < _REPEAT_SECONDS}
        if key in self._sent or self._waiting.qsize() >= _WAITING_MOST:
            return
        self._sent[key] = now
        self._serial += 1
        moment = self._wall()
        name = f"{node.metadata.name[:_NAME_LENGTH]}.{int(moment.timestamp() * 1e6):x}{self._serial:04x}"
        self._waiting.put_nowait(
            {
                "metadata": {"name": name, "namespace": _NAMESPACE},
                "eventTime": micro_timestamp(moment),
                "reportingController": REPORTER,
                "reportingInstance": self._identity,
                "action": "Publish",
                "reason": reason,
                "regarding": {
                    "apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid
                },
                "note": event_note(note),
                "type": "Warning" if warning else "Normal",
            }
        )  # fmt: skip

    async def run(self) -> None:
        while True:
            body = await self._waiting.get()
            with self._guard.each(str(body["reason"])):
                try:
                    await self._cluster.create(EVENT, body, namespace=_NAMESPACE)
                except ClusterError as error:
                    log.warning("event not sent: %s", error)
