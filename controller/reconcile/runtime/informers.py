"""The controller's informers: one reflector per kind, stores with indices, and subscribers.

Created by `controller`; read by every part. A change reaches the inventory first and the
subscribers after it, in the order of subscription, all before the next change. Must not write to
the cluster.

The result of our own write is handed to `observe_*`, so that no decision is based on anything older
than our own writes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from controller.assessment import cluster_feeds
from controller.gangs import OPTIONAL_SOURCES, SOURCES, GangKey, Gangs, Source
from controller.inventory import Inventory
from controller.preemption import Tenants
from controller.reconcile.runtime.clock import Clock
from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podclaims import claim_keys, volume_claim_keys
from hami_dra.api.podstate import is_pending
from hami_dra.api.resource import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate
from hami_dra.kube.guard import LoopGuard, count_nothing
from hami_dra.kube.protocol import Broken, Cluster, ClusterError
from hami_dra.kube.reflector import Reflector, log_broken
from hami_dra.kube.store import Store

T = TypeVar("T", bound=Object)
Listener = Callable[[T | None, T | None], None]
"""Called with (old, new); None for an object that did not exist before, or no longer exists."""

log = logging.getLogger(__name__)

TAINT_RULE_KINDS: Final = (kinds.DEVICE_TAINT_RULE, kinds.DEVICE_TAINT_RULE_V1BETA2)


UNREAD_STORAGE: Final = (
    "volumes of pods are considered without it; the rest becomes known when kube-scheduler refuses a node"
)
"""The consequence of a kind of `kinds.STORAGE` that cannot be read."""
_UNREAD_BUDGETS: Final = "no pod is evicted for another one without it (manifests/optional/preemption.yaml)"


def watch_name(kind: Kind[Any]) -> str:
    return f"watch {kind.resource}"


class Informer(Generic[T]):
    """One kind: its reflector's handler, and the subscribers.

    A listener that fails on one object is logged and counted by `count`; the others, and the next
    object, are not affected. `readable`: makes the kind optional: it is called with whether the
    kind can be read, and a kind that may not be read, or is not served, counts as synced and as no
    problem. `unread`: what follows from that, for the log; empty if most clusters lack the kind.
    `on_rewound`: see `Reflector`.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind[T],
        clock: Clock,
        store: Store[T] | None = None,
        *,
        count: Callable[[str], None] = count_nothing,
        readable: Callable[[Kind[Any], bool], None] | None = None,
        unread: str = "",
        on_rewound: Callable[[], None] | None = None,
    ) -> None:
        self.kind = kind
        self._readable = readable
        self._unread = unread
        self._listeners: list[Listener[T]] = []
        self._unreadable_listeners: list[Callable[[Kind[Any], Broken], None]] = []
        self._guard = LoopGuard(watch_name(kind), count)
        self.handling: T | None = None
        """The object whose change the listeners handle at the moment."""
        self.reflector: Reflector[T] = Reflector(
            cluster,
            kind,
            self,
            store=Store() if store is None else store,
            sleep=clock.sleep,
            on_broken=self._broken,
            on_denied=self._denied if readable is not None else None,
            on_rewound=on_rewound,
            guard=self._guard,
        )

    @property
    def store(self) -> Store[T]:
        return self.reflector.store

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Subscribe. Returns a function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def subscribe_unreadable(self, listener: Callable[[Kind[Any], Broken], None]) -> Callable[[], None]:
        """Call `listener` for each version of an incompletely readable object. Returns a function that unsubscribes."""
        self._unreadable_listeners.append(listener)
        return lambda: self._unreadable_listeners.remove(listener)

    def changed(self, old: T | None, new: T | None) -> None:
        self.handling = new or old
        for listener in tuple(self._listeners):
            try:
                listener(old, new)
            # not `LoopGuard.each`, which costs a tenth of the start-up time
            except Exception as error:
                found = new or old
                if not self._guard.contains(found.key if found is not None else "", error):
                    raise
        self.handling = None

    def _broken(self, broken: Broken) -> None:
        log_broken(self.kind, broken)
        for listener in tuple(self._unreadable_listeners):
            listener(self.kind, broken)

    def synced(self) -> None:
        log.debug("%s: %d in store", self.kind.resource, len(self.store))
        if self._readable is not None:
            self._readable(self.kind, True)

    def _denied(self, error: ClusterError) -> None:
        if self._unread:
            log.warning("%s; %s", error, self._unread)
        if self._readable is not None:
            self._readable(self.kind, False)

    # --- state of the copy ------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """Whether the latest list of the kind was not refused, nor the kind unknown."""
        return not self.reflector.is_denied

    @property
    def is_synced(self) -> bool:
        return self.reflector.is_synced or (self._readable is not None and self.reflector.is_denied)

    async def wait_synced(self) -> None:
        await (self.reflector.wait_synced() if self._readable is None else self.reflector.wait_answered())

    @property
    def problem(self) -> str:
        """Return why the copy may be stale, or an empty text."""
        return "" if self._readable is not None and self.reflector.is_denied else self.reflector.problem


class Informers:
    """The informers. `taint_rules` is None if the cluster serves no DeviceTaintRule. `count`: see
    `Informer`. `gang_sources`: optional sources of gangs that count. `evicts`: whether pods may
    be evicted; otherwise no budgets are read.
    """

    def __init__(
        self,
        cluster: Cluster,
        inventory: Inventory,
        clock: Clock,
        taint_rule_kind: Kind[DeviceTaintRule] | None,
        *,
        count: Callable[[str], None] = count_nothing,
        gang_sources: Collection[Source] = frozenset(),
        evicts: bool = False,
    ) -> None:
        def informer(kind: Kind[T], store: Store[T] | None = None, **options: Any) -> Informer[T]:
            return Informer(cluster, kind, clock, store, count=count, **options)

        self._rewound = asyncio.Event()
        self._cluster = cluster
        self.pods = informer(
            kinds.POD,
            Store(claim=claim_keys, template=_template_keys, node=_node_names, volume_claim=volume_claim_keys),
        )
        self.nodes = informer(kinds.NODE)
        self.namespaces = informer(kinds.NAMESPACE)
        self.quotas = informer(kinds.RESOURCE_QUOTA)
        self.claims = informer(kinds.RESOURCE_CLAIM, Store(device=allocated_devices), on_rewound=self._list_again)
        self.templates = informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self.slices = informer(kinds.RESOURCE_SLICE)
        self.classes = informer(kinds.DEVICE_CLASS)
        self.taint_rules = informer(taint_rule_kind) if taint_rule_kind is not None else None
        self.budgets = (
            informer(kinds.POD_DISRUPTION_BUDGET, readable=_optional, unread=_UNREAD_BUDGETS) if evicts else None
        )
        self.storage: dict[str, Informer[Any]] = {
            kind.name: informer(kind, readable=inventory.volumes.set_readable, unread=UNREAD_STORAGE)
            for kind in kinds.STORAGE
        }
        """By kind."""
        self.gangs = Gangs(gang_sources)
        self.tenants = Tenants(self.gangs, self.claim)
        self.pod_groups: dict[str, Informer[Any]] = {
            kind.api_version: informer(kind, readable=self._pod_groups_readable)
            for kind in kinds.POD_GROUPS
            if SOURCES[kind.group] not in OPTIONAL_SOURCES or SOURCES[kind.group] in gang_sources
        }
        """By API version."""
        subscribers = cluster_feeds(inventory, self.gangs, self.tenants)
        for feed in self.feeds():
            for subscriber in subscribers.get(feed.kind, ()):
                feed.subscribe(subscriber)

    def _pod_groups_readable(self, changed: Kind[Any], _readable: bool) -> None:
        of_group = (self.pod_groups[kind.api_version] for kind in kinds.POD_GROUPS if kind.group == changed.group)
        self.gangs.set_readable(SOURCES[changed.group], any(each.is_readable for each in of_group))

    def feeds(self) -> Iterator[Informer[Any]]:
        yield from (self.nodes, self.namespaces, self.classes, self.slices, self.templates, self.quotas)
        yield from self.storage.values()
        yield from self.pod_groups.values()
        yield from (self.claims, self.pods)
        if self.taint_rules is not None:
            yield self.taint_rules
        if self.budgets is not None:
            yield self.budgets

    def handling(self) -> str:
        """Return the kind and key of the object that is handled at the moment; empty: none."""
        return next((f"{feed.kind.name} {at.key}" for feed in self.feeds() if (at := feed.handling) is not None), "")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for feed in self.feeds():
                group.create_task(feed.reflector.run(), name=f"reflector {feed.kind.resource}")

    async def wait_synced(self) -> None:
        for feed in self.feeds():
            await feed.wait_synced()

    @property
    def is_synced(self) -> bool:
        return all(feed.is_synced for feed in self.feeds())

    def _list_again(self) -> None:
        for feed in self.feeds():
            if feed is not self.claims:
                feed.reflector.list_again()
        self._rewound.set()

    async def wait_rewound(self) -> None:
        """Wait until the cluster goes back to a past state, as after a restore of etcd."""
        self._rewound.clear()
        await self._rewound.wait()

    async def wait_current(self) -> None:
        """Wait until every readable kind is watched, or was just listed."""
        for feed in self.feeds():
            if feed.is_readable:
                await feed.reflector.wait_current()

    def problems(self) -> list[str]:
        """Return why copies may be stale now."""
        return [feed.problem for feed in self.feeds() if feed.problem]

    # --- reading ----------------------------------------------------------------------------------

    def pod(self, key: str) -> Pod | None:
        return self.pods.store.get(key)

    def present(self, pod: Pod) -> Pod | None:
        """Return the pod as it is now, or None if it is gone or was created again."""
        present = self.pod(pod.key)
        return present if present is not None and present.metadata.uid == pod.metadata.uid else None

    def claim(self, key: str) -> ResourceClaim | None:
        return self.claims.store.get(key)

    def claims_of(self, pod: Pod) -> list[ResourceClaim]:
        return [claim for claim in map(self.claim, claim_keys(pod)) if claim is not None]

    def node(self, name: str) -> Node | None:
        return self.nodes.store.get(name)

    def template(self, key: str) -> ResourceClaimTemplate | None:
        return self.templates.store.get(key)

    def pods_of(self, claim_key: str) -> list[Pod]:
        return self.pods.store.find("claim", claim_key)

    def pods_with_volume_claim(self, key: str) -> list[Pod]:
        """Return all pods with a volume that is the PersistentVolumeClaim."""
        return self.pods.store.find("volume_claim", key)

    def pods_on(self, node: str) -> list[Pod]:
        return self.pods.store.find("node", node)

    def pods_waiting_for_template(self, template_key: str) -> list[Pod]:
        return [pod for pod in self.pods.store.find("template", template_key) if is_pending(pod)]

    def is_template_used(self, template_key: str) -> bool:
        return self.pods.store.has("template", template_key)

    def claims_on(self, device: str) -> list[ResourceClaim]:
        """Return the claims whose allocation names the device, by `driver/pool/device`."""
        return self.claims.store.find("device", device)

    # --- our own writes ---------------------------------------------------------------------------

    def observe_claim(self, claim: ResourceClaim) -> None:
        self.claims.reflector.observe(claim)

    def observe_pod(self, pod: Pod) -> None:
        self.pods.reflector.observe(pod)

    def observe_template(self, template: ResourceClaimTemplate) -> None:
        self.templates.reflector.observe(template)

    async def reread_pod_group(self, gang: GangKey) -> bool:
        """Read a gang's PodGroup by a quorum read into the copy. False: it is gone. Raises ClusterError."""
        for informer in self.pod_groups.values():
            kind = informer.kind
            if SOURCES[kind.group] == gang.source and f"{gang.namespace}/{gang.name}" in informer.store:
                found = await self._cluster.list(
                    kind, namespace=gang.namespace, field_selector=f"metadata.name={gang.name}"
                )
                for group in found.items:
                    informer.reflector.observe(group)
                return bool(found.items)
        return False

    async def wait_claims_current(self) -> None:
        """Wait until no allocation can be missing because the cluster went back unseen to a past state."""
        await self.claims.reflector.wait_current()

    @property
    def are_claims_current(self) -> bool:
        return self.claims.reflector.is_current

    async def relist_claims(self) -> None:
        """List all claims again by a quorum read. Raises ClusterError."""
        await self.claims.reflector.relist()


def allocated_devices(claim: ResourceClaim) -> Iterable[str]:
    return {result.device_id for result in claim.results}


def _optional(_kind: Kind[Any], _readable: bool) -> None:
    """Make a kind optional: nothing else has to know whether it can be read."""


def _template_keys(pod: Pod) -> Iterable[str]:
    namespace = pod.metadata.namespace
    return [
        f"{namespace}/{entry.resource_claim_template_name}"
        for entry in pod.spec.resource_claims
        if entry.resource_claim_template_name
    ]


def _node_names(pod: Pod) -> Iterable[str]:
    return [pod.spec.node_name] if pod.spec.node_name else ()


async def taint_rule_kind(cluster: Cluster) -> Kind[DeviceTaintRule] | None:
    """Return the newest DeviceTaintRule that the cluster serves. It is v1 since 1.37, v1beta2 on 1.36 if enabled."""
    for kind in TAINT_RULE_KINDS:
        if await cluster.serves(kind):
            return kind
    return None
