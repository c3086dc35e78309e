"""Leader election by a Lease object: one leader at a time.

Called by the controller: `election.run(lead)`. In: a Cluster and a coroutine to run while leading.
Out: that coroutine runs in at most one process, and `holds()` says before every write whether this
process may still write.

Why two processes never both write. A leader counts its term from *before* it sent the last
successful renewal and ends it on its own after `renew_deadline`. Another candidate takes over only
after it has seen the same record unchanged for `duration`, by its own monotonic clock; wall clocks
are written for people and never compared. So `duration - renew_deadline` seconds lie between the
end of one term and the start of the next, which must exceed the longest pending write plus a clock
margin. The clock includes the time for which the machine sleeps or the process is stopped, so a
leader that was paused notices it before it writes.

With two threads (`LeaderElector.side`) the argument still holds: the term's end is one number, written by
the thread that renews and read by the loop that writes. Reading it is atomic, and a stale value is
an older one: it ends *earlier* (each renewal moves the end forward), or it belongs to a term which
another thread is just giving up. For that case, and for a loop that is frozen or descheduled
between `holds()` and the write, the write timeout is the rule: counted from the check, nothing is
sent after it (`transport` checks the clock again right before it sends), and a new leader waits
that long before it acts, even if the lease was released. One case remains: the operating system
stops a thread between that last check and the system call, for longer than lease duration - renew
deadline. No client can exclude it, here or in one thread.

Annotations of the Lease carry messages from one leader to the next: `annotations`,
`edit_annotation`.
"""

import asyncio
import logging
import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Protocol

from hami_dra.api.core import Lease, LeaseSpec
from hami_dra.api.kinds import LEASE
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, NotFound
from hami_dra.kube.side_thread import SideThread, run_in

log = logging.getLogger(__name__)

_RELEASE_ATTEMPTS: Final = 3
_NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})

Edit = Callable[[str], str]
"""Maps an annotation's text to its new text; empty: absent."""


class Election(Protocol):
    """The election as a leader sees it."""

    @property
    def identity(self) -> str:
        """Return the name of this process in the Lease, unique among all processes."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations of the Lease as this process last saw them, at the latest renewal."""

    def holds(self) -> bool:
        """Return whether this process may write now. Call right before every write."""

    def edit_annotation(self, key: str, edit: Edit) -> None:
        """Change an annotation of the Lease with the next renewal, based on its content at that time.

        May be called from any thread. `edit` is pure, may be called several times, and must be
        idempotent, because a write without an answer is repeated.
        """

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """See `LeaderElector.run`."""


def unique_identity() -> str:
    """Return host name, process and a random part: a restarted process has another identity."""
    return f"{socket.gethostname()}_{os.getpid()}_{random.getrandbits(32):08x}"


class NoElection:
    """Election of a single replica: it always leads, and there is no Lease for annotations."""

    annotations: Mapping[str, str] = _NO_ANNOTATIONS

    def __init__(self) -> None:
        self.identity = unique_identity()

    def holds(self) -> bool:
        return True

    def edit_annotation(self, key: str, edit: Edit) -> None:
        """Do nothing: no later leader could read it."""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        await lead()


@dataclass(eq=False)
class LeaderElector:
    """An election. `side`: the thread in which it runs, with a `cluster` of its own; what it runs while it
    leads is in the caller's loop all the same, so that a long decision there does not cost the lease.
    """

    cluster: Cluster
    namespace: str
    name: str
    _: KW_ONLY
    identity: str = field(default_factory=unique_identity)
    timings: Timings = field(default_factory=Timings)
    clock: Callable[[], float] = boot_clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    uniform: Callable[[], float] = random.random
    side: SideThread | None = None
    problem: str = ""
    """Why the last attempt to read or write the lease failed."""
    _lease: Lease | None = None
    _unchanged_since: float = field(init=False)
    _term_ends: float = float("-inf")
    _resigned: bool = False
    _edits: tuple[tuple[str, Edit], ...] = ()
    _editing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._unchanged_since = self.clock()

    def holds(self) -> bool:
        """Return whether this process may write now. Call right before every write, in any thread."""
        return self.clock() < self._term_ends and not self._resigned

    @property
    def annotations(self) -> Mapping[str, str]:
        lease = self._lease
        return lease.metadata.annotations if lease is not None else _NO_ANNOTATIONS

    def edit_annotation(self, key: str, edit: Edit) -> None:
        with self._editing:
            self._edits = (*self._edits, (key, edit))

    @property
    def leader(self) -> str:
        """Return the holder of the lease as last seen; empty if there is none."""
        return (self._lease.spec.holder_identity or "") if self._lease else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead()`; cancel it when the lease is lost, and wait again.

        Returns when `lead()` returns, raises what it raises. In every case, including cancellation,
        the lease is released last.
        """
        here = asyncio.get_running_loop()

        async def lead_here() -> None:
            await lead()

        if self.side is None:
            await self._run(lead)
        else:
            await self.side.run(lambda: self._run(lambda: run_in(here, lead_here)))

    async def _run(self, lead: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                while not await self._attempt():
                    await self.sleep(self._period())
                log.info("leading as %s", self.identity)
                if await self._lead(lead):
                    return
                log.warning(
                    "lost the lease %s/%s to %s",
                    self.namespace,
                    self.name,
                    self.leader or "another replica (not known yet)",
                )
        finally:
            await self._release()

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Return True if `lead` ended on its own, False if the lease was lost."""
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

    async def _renew_until_lost(self) -> None:
        while self.holds():
            await self.sleep(min(self._period(), self._term_ends - self.clock()))
            if not self.holds():
                return
            if not await self._attempt() and self.leader != self.identity:
                self._term_ends = float("-inf")

    def _period(self) -> float:
        return self.timings.retry * (1 + 0.2 * self.uniform())

    async def resign(self) -> None:
        """Stop leading permanently: end the term immediately and release the lease.

        Pending annotation edits are part of the same write. Best effort, within the write timeout;
        the caller ends the process. If another process leads already, only the annotations are
        written. Do not wait for `run`: its work may be stuck.
        """
        self._resigned = True
        await self._release(annotate=True)

    async def _attempt(self) -> bool:
        """Acquire or renew the lease; the term is counted from before the write.

        Returns False if another process holds it, or without a clear answer.
        """
        if self._resigned:
            return False
        try:
            async with asyncio.timeout(self.timings.write_timeout):
                taken = await self._take_or_renew()
        except (ClusterError, TimeoutError) as error:
            if not self.problem:
                log.warning("lease %s/%s: %s", self.namespace, self.name, error or "no answer in time")
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
        started = self.clock()
        try:
            written = await self._write(self._lease, self._record(self._lease))
        except (Conflict, NotFound):
            # Our own unanswered write, or another process's: a read will tell.
            await self._read()
            if self._lease is None or self.leader != self.identity:
                return False
            started = self.clock()
            written = await self._write(self._lease, self._record(self._lease))
        self._observe(written)
        self._term_ends = started + self.timings.renew_deadline
        return True

    async def _create(self) -> bool:
        started = self.clock()
        edits = self._edits
        annotations = {key: text for key, text in _edited(_NO_ANNOTATIONS, edits).items() if text is not None}
        body = {"metadata": {"name": self.name, "annotations": annotations}, "spec": self._record(None)}
        try:
            self._observe(await self.cluster.create(LEASE, body, namespace=self.namespace))
        except Conflict:
            return False
        self._drop(edits)
        self._term_ends = started + self.timings.renew_deadline
        return True

    async def _read(self) -> None:
        try:
            self._observe(await self.cluster.get(LEASE, self.name, self.namespace))
        except NotFound:
            self._lease = None

    def _observe(self, lease: Lease) -> None:
        if self._lease is None or lease.spec != self._lease.spec:
            self._unchanged_since = self.clock()
        self._lease = lease

    def _expired(self) -> bool:
        spec = self._lease.spec if self._lease else LeaseSpec()
        duration = max(spec.lease_duration_seconds or 0, self.timings.duration)
        return self.clock() - self._unchanged_since >= duration

    def _record(self, lease: Lease | None) -> dict[str, Any]:
        now = self._now()
        spec = lease.spec if lease else None
        record = {"holderIdentity": self.identity, "leaseDurationSeconds": self.timings.duration, "renewTime": now}
        if spec is None:
            return record | {"acquireTime": now, "leaseTransitions": 0}
        if spec.holder_identity != self.identity:
            return record | {"acquireTime": now, "leaseTransitions": (spec.lease_transitions or 0) + 1}
        return record

    async def _write(self, seen: Lease, spec: Mapping[str, Any]) -> Lease:
        """Write only if the Lease has not changed since `seen`; otherwise raises Conflict."""
        edits = self._edits
        metadata: dict[str, Any] = {"resourceVersion": seen.metadata.resource_version}
        if annotations := _edited(seen.metadata.annotations, edits):
            metadata["annotations"] = annotations
        patch = {"metadata": metadata, "spec": spec}
        written = await self.cluster.patch(LEASE, self.name, patch, namespace=self.namespace)
        self._drop(edits)
        return written

    def _drop(self, edits: tuple[tuple[str, Edit], ...]) -> None:
        """Drop edits that were written. Others may have been added meanwhile."""
        with self._editing:
            self._edits = tuple(each for each in self._edits if each not in edits)

    def _now(self) -> str:
        return self.wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _release(self, *, annotate: bool = False) -> None:
        """Release the lease so that the next leader need not wait for its expiry. Best effort."""
        self._term_ends = float("-inf")
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(self.timings.write_timeout):
                for _ in range(_RELEASE_ATTEMPTS):
                    with suppress(Conflict):
                        await self._release_once(annotate=annotate)
                        return

    async def _release_once(self, *, annotate: bool) -> None:
        await self._read()
        if self._lease is None:
            return
        if self.leader == self.identity:
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            self._observe(await self._write(self._lease, spec))
            log.info("released the lease %s/%s", self.namespace, self.name)
        elif annotate and self._edits:
            self._observe(await self._write(self._lease, {}))


def _edited(annotations: Mapping[str, str], edits: tuple[tuple[str, Edit], ...]) -> dict[str, str | None]:
    """Return the annotations that the edits change, as a merge patch: None removes one."""
    texts: dict[str, str] = {}
    for key, edit in edits:
        texts[key] = edit(texts.get(key, annotations.get(key, "")))
    return {key: text or None for key, text in texts.items() if text != annotations.get(key, "")}
