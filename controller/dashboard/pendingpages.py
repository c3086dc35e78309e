"""Tables of pods that wait: by reason on the page, one by one in the export. HTML:
`templates/pending.html`.

Called by `pages`. Values only; see `cardpages`. The reason comes from the stored decision, else from
the pod's PodScheduled condition, else from its scheduling gates (`pending`).
"""

from typing import Final

from controller.dashboard.paging import page_slice
from controller.dashboard.pending import KINDS, PendingGroup, PendingPod, grouped, pending_pods, pods_by_kind
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query, ordered
from controller.views.columns import Column, Columns, plain

_GROUPS: Final[Columns[PendingGroup, PendingGroup]] = (
    Column("", sort=lambda group: -len(group.pods)),  # what keeps most pods waiting comes first
    Column("pods", sort=lambda group: len(group.pods)),
    Column("age", sort=lambda group: group.oldest.since),
)
_PODS: Final[Columns[PendingPod, PendingPod]] = (
    plain("namespace", lambda pod: pod.namespace),
    plain("pod", lambda pod: pod.name),
    plain("created", lambda pod: pod.since),
    plain("cause", lambda pod: pod.cause),
    plain("message", lambda pod: pod.message),
    plain("node", lambda pod: pod.node),
    plain("gang", lambda pod: pod.gang.key.name if pod.gang is not None else ""),
    plain("heldDevices", lambda pod: pod.reserved.devices if pod.reserved is not None else ()),
    plain("reasons", lambda pod: [f"{number} {code}" for code, number in pod.reasons]),
)


class PendingTable(PageTable[PendingPod, PendingPod]):
    columns = _PODS

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, query: Query) -> list[PendingPod]:
        return await pending_pods(self._source, query.get("q", "").strip())

    async def context(self, query: Query) -> Context:
        kind = query.get("kind", "")
        groups = grouped(await self.find(query))
        shown = [group for group in groups if not kind or group.kind == kind]
        items, sort = await ordered(shown, _GROUPS, query)
        items.sort(key=lambda group: KINDS.index(group.kind))
        return {
            "leaf": page_slice(items, query.get("leaf", ""), self.on_leaf),
            "pods": sum(len(group.pods) for group in shown),
            "kinds": pods_by_kind(groups),
            "sees_all": self._source.namespaces is None,
            "asked": {"q": query.get("q", "").strip(), "kind": kind, **sort},
        }
