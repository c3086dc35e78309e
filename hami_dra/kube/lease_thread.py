"""Leader election in a separate thread: a long decision in the leader's loop does not cost the
lease.

`ThreadedElection(elector, side)` implements the elector's own protocol (`lease.Election`). The
elector, with a Cluster of its own, lives in the side thread; what it runs while it leads runs in
the caller's loop. Every rule is the elector's; only the crossing is here. Why it is as safe as in
one thread: `lease`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from hami_dra.kube.lease import Edit, LeaderElector
from hami_dra.kube.side_thread import SideThread, run_in


class ThreadedElection:
    def __init__(self, elector: LeaderElector, side: SideThread) -> None:
        self._elector = elector
        self._side = side

    @property
    def identity(self) -> str:
        return self._elector.identity

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._elector.annotations

    def holds(self) -> bool:
        return self._elector.holds()

    def edit_annotation(self, key: str, edit: Edit) -> None:
        self._elector.edit_annotation(key, edit)

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run the election; see `LeaderElector.run`. `lead` runs in the caller's loop, one at a time."""
        here = asyncio.get_running_loop()

        async def lead_here() -> None:
            await lead()

        await self._side.run(lambda: self._elector.run(lambda: run_in(here, lead_here)))
