"""A cluster that dies under its user: stands between a controller and the memory cluster."""

import asyncio
from typing import Any

from hami_dra.kube.protocol import Cluster, Unavailable


class Mortal:
    """At write number `at` (from 1) the user stops for ever: `before` it is carried out, or after. Then nothing gets through.

    As with SIGKILL, no clean-up of the user reaches the cluster any more.
    """

    def __init__(self, inner: Cluster, at: int, *, before: bool) -> None:
        self._inner = inner
        self._at = at
        self._before = before
        self.writes = 0
        self.dead = asyncio.Event()

    def at_write(self, number: int, *, before: bool) -> None:
        self._at = number
        self._before = before

    async def _write(self, verb: str, *arguments: Any, **options: Any) -> Any:
        self._check()
        if verb != "evict" and arguments[0].name in ("Event", "Lease"):
            return await getattr(self._inner, verb)(*arguments, **options)
        self.writes += 1
        mine = self.writes
        if mine == self._at and self._before:
            await self._die()
        try:
            return await getattr(self._inner, verb)(*arguments, **options)
        finally:
            if mine == self._at or self.dead.is_set():
                await self._die()

    async def _die(self) -> None:
        self.dead.set()
        await asyncio.Event().wait()

    def _check(self) -> None:
        if self.dead.is_set():
            raise Unavailable("the process is dead")

    async def patch(self, *arguments: Any, **options: Any) -> Any:
        return await self._write("patch", *arguments, **options)

    async def create(self, *arguments: Any, **options: Any) -> Any:
        return await self._write("create", *arguments, **options)

    async def delete(self, *arguments: Any, **options: Any) -> Any:
        return await self._write("delete", *arguments, **options)

    async def evict(self, *arguments: Any, **options: Any) -> Any:
        return await self._write("evict", *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        self._check()
        return getattr(self._inner, name)
