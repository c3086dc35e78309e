"""Watch what containers on this node would lack: poll the vendor, because files come and go.

Run by `service` for each driver. In: a function that reads files and is therefore called in a
thread. Out: `text`, the annotation for the slice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from hami_dra.api.nodelacks import Lack, LackKind, encode
from hami_dra.driver.node.threads import InThread
from hami_dra.kube.guard import LoopGuard

log = logging.getLogger(__name__)


class LackWatch:
    """Poll the vendor. `ask` returns what containers lack; `changed` is called when it changed."""

    def __init__(self, driver: str, ask: Callable[[], Sequence[Lack]], changed: Callable[[], None]) -> None:
        self.text: str | None = None
        """Value of the annotation; empty where nothing is lacking; None before the first answer."""
        self._driver = driver
        self._ask = ask
        self._changed = changed
        self._known: frozenset[str] = frozenset()

    async def run(self, every: float, call: InThread, guard: LoopGuard) -> None:
        """Poll every `every` seconds until cancelled."""
        while True:
            with guard.each(f"what {self._driver}'s containers lack"):
                self._tell(await call(self._ask))
            await asyncio.sleep(every)

    def _tell(self, found: Sequence[Lack]) -> None:
        for lack in found:
            if lack.message not in self._known:
                level = logging.INFO if lack.kind is LackKind.USAGE else logging.WARNING
                log.log(level, "%s: %s", self._driver, lack.message)
        self._known = frozenset(lack.message for lack in found)
        text = encode(found)
        if text != self.text:
            self.text = text
            self._changed()
