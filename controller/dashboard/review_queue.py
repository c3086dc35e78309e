"""The order of access reviews: accounts take turns, whatever the number of their tokens and users.

Used by `access`. Reviews run under the controller's name, so their number is bounded: by account,
which is the namespace of a ServiceAccount (a tenant may create hundreds of them there) or the
name of another user.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct, field

AT_ONCE: Final = 8
MOST_USERS: Final = 4
"""Users of one account that are reviewed at once."""
BURST: Final = 2_000
PER_SECOND: Final = 40
"""Reviews of one account: a user of 500 namespaces is reviewed again every 30 s."""


class Busy(Exception):
    """The account has used its reviews; later there are more."""


class _Account(Struct):
    left: float
    seen: float
    users: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class ReviewQueue:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """Those with users under review, or that have not got all their reviews back. The next turn is the first's."""
        self._running = 0

    @asynccontextmanager
    async def user(self, account: str, reviews: int) -> AsyncIterator[None]:
        """Review a user of the account, with at most this number of `reviews`. Raises Busy."""
        self._forget_idle()
        entry = self._accounts.get(account)
        now = self._clock()
        if entry is None:
            entry = self._accounts[account] = _Account(BURST, now)
        entry.left = min(entry.left + (now - entry.seen) * PER_SECOND, BURST)
        entry.seen = now
        if entry.users >= MOST_USERS or entry.left < reviews:
            raise Busy
        entry.left -= reviews
        entry.users += 1
        try:
            yield
        finally:
            entry.users -= 1

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Wait for a turn of the account, within `user`."""
        turn = asyncio.get_running_loop().create_future()
        self._accounts[account].waiting.append(turn)
        self._start()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end()
            raise
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        self._running -= 1
        self._start()

    def _start(self) -> None:
        """Give the free places to the accounts in turn."""
        passed = 0
        while self._running < AT_ONCE and passed < len(self._accounts):
            account, entry = next(iter(self._accounts.items()))
            self._accounts.move_to_end(account)
            passed += 1
            while entry.waiting:
                turn = entry.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    self._running += 1
                    passed = 0
                    break

    def _forget_idle(self) -> None:
        now = self._clock()
        idle = [
            account
            for account, entry in self._accounts.items()
            if not entry.users and entry.left + (now - entry.seen) * PER_SECOND >= BURST
        ]
        for account in idle:
            del self._accounts[account]
