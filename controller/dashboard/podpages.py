"""Tables of pods with claims, and of claims. HTML: `templates/pods.html`, `templates/claims.html`.

Called by `pages`. Values only; see `cardpages`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from controller.dashboard.pacing import paced
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query
from controller.inventory import Amounts, DeviceId, Holding, holdings_of, used_of
from controller.views.columns import Column, Columns, plain, values
from controller.views.overview import PlacedPod, node_of
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.podclaims import claim_keys, claim_refs
from hami_dra.api.podstate import is_finished, is_probe
from hami_dra.api.resource import ResourceClaim

T = TypeVar("T", bound=Object)
_POLICIES: Final = (names.NODE_POLICY, names.DEVICE_POLICY)


def _created(item: Object) -> str:
    """Return an RFC 3339 time; empty if unknown."""
    return item.metadata.creation_timestamp or ""


def _heads(name: str, title: str) -> tuple[Column[T], Column[T]]:
    """Return the columns of key and age."""
    exported: dict[str, Callable[[T], object]] = {
        "namespace": lambda item: item.metadata.namespace,
        name: lambda item: item.metadata.name,
    }
    age: Column[T] = plain("age", _created, "Age", exported="created", sort=lambda item: (_created(item), item.key))
    return Column(name, title, lambda item: item.key, exported), age


class PodTable(PageTable[Pod]):
    asks = ("q", "state")

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.columns: Columns[Pod] = (
            *_heads("pod", "Pod"),
            plain(
                "phase",
                lambda pod: pod.status.phase or "Pending",
                "Phase",
                sort=lambda pod: (pod.status.phase, pod.key),
                classes="short wide-only",
            ),
            plain("node", lambda pod: pod.spec.node_name, "Node", sort=lambda pod: (pod.spec.node_name, pod.key)),
            plain("devices", lambda pod: PlacedPod.of(pod, source.claim).devices, "Devices", classes=""),
            plain("memory", self._memory, "Memory", exported="memoryBytes", sort=True, number=True),
            plain("cores", self._cores, "Cores", sort=True, number=True),
            plain("policy", _policy, "Policy", classes="short wide-only"),
            Column("claims", "Claims", classes="wide-only"),
            plain("gang", lambda pod: key.name if (key := source.gang_key(pod)) is not None else ""),
        )

    async def context(self, query: Query) -> Context:
        policies = self._source.scheduling.policies
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

    def shown(self, row: Pod) -> dict[str, Any]:
        totals = self._source.inventory.devices.cores_total
        missing = sum(not ref.key for ref in claim_refs(row))
        return {
            **values(self.columns, row),
            "key": row.key,
            "claims": (*claim_keys(row), *[""] * missing),  # empty: does not exist yet
            "cores_total": sum(int(totals[place]) for place, _ in self._held(row)),
            "gang_key": self._source.gang_key(row),
        }

    def _memory(self, pod: Pod) -> int:
        """Return the bytes that its claims hold on all their devices."""
        return sum(amounts[2] for amounts in self._amounts(pod))

    def _cores(self, pod: Pod) -> int:
        return sum(amounts[1] for amounts in self._amounts(pod))

    def _amounts(self, pod: Pod) -> Iterator[Amounts]:
        """Yield what its claims hold of each device."""
        devices = self._source.inventory.devices
        for row, holding in self._held(pod):
            yield used_of(devices.device(row), 1, holding.consumed or {}, exclusive=holding.consumed is None)

    def _held(self, pod: Pod) -> Iterator[tuple[int, Holding]]:
        """Yield the row of each published device of which its claims hold something, and what."""
        devices = self._source.inventory.devices
        for key in claim_keys(pod):
            claim = self._source.claim(key)
            for holding in holdings_of(claim.status.allocation) if claim is not None else ():
                if (row := devices.row_of(holding.device)) >= 0:
                    yield row, holding


def _policy(pod: Pod) -> str:
    """Return node and device policy that its annotations ask for; empty: the controller's defaults."""
    return " / ".join(value for name in _POLICIES if (value := pod.metadata.annotations.get(name)))


class ClaimTable(PageTable[ResourceClaim]):
    asks = ("q", "state")

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.columns: Columns[ResourceClaim] = (
            *_heads("claim", "Claim"),
            Column(
                "state",
                "State",
                lambda claim: (claim.status.allocation is None, not claim.status.reserved_for, claim.key),
                {
                    "allocated": lambda claim: claim.status.allocation is not None,
                    "reserved": lambda claim: bool(_reserved_for(claim)),
                },
            ),
            plain("node", self._node, "Node"),
            plain("devices", lambda claim: tuple(result.device_id for result in claim.results), "Devices", classes=""),
            plain("pods", self._pods, "Pods", classes=""),
        )

    async def find(self, query: Query) -> list[ResourceClaim]:
        text, state = query.get("q", "").strip(), query.get("state", "")
        return [
            claim
            async for claim in paced(self._source.claims())
            if (not text or text in claim.key)
            and (not state or state == ("allocated" if claim.status.allocation is not None else "waiting"))
        ]

    def shown(self, row: ResourceClaim) -> dict[str, Any]:
        return values(self.columns, row)

    def _node(self, claim: ResourceClaim) -> str:
        devices = (DeviceId(result.driver, result.pool, result.device) for result in claim.results)
        return node_of(self._source.inventory, devices)

    def _pods(self, claim: ResourceClaim) -> list[str]:
        """Return `namespace/name` of the pods that it is reserved for, else of those that refer to it."""
        return sorted(_reserved_for(claim) or [pod.key for pod in self._source.pods_of(claim.key)])


def _reserved_for(claim: ResourceClaim) -> list[str]:
    """Return `namespace/name` of pods."""
    return [f"{claim.metadata.namespace}/{each.name}" for each in claim.status.reserved_for if each.resource == "pods"]
