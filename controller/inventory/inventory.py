"""The nodes, devices and usage of a cluster, updated incrementally.

Fed by the reflectors of `reconcile` and by `simulate` with (old, new) pairs; read by `decide`.
Events may be repeated and come in any order: the stored object decides, not `old`. Invalid objects
are left out and named in `problems`. Must not talk to a cluster.
"""

from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from controller.cluster.incremental.changes import Shared, UidTracker
from controller.inventory.columns import NOWHERE, UNSEEN, DeviceColumns
from controller.inventory.layouts import Layouts
from controller.inventory.ledger import Ledger
from controller.inventory.model import Device, DeviceId, Pool
from controller.inventory.pools import PoolBook, PoolGates, PoolKey, build, compile_slice, misplaced, problem_of
from controller.inventory.quotas import QuotaBook
from controller.inventory.taint_rules import TaintRules, concerns
from controller.inventory.trials import Trial
from controller.inventory.usage_columns import UsageColumns
from controller.inventory.vanished import VanishedClaims
from controller.inventory.verdicts import Verdicts
from controller.rules.pod_rules import PodRules
from hami_dra.api import kinds
from hami_dra.api.arrays import Positions
from hami_dra.api.core import Namespace, Node, Pod, ResourceQuota
from hami_dra.api.heldclaims import HeldClaim, InvalidHeldClaims, decode
from hami_dra.api.kinds import Kind
from hami_dra.api.names import ADMIN_ACCESS_LABEL, HELD_CLAIMS
from hami_dra.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.registry import OWN_DRIVERS

_D = TypeVar("_D")
_REQUESTS_KEPT: Final = 2_560
"""Enough for a gang of 1,000 kinds of members, each with the input and the columns of its request."""


class Inventory:
    """Devices and nodes as columns, usage (`usage`), verdicts of selectors (`verdicts`).

    `node_pools`: drivers with one pool a node, named after it: a slice in another pool is left out,
    as a node speaks for itself only. Others may span nodes. `profiles`: how devices are read.
    """

    def __init__(
        self,
        gates: PoolGates = PoolGates(),
        node_pools: Collection[str] = OWN_DRIVERS,
        profiles: DriverProfiles = BUILT_IN_PROFILES,
    ) -> None:
        self.profiles = profiles
        self.devices = DeviceColumns()
        self.kubernetes: tuple[int, int] | None = None
        self.namespaces: dict[str, Namespace] = {}
        self._delegated: set[str] = set()
        self.rules = PodRules(lambda resource: resource in self._delegated, self.namespaces)
        self.nodes = self.rules.nodes
        self.labels = self.rules.labels
        self.pod_names = self.rules.pod_names
        self.usage = Ledger(self._usage_changed)
        self.verdicts = Verdicts(self.devices)
        self.rules.set_meter(self.verdicts.meter)
        self.layouts = Layouts(self.devices, self.nodes)
        self.classes: dict[str, DeviceClass] = {}
        self.problems: dict[str, str] = {}
        """Object → its problem: unusable pools, slices that are left out."""
        self.quotas = QuotaBook(self.usage.counted, self._published)
        self.usage_columns = UsageColumns(self.devices, self.nodes, self.usage, self.quotas)
        self.gates = gates
        self._pools = PoolBook(gates)
        self._node_pools = frozenset(node_pools)
        self._taint_rules = TaintRules()
        self._pods = self.rules.pods
        self.volumes = self.rules.volumes
        self.vanished = VanishedClaims(self.usage, self.quotas, self._pods)
        """Claims that are gone but whose devices are still held."""
        self._claims = UidTracker()
        self._derived: dict[type, Any] = {}
        self._requests: Shared[Any] = Shared(_REQUESTS_KEPT)
        self._rows_of_pool: dict[PoolKey, tuple[Device, ...]] = {}
        self._rows_of_node: dict[int, Positions] = {}
        self._rows_of_node_version = -1
        self._unusable: dict[PoolKey, str] = {}

    def derived(self, kind: type[_D], make: "Callable[[Inventory], _D]") -> _D:
        """Return the cache of this kind, which another module keeps here, made at first use."""
        found = self._derived.get(kind)
        if found is None:
            found = self._derived[kind] = make(self)
        return found

    def of_request(self, kind: type[_D], key: Hashable, make: "Callable[[], _D]") -> _D:
        """Return what another module derived from requests of this shape, made now if there is
        nothing: one table, charged to the namespaces that are decided on. A cache only.
        """
        value: _D = self._requests.get((kind, key), self.verdicts.account, make)
        return value

    # -- reading -----------------------------------------------------------------------------------

    def pools_on(self, node_name: str) -> list[Pool]:
        """Return the pools in upstream's order; incomplete and invalid ones included."""
        row = self.nodes.index_of(node_name)
        return self._pools.on(self.nodes.node(row)) if row >= 0 else []

    def rows_on(self, node_name: str) -> list[int]:
        """Return the rows of the devices that only this node has."""
        row = self.nodes.index_of(node_name)
        return [
            device.row
            for key in self._pools.local_to(node_name)
            for device in self._rows_of_pool.get(key, ())
            if device.row >= 0 and int(self.devices.node[device.row]) == row
        ]

    def rows_of(self, node: int) -> Positions:
        """Return `rows_on` by row of the node, cached until devices are published. Read only."""
        version = self.devices.structure.version
        if self._rows_of_node_version != version:
            self._rows_of_node.clear()
            self._rows_of_node_version = version
        rows = self._rows_of_node.get(node)
        if rows is None:
            rows = self._rows_of_node[node] = np.array(self.rows_on(self.nodes.names[node]), dtype=np.intp)
        return rows

    def nodes_with_unusable_pools(self) -> set[str]:
        """Return nodes with an invalid or incomplete local pool: only the search sees its devices."""
        return set(self._unusable.values())

    def unusable_pools(self) -> list[tuple[str, PoolKey, str]]:
        """Return (node, pool, problem) for the pools of `nodes_with_unusable_pools`, by name."""
        return [(self._unusable[key], key, self.problems.get(_pool(key), "")) for key in sorted(self._unusable)]

    def admin_namespaces(self) -> set[str]:
        """Namespaces where claims may ask for admin access."""
        label = ADMIN_ACCESS_LABEL
        return {name for name, each in self.namespaces.items() if each.metadata.labels.get(label) == "true"}

    def assumed_node(self, pod_uid: str) -> str:
        """Return the node on which an unbound pod counts, or an empty text."""
        return self._pods.assumed_node(pod_uid)

    # -- feeds -------------------------------------------------------------------------------------

    @property
    def feeds(self) -> dict[Kind[Any], Callable[[Any, Any], None]]:
        """Return by kind what is to be called with each change of an object: (old, new)."""
        return {
            kinds.NODE: self.node_changed,
            kinds.NAMESPACE: self.namespace_changed,
            kinds.DEVICE_CLASS: self.class_changed,
            kinds.RESOURCE_SLICE: self.slice_changed,
            kinds.RESOURCE_QUOTA: self.quota_changed,
            kinds.DEVICE_TAINT_RULE: self.taint_rule_changed,
            kinds.DEVICE_TAINT_RULE_V1BETA2: self.taint_rule_changed,
            kinds.RESOURCE_CLAIM: self.claim_changed,
            kinds.POD: self.pod_changed,
            **{kind: partial(self.volumes.changed, kind.name) for kind in kinds.STORAGE},
        }

    def set_version(self, major: int, minor: int) -> None:
        """Note the version of Kubernetes where its plugins differ; without it the newest counts."""
        self.kubernetes = major, minor
        self.rules.set_version((major, minor))

    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        _store(self.classes, old, new)
        self._delegated = {name for each in self.classes.values() for name in each.extended_resources}

    def namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        name = (new or old or Namespace()).metadata.name
        before = self.namespaces.get(name)
        _store(self.namespaces, old, new)
        if before is None or new is None or before.metadata.labels != new.metadata.labels:
            self.rules.namespace_changed(name, before, new)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        name = (new or old or Node()).metadata.name
        row = self.nodes.index_of(name)
        if new is None:
            self.nodes.remove(name)
            self._renode(name, UNSEEN)
            self._pools.forget_node(name)
        else:
            labels = self.nodes.node(row).metadata.labels if row >= 0 else None
            fresh = self.nodes.put(new)
            if labels != new.metadata.labels:
                self._pools.forget_node(name)
            if row < 0:
                self._renode(name, fresh)

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        touched: set[PoolKey] = set()
        # the slice may have been in another pool before: then that one changes too
        for name in {each.metadata.name for each in (old, new) if each is not None}:
            before = self._pools.drop(name)
            touched |= {before} if before else set()
            self._report(_slice(name), "")
            if new is None or name != new.metadata.name:
                self.vanished.slice_changed(name, None)
        if new is not None:
            speaks_for_node = new.spec.driver in self._node_pools
            problem = misplaced(new) if speaks_for_node else ""
            self._report(_slice(new.metadata.name), problem)
            # before its devices are read: they come up as used as they are
            self._hear_held(new, believed=speaks_for_node and not problem)
            if not problem:
                compiled = compile_slice(new, self.profiles)
                self._taint_rules.apply(compiled.devices)
                touched.add(self._pools.put(compiled))
        for key in touched:
            self._repool(key)

    def taint_rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        self._taint_rules.changed(old, new)
        for key in self._pools.pool_keys():
            if concerns(old, *key) or concerns(new, *key):
                for compiled in self._pools.slices(key):
                    self._taint_rules.apply(compiled.devices)
                self._repool(key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Update a claim. One that is gone uses nothing, unless pods still hold its devices."""
        for uid in self._claims.gone(old, new):
            if not self.vanished.claim_gone(uid):
                self.usage.observe(uid, None)
            self.quotas.claim_gone(uid)
        if new is not None:
            uid = new.metadata.uid
            self.vanished.claim_seen(new)
            self.usage.observe(uid, new.status.allocation)
            self.quotas.seen(uid, new.metadata.namespace)

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        self.quotas.quota_changed(old, new)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.vanished.pod_changed(self._pods.changed(old, new), new)

    def starts_over(self, pod: Pod) -> bool:
        """Free what a pod to be decided held of vanished claims. Returns whether it held any."""
        return not pod.spec.node_name and self.vanished.starts_over(pod.metadata.uid)

    # -- assumptions -------------------------------------------------------------------------------

    def forget(self, claim_uid: str) -> None:
        """Forget an assumption: its write was observed, or failed."""
        self.usage.forget(claim_uid)

    def assume_pod(self, pod: Pod, node: str) -> None:
        """Count a pod on its chosen node until it is bound, gone, or forgotten."""
        self._pods.assume(pod, node)

    def forget_pod(self, pod_uid: str) -> None:
        self._pods.forget(pod_uid)

    def trial(self) -> Trial:
        """Return a trial: a context in which some pods are gone, or placed, or devices held. No event
        may come before its end.
        """
        return Trial(self.usage, self._pods, self.volumes.on_trial)

    # -- inside ------------------------------------------------------------------------------------

    def _usage_changed(self, claim_uids: Collection[str], devices: set[DeviceId]) -> None:
        self.usage_columns.recount(devices)
        for uid in claim_uids:
            self.quotas.recount(uid)

    def _hear_held(self, slice_: ResourceSlice, *, believed: bool) -> None:
        """Read the node driver's report of claims that are gone."""
        name, text = slice_.metadata.name, slice_.metadata.annotations.get(HELD_CLAIMS, "")
        claims: tuple[HeldClaim, ...] = ()
        if believed and text:
            try:
                claims = decode(text)
            except InvalidHeldClaims as error:
                self._report(_slice(name), f"its annotation {HELD_CLAIMS} is ignored: {error}")
        self.vanished.slice_changed(name, slice_, claims)

    def _published(self, device: DeviceId) -> Device | None:
        row = self.devices.row_of(device)
        return self.devices.device(row) if row >= 0 else None

    def _repool(self, key: PoolKey) -> None:
        """Rebuild the rows of a pool where they differ. Only usable pools have rows."""
        node = self._pools.single_node(key)
        slices = self._pools.slices(key)
        fresh: tuple[Device, ...] = ()
        pool: Pool | None = None
        self._unusable.pop(key, None)
        self._report(_pool(key), problem_of(slices, self._pools.gates))
        row = NOWHERE
        if node:
            row = self.nodes.index_of(node)
            row = row if row >= 0 else UNSEEN
            pool = build(key, slices, node, {}, self._pools.gates)
            if pool is not None and not pool.invalid and not pool.incomplete:
                fresh = pool.devices
            elif pool is not None:
                self._unusable[key] = node
        else:
            # Devices of several nodes: the newest of each id; the search decides per node.
            slices.sort(key=lambda compiled: compiled.slice.spec.pool.generation)
            fresh = tuple({device.id: device for compiled in slices for device in compiled.devices}.values())
        before = self._rows_of_pool.pop(key, ())
        fresh_ids = {device.id for device in fresh}
        for device in before:
            if device.id not in fresh_ids:
                self.usage_columns.remove(device.id)
        for device in fresh:
            self.usage_columns.put(device, row)
        if row == NOWHERE:
            # A node may still see the device as an older or another slice describes it.
            for device in (device for compiled in slices for device in compiled.devices):
                device.row = self.devices.row_of(device.id)
        if fresh:
            self._rows_of_pool[key] = fresh
        self.usage_columns.recount_counters(key, pool if fresh else None, fresh)

    def _report(self, what: str, problem: str) -> None:
        if problem:
            self.problems[what] = problem
        else:
            self.problems.pop(what, None)

    def _renode(self, name: str, node: int) -> None:
        """Update the devices of a node that got or lost its row."""
        for key in self._pools.local_to(name):
            for device in self._rows_of_pool.get(key, ()):
                if self.devices.node[device.row] == NOWHERE:
                    continue  # other nodes reach the pool too
                if node == UNSEEN:
                    self.devices.move(device.row, UNSEEN)
                else:
                    self.usage_columns.put(device, node)
            self.usage_columns.mark_blocked(key, self._rows_of_pool.get(key, ()))


def _slice(name: str) -> str:
    return f"ResourceSlice {name}"


def _pool(key: PoolKey) -> str:
    return f"pool {key[0]}/{key[1]}"


def _store(where: dict[str, Any], old: Any, new: Any) -> None:
    if old is not None and (new is None or new.metadata.name != old.metadata.name):
        where.pop(old.metadata.name, None)
    if new is not None:
        where[new.metadata.name] = new
