"""Periodic readings of the cards of one vendor, or of the containers that share them. Created by
`service` and `usage_watch`, one per vendor.

In: a sampler, called in a thread, and the cards (containers). Out: `readings`. It must not know
Kubernetes, and blocks nothing: a sampling that does not return is given up, and none is started
while it still runs. A failure is logged once, when it begins, and counted; outdated readings are
discarded, because an old temperature is worse than none.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from hami_dra.discovery.errors import DiscoveryError, ToolMissing, Unreadable
from hami_dra.driver.node.threads import InThread, in_thread
from hami_dra.kube.backoff import Backoff
from hami_dra.monitor.readings import Sample, Sampler

log = logging.getLogger(__name__)

Subject = TypeVar("Subject")
Found = TypeVar("Found")

_PATIENCE: Final = 30.0
"""Seconds that one sampling may take."""
_RARELY: Final = 300.0
"""Seconds between samplings that fail repeatedly."""
_LOOKS: Final = 4
"""Readings are outdated after this many missed samplings."""
_CLOSE_SECONDS: Final = 2.0


class Failure(StrEnum):
    """Reason why there is no reading: values of a label."""

    MISSING = "missing"
    FAILED = "failed"
    UNREADABLE = "unreadable"
    HANGS = "hangs"
    UNEXPECTED = "unexpected"


@dataclass(eq=False)
class Monitoring(Generic[Subject, Found]):
    """Sample the cards; `run()` until cancelled. `every`: seconds. `subjects`: cards or containers present now."""

    vendor: str
    sampler: Sampler[Subject, Found]
    subjects: Callable[[], Sequence[Subject]]
    every: float
    _: KW_ONLY
    call: InThread = in_thread
    readings: Mapping[str, Found] = field(default_factory=dict)
    """By uuid (view); replaced, never changed."""
    looks: int = 0
    """Samplings since the start, including failed ones."""
    failures: Counter[Failure] = field(default_factory=Counter)
    problems: tuple[str, ...] = ()
    """Values that the last sampling could not read."""
    _look: asyncio.Future[Sample[Found]] | None = None
    _looked_at: float = 0.0
    _failing: Failure | None = None
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(first=self.every, most=max(self.every, _RARELY))

    @property
    def source(self) -> str:
        return self.sampler.source

    async def run(self) -> None:
        try:
            while True:
                pause = await self._once() if self.subjects() else self.every
                await asyncio.sleep(pause)
        finally:
            if self._look is not None:
                self._look.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.call(self.sampler.close)

    async def _once(self) -> float:
        """Sample once. Returns the seconds until the next sampling."""
        if self._look is None:
            self.looks += 1
            subjects = tuple(self.subjects())
            self._look = asyncio.ensure_future(self.call(lambda: self.sampler.sample(subjects)))
        done, _ = await asyncio.wait({self._look}, timeout=_PATIENCE)
        if not done:
            return self._failed(Failure.HANGS, f"no answer within {_PATIENCE:g} s")
        look, self._look = self._look, None
        try:
            sample = look.result()
        except ToolMissing as error:
            return self._failed(Failure.MISSING, str(error))
        except Unreadable as error:
            return self._failed(Failure.UNREADABLE, str(error))
        except DiscoveryError as error:
            return self._failed(Failure.FAILED, str(error))
        except Exception as error:  # a bug in reading must not end the driver
            if self._failing is None:
                log.exception("%s: monitoring", self.vendor)
            return self._failed(Failure.UNEXPECTED, repr(error))
        self._succeeded(sample)
        return self.every

    def _succeeded(self, sample: Sample[Found]) -> None:
        if self._failing is not None:
            log.info("%s: %s reports again", self.vendor, self.source)
        self._backoff.reset()
        self._failing = None
        self._looked_at = self._now()
        self.readings = sample.readings
        # the texts change with the numbers in them, so that each sampling would log something new
        level = logging.DEBUG if self.problems else logging.WARNING
        for problem in sample.problems:
            log.log(level, "%s: monitoring: %s", self.vendor, problem)
        self.problems = sample.problems

    def _failed(self, kind: Failure, why: str) -> float:
        self.failures[kind] += 1
        level = logging.DEBUG if kind is self._failing else logging.WARNING
        log.log(level, "%s: %s has no readings: %s", self.vendor, self.source, why)
        self._failing = kind
        pause = max(self.every, self._backoff.next())
        if self._now() + pause - self._looked_at > _LOOKS * self.every:
            self.readings, self.problems = {}, ()
        return pause

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
