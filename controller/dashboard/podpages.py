"""Tables of pods with claims, and of claims. HTML: `templates/pods.html`, `templates/claims.html`.

Called by `pages`. Values only; see `cardpages`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from controller.dashboard.pacing import paced
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query
from controller.scheduling.gangs import GangKey
from controller.scheduling.inventory import DeviceId, Holding, holdings_of, used_of
from controller.views.columns import Column, Columns, plain
from controller.views.overview import PlacedPod, placed_pod
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys, claim_refs
from hami_dra.api.podstate import is_finished, is_probe
from hami_dra.api.resource import ResourceClaim

_POLICIES: Final = (names.NODE_POLICY, names.DEVICE_POLICY)


class PodRow(Struct, frozen=True):
    placed: PlacedPod
    namespace: str
    name: str
    created: str
    """RFC 3339; empty if unknown."""
    phase: str
    claims: tuple[str, ...]
    """`namespace/name`; empty entries are claims that do not exist yet."""
    memory: int
    """Bytes allocated on all its devices."""
    cores: int
    cores_total: int
    """Of all its devices."""
    policy: str
    """Node and device policy that its annotations ask for; empty: the controller's defaults."""
    gang: GangKey | None = None


def created_and_key(item: Pod | ResourceClaim) -> tuple[str, str]:
    """Return the key of a column that sorts by age."""
    return item.metadata.creation_timestamp or "", item.key


def _pod_columns(amounts: Callable[[Pod], tuple[int, int]]) -> Columns[Pod, PodRow]:
    """Return the columns of the pods page. `amounts`: memory and cores that a pod holds."""
    return (
        Column(
            "pod", "Pod", lambda pod: pod.key, {"namespace": lambda row: row.namespace, "pod": lambda row: row.name}
        ),
        plain("age", lambda row: row.created, "Age", sort=created_and_key, exported="created", classes="short"),
        plain(
            "phase",
            lambda row: row.phase,
            "Phase",
            sort=lambda pod: (pod.status.phase, pod.key),
            classes="short wide-only",
        ),
        plain(
            "node",
            lambda row: row.placed.node,
            "Node",
            sort=lambda pod: (pod.spec.node_name, pod.key),
            classes="short",
        ),
        plain("devices", lambda row: row.placed.devices, "Devices"),
        plain(
            "memory",
            lambda row: row.memory,
            "Memory",
            sort=lambda pod: amounts(pod)[0],
            exported="memoryBytes",
            number=True,
            classes="short",
        ),
        plain("cores", lambda row: row.cores, "Cores", sort=lambda pod: amounts(pod)[1], number=True, classes="short"),
        plain("policy", lambda row: row.policy, "Policy", classes="short wide-only"),
        Column("claims", "Claims", classes="wide-only"),
        plain("gang", lambda row: row.gang.name if row.gang is not None else ""),
    )


class PodTable(PageTable[Pod, PodRow]):
    asks = ("q", "state")

    def __init__(self, source: Source) -> None:
        self._source = source
        self.columns = _pod_columns(self._amounts)

    async def context(self, query: Query) -> Context:
        policies = self._source.policies
        return {
            **await super().context(query),
            "reserved": {each.pod: each for each in reserved(self._source)},
            "defaults": f"{policies.node_policy} / {policies.device_policy.name}",
        }

    async def find(self, query: Query) -> list[Pod]:
        text, state = query.get("q", "").strip(), query.get("state", "")
        return [
            pod
            async for pod in paced(self._source.pods())
            if pod.spec.resource_claims
            and not is_finished(pod)
            and not is_probe(pod)
            and (not text or text in pod.key or text == pod.spec.node_name)
            and (not state or state == ("placed" if pod.spec.node_name else "waiting"))
        ]

    def row(self, item: Pod) -> PodRow:
        missing = sum(not ref.key for ref in claim_refs(item))
        memory, cores = self._amounts(item)
        totals = self._source.inventory.devices.cores_total
        annotations = item.metadata.annotations
        return PodRow(
            placed_pod(item, self._source.claim),
            item.metadata.namespace,
            item.metadata.name,
            item.metadata.creation_timestamp or "",
            item.status.phase or "Pending",
            (*claim_keys(item), *[""] * missing),
            memory,
            cores,
            sum(int(totals[row]) for row, _ in self._held(item)),
            " / ".join(value for name in _POLICIES if (value := annotations.get(name))),
            self._source.gang_key(item),
        )

    def _amounts(self, pod: Pod) -> tuple[int, int]:
        """Return memory in bytes and cores that its claims hold on all their devices."""
        devices = self._source.inventory.devices
        memory = cores = 0
        for row, holding in self._held(pod):
            used = used_of(devices.device(row), 1, holding.consumed or {}, exclusive=holding.consumed is None)
            cores, memory = cores + used[1], memory + used[2]
        return memory, cores

    def _held(self, pod: Pod) -> Iterator[tuple[int, Holding]]:
        """Yield the row of each published device of which its claims hold something, and what."""
        devices = self._source.inventory.devices
        for key in claim_keys(pod):
            claim = self._source.claim(key)
            for holding in holdings_of(claim.status.allocation) if claim is not None else ():
                if (row := devices.row_of(holding.device)) >= 0:
                    yield row, holding


class ClaimRow(Struct, frozen=True):
    key: str
    namespace: str
    name: str
    node: str
    pods: tuple[str, ...]
    """`namespace/name` of the pods it is reserved for, else of those that refer to it."""
    devices: tuple[str, ...]
    """`driver/pool/device`"""
    is_allocated: bool
    is_reserved: bool
    created: str = ""


_CLAIMS: Final[Columns[ResourceClaim, ClaimRow]] = (
    Column(
        "claim",
        "Claim",
        lambda claim: claim.key,
        {"namespace": lambda row: row.namespace, "claim": lambda row: row.name},
    ),
    plain("age", lambda row: row.created, "Age", sort=created_and_key, exported="created", classes="short"),
    Column(
        "state",
        "State",
        lambda claim: (claim.status.allocation is None, not claim.status.reserved_for, claim.key),
        {"allocated": lambda row: row.is_allocated, "reserved": lambda row: row.is_reserved},
        classes="short",
    ),
    plain("node", lambda row: row.node, "Node", classes="short"),
    plain("devices", lambda row: row.devices, "Devices"),
    plain("pods", lambda row: row.pods, "Pods"),
)


class ClaimTable(PageTable[ResourceClaim, ClaimRow]):
    columns = _CLAIMS
    asks = ("q", "state")

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, query: Query) -> list[ResourceClaim]:
        text, state = query.get("q", "").strip(), query.get("state", "")
        return [
            claim
            async for claim in paced(self._source.claims())
            if (not text or text in claim.key)
            and (not state or state == ("allocated" if claim.status.allocation is not None else "waiting"))
        ]

    def row(self, item: ResourceClaim) -> ClaimRow:
        users = [
            f"{item.metadata.namespace}/{each.name}" for each in item.status.reserved_for if each.resource == "pods"
        ]
        pods = users or [pod.key for pod in self._source.pods_of(item.key)]
        return ClaimRow(
            item.key,
            item.metadata.namespace,
            item.metadata.name,
            self._node_of(item),
            tuple(sorted(pods)),
            tuple(result.device_id for result in item.results),
            item.status.allocation is not None,
            bool(users),
            item.metadata.creation_timestamp or "",
        )

    def _node_of(self, claim: ResourceClaim) -> str:
        inventory = self._source.inventory
        for result in claim.results:
            row = inventory.devices.row_of(DeviceId(result.driver, result.pool, result.device))
            place = int(inventory.devices.node[row]) if row >= 0 else -1
            if place >= 0:
                return inventory.nodes.names[place]
        return ""
