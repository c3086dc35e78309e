"""The commit of a gang: all its members are written before the gate of the first one is lifted.

Created by `binding_cycle` for members that must run together; each member is a commit of its own
(`claim_commit`) that meets the others twice:

    each member: nominate, mark ──┐                ┌── allocate ──┐           ┌── lift the gate
                                  all are prepared                all are written
                                  └ any failure: nothing          └ any failure: every member
                                    was allocated                   takes its allocation back

A member holds a slot while it writes and none while it waits, so gangs cannot block each other. If
the process dies, the next leader finds members with allocations and gates, and either places the
rest next to them or releases them (`scheduling_cycle.gangs`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass

from controller.decide import Decision
from controller.gangs import GangKey, has_terms
from controller.reconcile.binding.claim_commit import ClaimCommitter
from controller.reconcile.binding.claim_writer import Stale
from controller.reconcile.binding.commit_slots import CommitSlots
from hami_dra.api.core import Pod


@dataclass(eq=False)
class GangCommit:
    """One commit of these pods, in the order in which kube-scheduler takes them from its queue.

    `check`: why the gang must not run after all, or empty. `done`: called when all members have
    ended.
    """

    key: GangKey
    pods: Sequence[Pod]
    committer: ClaimCommitter
    slots: CommitSlots
    _: KW_ONLY
    check: Callable[[], Awaitable[str]]
    done: Callable[[], None]

    def __post_init__(self) -> None:
        self._under_way = len(self.pods)
        self._turns = asyncio.Semaphore(self.slots.at_once(self.key.namespace))
        self._meeting = asyncio.Barrier(len(self.pods))
        self._problem = ""
        """Why the gang is not committed."""
        self._order: dict[str, int] = {}
        """Uid → place, where kube-scheduler admits each member only after those before it."""
        if any(map(has_terms, self.pods)):
            self._order = {pod.metadata.uid: place for place, pod in enumerate(self.pods)}
        self._ended = [asyncio.Event() for _ in self._order]

    @property
    def lane(self) -> str:
        """The lane in which gates are lifted one after the other; empty where any order will do."""
        return str(self.key) if self._order else ""

    async def commit(self, pod: Pod, decision: Decision) -> Pod:
        """Write one member and wait for the others. Returns the pod as it was before its
        allocation.

        Raises Stale, also if another member failed; Rejected, LeadershipLost.
        """
        try:
            async with self._turn():
                # kube-scheduler counts nominated pods on a node whose spread it judges
                prepared = await self.committer.prepare(pod, decision, nominate=not self._order)
            await self._meet(last=False)
            async with self._turn():
                written = await self.committer.allocate(pod, decision, prepared)
        except BaseException as error:
            await self._fail(f"pod {pod.key}: {error}")
            raise
        try:
            await self._meet(last=True)
        except BaseException as error:
            await self._fail(f"pod {pod.key}: {error}")
            if isinstance(error, Exception):  # not if the process ends
                async with self._turn():
                    await self.committer.take_back(written, pod)
            raise
        if (place := self._order.get(pod.metadata.uid, 0)) > 0:
            await self._ended[place - 1].wait()
        if self._order:
            self._ended[place].set()
        return prepared.pod

    def member_ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.done()

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """Hold a turn of the gang and a slot of its namespace, for one member's writes."""
        async with self._turns, self.slots.held(self.key.namespace):
            yield

    async def _meet(self, *, last: bool) -> None:
        """Wait until all members are here. Raises Stale if one of them failed."""
        is_complete = self._meeting.n_waiting == self._meeting.parties - 1
        if last and is_complete and not self._problem and (problem := await self.check()):
            await self._fail(problem)
        try:
            await self._meeting.wait()
        except asyncio.BrokenBarrierError:
            raise Stale(f"{self.key} is not committed: {self._problem}") from None

    async def _fail(self, problem: str) -> None:
        if not self._problem:
            self._problem = problem
            await self._meeting.abort()
