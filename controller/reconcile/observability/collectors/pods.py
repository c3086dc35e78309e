"""One series per pod and card: the pod's allocation. Names and labels of HAMi-DRA; HAMi's optional.

Created by `scrape` for the lifetime of the controller. In: claims, as they change. Out: text.
Incremental: a claim is evaluated if it changed since the last scrape, or if one of its devices was
published again. Nothing is kept of deleted claims.

A pod's holdings on one card are summed over its claims. A claim that several pods share counts for
each of them, as in HAMi-DRA. The container is the first one that uses the claim; empty if only init
containers do.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from controller.cluster.incremental import LogReader
from controller.inventory import Holding, holdings_of, used_of
from controller.reconcile.observability.collectors.cards import card_facts, core_unit
from controller.reconcile.observability.collectors.lines import BLOCK, Gauge, blocks, labels
from controller.views.overview import NO_CARD, CardTable
from hami_dra.api.core import Pod
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.api.podclaims import claim_refs
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.store import Index, Store

_MILLIONTHS: Final = 1_000_000
"""Parts of a card: sums of whole numbers stay exact."""


class _Style(NamedTuple):
    memory: Gauge
    cores: Gauge
    labels: tuple[tuple[str, str], ...]
    per_card: int
    """Value of a whole card: 1 or 100."""


_MEMORY: Final = "Memory of the card that is allocated to the pod."
_OURS: Final = _Style(
    Gauge("hami_dra_vgpu_memory_allocated_bytes", _MEMORY),
    Gauge("hami_dra_vgpu_core_allocated_ratio", "Cores of the card that are allocated to the pod; 1 is a whole card."),
    (("node", "node"), ("device_uuid", "uuid"), ("namespace", "namespace"), ("pod", "pod")),
    1,
)
_SETS: Final = {
    NameSet.HAMI: _Style(
        Gauge("hami_vgpu_memory_allocated_bytes", "vGPU memory allocated from a container"),
        Gauge("hami_vgpu_core_allocated_ratio", "vGPU core allocated from a container, 0 to 100"),
        (
            ("namespace", "namespace"), ("node", "node"), ("pod", "pod"), ("container_index", "container"),
            ("device_uuid", "uuid"), ("zone", "zone"),
        ),
        100,
    ),
    NameSet.HAMI_2_7: _Style(
        Gauge("vGPUMemoryAllocated", "vGPU memory allocated from a container"),
        Gauge("vGPUCoreAllocated", "vGPU core allocated from a container, 0 to 100"),
        (
            ("podnamespace", "namespace"), ("nodename", "node"), ("podname", "pod"), ("containeridx", "container"),
            ("deviceuuid", "uuid"), ("zone", "zone"),
        ),
        100,
    ),
}  # fmt: skip


class _Part(NamedTuple):
    """What one claim contributes to the series of one pod and card."""

    texts: tuple[str, ...]
    """Labels, one for each style."""
    memory: int
    cores: int
    """Millionths of a card."""


class PodGauges:
    """Series of pods. `pod_of`: by key. `claims` must have the index `device`."""

    def __init__(
        self,
        table: CardTable,
        claims: Store[ResourceClaim],
        pod_of: Callable[[str], Pod | None],
        also: frozenset[NameSet] = frozenset(),
    ) -> None:
        self._table = table
        self._claims = claims
        self._pod_of = pod_of
        self._styles = (_OURS, *(_SETS[each] for each in NameSet if each in also))
        self._sums: tuple[dict[str, list[int]], ...] = tuple({} for _ in self._styles)
        """Labels → [claims, memory, cores]."""
        self._parts: dict[str, list[_Part]] = {}
        """By claim."""
        self._on_row = Index()
        """Row of a device → claims."""
        self._rows_of: dict[str, set[int]] = {}
        self._dirty = {claim.key for claim in claims}
        self._structure = LogReader(table.inventory.devices.structure)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Note a changed claim. To be subscribed."""
        if (
            old is None or new is None or old.status.allocation != new.status.allocation
            or old.status.reserved_for != new.status.reserved_for
        ):  # fmt: skip
            claim = new or old
            assert claim is not None
            if new is None:
                # Immediately: without scrapes, nothing may be kept of deleted claims.
                self._drop(claim.key)
                self._dirty.discard(claim.key)
            else:
                self._dirty.add(claim.key)

    def blocks(self) -> Iterator[str]:
        """Yield text in pieces; empty pieces only let other tasks run."""
        self._table.refresh()
        self._follow()
        looked_at = 0
        while self._dirty:
            self._renew(self._dirty.pop())
            looked_at += 1
            if looked_at % (BLOCK // 20) == 0:
                yield ""
                if not self._structure.is_current:
                    self._table.refresh()
                    self._follow()
        for style, sums in zip(self._styles, self._sums, strict=True):
            entries = [(text, memory, cores) for text, (_, memory, cores) in sums.items()]
            texts = [text for text, _, _ in entries]
            yield from blocks(style.memory, texts, [memory for _, memory, _ in entries])
            yield from blocks(style.cores, texts, [cores * style.per_card / _MILLIONTHS for _, _, cores in entries])

    # -- inside ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Note the claims whose devices were published again, or are no longer published."""
        devices = self._table.inventory.devices
        changed = self._structure.take()
        if changed is None:
            self._dirty.update(claim.key for claim in self._claims)
            self._dirty.update(self._parts)
            return
        for row in changed.tolist():
            self._dirty.update(self._on_row.keys(row))
            device = devices.devices[row]
            if device is not None:
                self._dirty.update(claim.key for claim in self._claims.find("device", str(device.id)))

    def _renew(self, key: str) -> None:
        self._drop(key)
        claim = self._claims.get(key)
        if claim is None or claim.status.allocation is None:
            return
        parts = self._parts[key] = []
        rows = self._rows_of[key] = set()
        containers = [
            (each.name, self._container(claim, each.name))
            for each in claim.status.reserved_for
            if each.resource == "pods"
        ]
        for holding in holdings_of(claim.status.allocation):
            row = self._table.inventory.devices.row_of(holding.device)
            if row < 0:
                continue
            rows.add(row)
            self._on_row.add(row, key)
            for pod, container in containers:
                parts.append(self._part(claim.metadata.namespace, pod, container, row, holding))
        for part in parts:
            for sums, text in zip(self._sums, part.texts, strict=True):
                sum_ = sums.setdefault(text, [0, 0, 0])
                _add(sum_, 1, part)

    def _drop(self, key: str) -> None:
        for row in self._rows_of.pop(key, ()):
            self._on_row.discard(row, key)
        for part in self._parts.pop(key, ()):
            for sums, text in zip(self._sums, part.texts, strict=True):
                sum_ = sums[text]
                _add(sum_, -1, part)
                if not sum_[0]:
                    del sums[text]

    def _part(self, namespace: str, pod: str, container: str, row: int, holding: Holding) -> _Part:
        devices = self._table.inventory.devices
        device = devices.device(row)
        whole = holding.consumed is None
        _, cores, memory = used_of(device, 1, holding.consumed or {}, exclusive=whole)
        parent = int(self._table.parent[row]) if row < len(self._table.parent) else NO_CARD
        card_row = row if parent == NO_CARD else parent
        card = devices.device(card_row)
        facts = card_facts(self._table, card_row, card)
        facts |= {"namespace": namespace, "pod": pod, "container": container}
        return _Part(
            tuple(labels((name, facts[key]) for name, key in style.labels) for style in self._styles),
            memory,
            cores * _MILLIONTHS // core_unit(card, int(devices.cores_total[card_row])),
        )

    def _container(self, claim: ResourceClaim, pod_name: str) -> str:
        """Return the index of the first container that uses the claim, for HAMi's names only."""
        pod = self._pod_of(f"{claim.metadata.namespace}/{pod_name}") if len(self._styles) > 1 else None
        if pod is None:
            return ""
        entries = {ref.pod_claim_name for ref in claim_refs(pod) if ref.key == claim.key}
        for index, container in enumerate(pod.spec.containers):
            if any(each.name in entries for each in container.resources.claims):
                return str(index)
        return ""


def _add(sum_: list[int], sign: int, part: _Part) -> None:
    sum_[0] += sign
    sum_[1] += sign * part.memory
    sum_[2] += sign * part.cores
