"""Keep the slices of pools up to date on a cluster: write them when a pool changes, restore them
after changes by others.

Used by the fleet and by the node driver. In: pools (`want`, `drop`) and a Cluster. Out:
ResourceSlices. `plan` decides what to write; this module only reads and writes. It touches slices
of wanted pools and those that `owns` claims.

A slice that the API server refuses (Invalid) is not sent again until the pool changes: `problems`
says why. Everything else is retried. kubelet removes the slices of a node when it starts, so
restoring them is the normal case and not an accident.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from hami_dra.api.kinds import RESOURCE_SLICE
from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.plan import Accepted, accepted_form, dropped_fields, plan
from hami_dra.driver.slices import Pool, SliceContent
from hami_dra.driver.workqueue import WorkQueue
from hami_dra.kube.guard import LoopGuard, count_nothing
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, Invalid, NotFound
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.store import Store

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_PARALLEL: Final = 8


class PoolKey(NamedTuple):
    driver: str
    pool: str

    def __str__(self) -> str:
        return f"pool {self.driver}/{self.pool}"


class NotPublished(Exception):
    """Slices could not be written; the message names each pool and quotes the server."""


class Publisher:
    """Publish pools: `run()` until cancelled, or `sync_once()`. Use one of the two at a time.

    `owns`: whether a slice that belongs to no wanted pool may be deleted. `field_selector` narrows
    the watch. `on_rewound`: see `Reflector`; slices of the past are put right without it. `published`
    is complete once `reflector` is synced.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        owns: Callable[[ResourceSlice], bool],
        field_selector: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        count: Callable[[str], None] = count_nothing,
        on_rewound: Callable[[], None] = lambda: None,
    ) -> None:
        self.problems: dict[PoolKey, str] = {}
        """Pools whose slices differ from the wanted ones, with the reason."""
        self._cluster = cluster
        self._owns = owns
        self._wanted: dict[PoolKey, Pool] = {}
        self._accepted: dict[PoolKey, dict[int, Accepted]] = {}
        self._store: Store[ResourceSlice] = Store(pool=lambda item: [_index(_key(item))])
        self.reflector = Reflector(
            cluster,
            RESOURCE_SLICE,
            self,
            store=self._store,
            scope={"field_selector": field_selector},
            on_rewound=on_rewound,
            guard=LoopGuard("watch own slices", count),
            sleep=sleep,
        )
        self._queue: WorkQueue[PoolKey] = WorkQueue(self._sync, workers=_PARALLEL, sleep=sleep, count=count)

    @property
    def wanted(self) -> Mapping[PoolKey, Pool]:
        return self._wanted

    def published(self, key: PoolKey) -> list[ResourceSlice]:
        return self._store.find("pool", _index(key))

    def want(self, pool: Pool) -> None:
        key = PoolKey(pool.driver, pool.name)
        if self._wanted.get(key) != pool:
            self._wanted[key] = pool
            self.problems.pop(key, None)
            self._queue.add(key)

    def drop(self, key: PoolKey) -> None:
        """Remove a pool: its slices are deleted if `owns` allows it."""
        if self._wanted.pop(key, None) is not None:
            self._accepted.pop(key, None)
            self.problems.pop(key, None)
            self._queue.add(key)

    def recheck(self) -> None:
        """Check slices of unwanted pools again, because the answers of `owns` may have changed."""
        for item in self._store:
            self._queue.add(_key(item))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reflector.run())
            await self.reflector.wait_synced()
            tasks.create_task(self._queue.run())

    async def sync_once(self) -> None:
        """Write all pools once. Raises NotPublished after every pool was tried."""
        try:
            await self.reflector.relist()
        except ClusterError as error:
            raise NotPublished(str(error)) from error
        keys = dict.fromkeys([*self._wanted, *(_key(item) for item in self._store if self._owns(item))])
        turns = asyncio.Semaphore(_PARALLEL)
        failures = [failure for failure in await asyncio.gather(*(self._insist(key, turns) for key in keys)) if failure]
        if failures:
            raise NotPublished("; ".join(failures))

    async def _insist(self, key: PoolKey, turns: asyncio.Semaphore) -> str:
        """Return why the pool could not be written, after all attempts, or an empty text."""
        async with turns:
            for attempt in range(_ATTEMPTS):
                try:
                    if attempt:  # the known state was old
                        await self.reflector.relist()
                    await self._sync(key)
                except (Conflict, NotFound) as error:
                    failure = str(error)
                except ClusterError as error:
                    return f"{key}: {error}"
                else:
                    return f"{key}: {self.problems[key]}" if key in self.problems else ""
        return f"{key}: {failure}"

    # --- called by the reflector ------------------------------------------------------------------

    def changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for item in filter(None, (old, new)):
            self._queue.add(_key(item))

    def synced(self) -> None:
        # another server, or the same one after a restart, may decide otherwise
        self.problems.clear()
        for key in self._wanted:
            self._queue.add(key)

    # --- writing ----------------------------------------------------------------------------------

    async def _sync(self, key: PoolKey) -> None:
        pool = self._wanted.get(key)
        if pool is None:
            for item in self.published(key):
                if self._owns(item):
                    await self._delete(item)
            return
        if key in self.problems:
            return
        steps = plan(pool, self.published(key), self._accepted.get(key))
        try:
            for item in steps.deletes:
                await self._delete(item)
            for update in steps.updates:
                name = update.current.metadata.name
                stored = await self._cluster.patch(RESOURCE_SLICE, name, update.patch)
                self._stored(key, update.index, pool.slices[update.index], stored)
            for index, body in steps.creates:
                stored = await self._cluster.create(RESOURCE_SLICE, body)
                self._stored(key, index, pool.slices[index], stored)
        except Invalid as error:
            self.problems[key] = str(error)
            log.error("%s: the API server refuses the slice: %s", key, error)  # noqa: TRY400 (its own words are enough)

    async def _delete(self, item: ResourceSlice) -> None:
        meta = item.metadata
        try:
            await self._cluster.delete(RESOURCE_SLICE, meta.name, uid=meta.uid, resource_version=meta.resource_version)
        except NotFound:
            log.debug("%s was already deleted", meta.name)

    def _stored(self, key: PoolKey, index: int, sent: SliceContent, stored: ResourceSlice) -> None:
        self.reflector.observe(stored)
        forms = self._accepted.setdefault(key, {})
        form = accepted_form(sent, stored)
        if form is None:
            forms.pop(index, None)
        elif forms.get(index) != form:
            forms[index] = form
            log.warning(
                "%s: the API server dropped fields of %s (%s): is a feature gate off?",
                key,
                stored.metadata.name,
                dropped_fields(form),
            )


def _key(item: ResourceSlice) -> PoolKey:
    return PoolKey(item.spec.driver, item.spec.pool.name)


def _index(key: PoolKey) -> str:
    return f"{key.driver} {key.pool}"
