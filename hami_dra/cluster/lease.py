"""One leader at a time, by a Lease object.

Called by the controller: `LeaderElector(...).run(lead)`. In: a Cluster and a coroutine to run while leading. Out: that coroutine
runs in at most one process, and `holds()` says before every write whether this process may still write.

How two never both hold. A leader counts its term from *before* it sent the last successful renewal and ends it by itself after
`renew_deadline`. Another candidate takes over only after it watched the same record stand still for `duration`, by its own
monotonic clock; wall clocks are written for people and never compared. So between the end of one term and the start of the next
lie `duration - renew_deadline` seconds, which must exceed the longest write that may still be under way plus a clock margin.
The clock goes on while the machine sleeps or the process is stopped, so a leader that was paused knows it before it writes.
"""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hami_dra.api.core import Lease, LeaseSpec
from hami_dra.api.kinds import LEASE
from hami_dra.cluster.protocol import Cluster, ClusterError, ConfigError, Conflict, NotFound

log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Monotonic seconds that go on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def unique_identity() -> str:
    """Host name, process and a random part: a restarted process is somebody else."""
    return f"{socket.gethostname()}_{os.getpid()}_{random.getrandbits(32):08x}"


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. Raises ConfigError unless `duration - renew_deadline > write_timeout + clock_margin`."""

    duration: int = 15
    renew_deadline: float = 8.0
    retry: float = 2.0
    write_timeout: float = 5.0
    clock_margin: float = 1.0

    def __post_init__(self) -> None:
        if min(self.duration, self.renew_deadline, self.retry, self.write_timeout) <= 0 or self.clock_margin < 0:
            raise ConfigError(f"leader election: all times must be positive: {self}")
        if self.duration - self.renew_deadline <= self.write_timeout + self.clock_margin:
            raise ConfigError(
                f"leader election: lease duration {self.duration} s - renew deadline {self.renew_deadline} s must be more than "
                f"write timeout {self.write_timeout} s + clock margin {self.clock_margin} s; "
                "raise the duration or lower the renew deadline"
            )
        if self.renew_deadline < 2 * self.retry:
            raise ConfigError(
                f"leader election: renew deadline {self.renew_deadline} s leaves no second try after {self.retry} s; "
                "make it at least twice the retry period"
            )


class LeaderElector:
    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        identity: str = "",
        timings: Timings | None = None,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.identity = identity or unique_identity()
        self.problem = ""
        """Why the lease could not be read or written at the last try."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._timings = timings or Timings()
        self._clock = clock
        self._sleep = sleep
        self._wall = wall
        self._uniform = uniform
        self._lease: Lease | None = None
        self._unchanged_since = clock()
        self._term_ends = float("-inf")

    def holds(self, now: float | None = None) -> bool:
        """Whether this process may write at `now` (default: the clock's). Ask right before every write."""
        return (self._clock() if now is None else now) < self._term_ends

    @property
    def leading(self) -> bool:
        return self.holds()

    @property
    def leader(self) -> str:
        """Who holds the lease as far as this process saw; empty when nobody does."""
        return (self._lease.spec.holder_identity or "") if self._lease else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead()`; cancel it when the lease is lost, and wait again.

        Returns when `lead()` returns, raises what it raises. In every case, cancellation too, the lease is given back last.
        """
        try:
            while True:
                await self._acquire()
                log.info("leading as %s", self.identity)
                if await self._lead(lead):
                    return
                log.warning("lost the lease %s/%s to %s", self._namespace, self._name, self.leader or "nobody yet")
        finally:
            await self._release()

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Whether `lead` came to its end; False when the lease was lost."""
        work, renewals = asyncio.ensure_future(lead()), asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait((work, renewals), return_when=asyncio.FIRST_COMPLETED)
            finished = work.done()
        finally:
            self._term_ends = float("-inf")
            work.cancel()
            renewals.cancel()
            await asyncio.wait((work, renewals))
        for task in (work, renewals):
            if not task.cancelled():
                task.result()
        return finished

    async def _acquire(self) -> None:
        while not await self._attempt():
            await self._sleep(self._period())

    async def _renew_until_lost(self) -> None:
        while self.holds():
            await self._sleep(min(self._period(), self._term_ends - self._clock()))
            if not self.holds():
                return
            if not await self._attempt() and self.leader != self.identity:
                self._term_ends = float("-inf")

    def _period(self) -> float:
        return self._timings.retry * (1 + 0.2 * self._uniform())

    async def _attempt(self) -> bool:
        """Take or renew the lease; the term is extended from before the write. False: somebody else's, or no clear answer."""
        try:
            async with asyncio.timeout(self._timings.write_timeout):
                taken = await self._take_or_renew()
        except (ClusterError, TimeoutError) as error:
            if not self.problem:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error or "no answer in time")
            self.problem = str(error) or "no answer in time"
            return False
        self.problem = ""
        return taken

    async def _take_or_renew(self) -> bool:
        if not self.holds():
            await self._read()
        if self._lease is None:
            return await self._create()
        if self.leader not in ("", self.identity) and not self._expired():
            return False
        started = self._clock()
        try:
            written = await self._write(self._lease, self._record(self._lease))
        except (Conflict, NotFound):
            # a write of our own without an answer, or somebody else's: the read tells
            await self._read()
            if self._lease is None or self.leader != self.identity:
                return False
            started = self._clock()
            written = await self._write(self._lease, self._record(self._lease))
        self._observe(written)
        self._term_ends = started + self._timings.renew_deadline
        return True

    async def _create(self) -> bool:
        started = self._clock()
        body = {"metadata": {"name": self._name}, "spec": self._record(None)}
        try:
            self._observe(await self._cluster.create(LEASE, body, namespace=self._namespace))
        except Conflict:
            return False
        self._term_ends = started + self._timings.renew_deadline
        return True

    async def _read(self) -> None:
        try:
            self._observe(await self._cluster.get(LEASE, self._name, self._namespace))
        except NotFound:
            self._lease = None

    def _observe(self, lease: Lease) -> None:
        if self._lease is None or lease.spec != self._lease.spec:
            self._unchanged_since = self._clock()
        self._lease = lease

    def _expired(self) -> bool:
        spec = self._lease.spec if self._lease else LeaseSpec()
        duration = max(spec.lease_duration_seconds or 0, self._timings.duration)
        return self._clock() - self._unchanged_since >= duration

    def _record(self, lease: Lease | None) -> dict[str, Any]:
        now = self._now()
        spec = lease.spec if lease else None
        record = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timings.duration,
            "renewTime": now,
        }
        if spec is None:
            return record | {"acquireTime": now, "leaseTransitions": 0}
        if spec.holder_identity != self.identity:
            return record | {"acquireTime": now, "leaseTransitions": (spec.lease_transitions or 0) + 1}
        return record

    async def _write(self, seen: Lease, spec: dict[str, Any]) -> Lease:
        """Only onto the version that was seen: raises Conflict when it is not the newest."""
        patch = {"metadata": {"resourceVersion": seen.metadata.resource_version}, "spec": spec}
        return await self._cluster.patch(LEASE, self._name, patch, namespace=self._namespace)

    def _now(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _release(self) -> None:
        """So that the next leader need not wait for the expiry. Best effort: without it the lease just runs out."""
        self._term_ends = float("-inf")
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(self._timings.write_timeout):
                await self._read()
                if self._lease is None or self.leader != self.identity:
                    return
                spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
                await self._write(self._lease, spec)
                log.info("gave back the lease %s/%s", self._namespace, self._name)
