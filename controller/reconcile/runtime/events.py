"""Sends events without ever delaying the caller.

Called by every part of `reconcile`: `report` queues a message and returns at once; `run` sends in
the background. A repeated message about an object becomes a series of the first event, whose count
is updated at most once a minute. So does a message of the same topic with other figures, for a
configurable time (Kubernetes does not allow changes to an event's note); the newest figures are
sent when that time is over, unless a normal event of the object came in between. Excess events are
dropped and counted; a lost event never affects an allocation. It must not raise.

Namespaces take turns, a few events of each at a time (`Lanes`): a namespace with thousands of
events, or a slow admission webhook, delays no other namespace, and loses its own events first.

An event costs the API server half of what a write to a claim costs. Warnings and normal events
therefore have separate rates, and normal events are slowed down while warnings wait or commits are
in progress (`yield_to`).
"""

import asyncio
import heapq
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from controller.reconcile.runtime.clock import Clock
from controller.reconcile.runtime.messages import WARNING, Message
from controller.reconcile.runtime.metrics import Metrics
from controller.settings.controller import ObservabilitySettings
from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.times import micro_timestamp
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, NotFound
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

CONTROLLER: Final = "hami.io/controller"
_WAITING_MOST: Final = 2_000
"""Limit for warnings, and for all others. Beyond it, the namespace with the most waiting events loses its last one."""
_AT_ONCE: Final = 16
_PER_NAMESPACE: Final = 2
"""Concurrent requests for each of the two kinds, and those for one namespace: at 25 events a
second, they suffice unless a request takes longer than 80 ms, and each has a connection of its own.
"""
_REMEMBERED: Final = 4_000
_SERIES_SECONDS: Final = 60.0
_FORGET_SECONDS: Final = 600.0
_NAME_LENGTH: Final = 200
_BUSY_SHARE: Final = 0.05
_LOOK_AGAIN: Final = 0.5
"""Seconds after which the end of a busy period is noticed."""

_Key = tuple[str, str, str]
"""(object, reason, topic): the identity of a series."""


class _Series(Struct):
    namespace: str
    name: str
    note: str
    began_at: float
    uid: str = ""
    """Of the event, once it is known to exist."""
    count: int = 1
    sent_at: float = 0.0
    last_at: float = 0.0


class _News(Struct, frozen=True):
    kind: Kind[Any]
    about: Object
    message: Message
    action: str


class _Job(Struct, frozen=True):
    """What waits to be sent, hundreds at times: work for `Lanes`, of which the event is made in its turn."""

    outbox: "_Outbox"
    series: _Series
    moment: datetime
    news: _News | None = None
    """None: update the count of the series."""

    def __call__(self) -> Awaitable[None]:
        return self.outbox.deliver(self)


class _Pace:
    """A token bucket: `burst` events at once, then `per_second`. Waiters are served in order."""

    def __init__(self, burst: float, per_second: float, clock: Clock, share: Callable[[], float]) -> None:
        """Create a bucket. `share`: the fraction of the rate that applies at present."""
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._share = share
        self._tokens = burst
        self._filled_at = clock.monotonic()
        self._order = asyncio.Lock()

    async def wait(self) -> None:
        async with self._order:
            while pause := self._missing():
                await self._clock.sleep(min(pause, _LOOK_AGAIN))
            self._tokens -= 1

    def _missing(self) -> float:
        """Return the seconds until there is a token, or 0.0."""
        now, per_second = self._clock.monotonic(), self._per_second * self._share()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * per_second)
        self._filled_at = now
        return 0.0 if self._tokens >= 1 else max((1 - self._tokens) / per_second, 0.001)


class _Outbox:
    """Waiting events of one importance."""

    def __init__(self, pace: _Pace, send: Callable[[_Job], Awaitable[None]]) -> None:
        self.lanes = Lanes(_PER_NAMESPACE, _AT_ONCE)
        self._pace = pace
        self._send = send

    async def deliver(self, job: _Job) -> None:
        await self._pace.wait()
        await self._send(job)


class Events:
    def __init__(self, cluster: Cluster, clock: Clock, metrics: Metrics, settings: ObservabilitySettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._metrics = metrics
        self._guard = metrics.guard("events")
        self._identity = settings.identity[:128]
        self._same_topic = settings.event_interval
        """Seconds during which other figures of the same topic belong to the series."""
        self._warnings = _Outbox(_Pace(300.0, 25.0, clock, lambda: 1.0), self._deliver)
        slower = _Pace(50.0, 20.0, clock, lambda: _BUSY_SHARE if self._has_better_to_do() else 1.0)
        self._others = _Outbox(slower, self._deliver)
        self._is_busy: Callable[[], bool] = lambda: False
        self._wake = asyncio.Event()
        self._known: OrderedDict[_Key, _Series] = OrderedDict()
        self._serial = 0
        self._later: dict[str, dict[_Key, _News]] = {}
        """By object and series."""
        self._due: list[tuple[float, _Key]] = []
        """A heap. Entries without messages stay until their time."""

    def yield_to(self, is_busy: Callable[[], bool]) -> None:
        """Slow down normal events while `is_busy` is true, in favour of more urgent requests."""
        self._is_busy = is_busy

    def report(self, kind: Kind[Any], about: Object, message: Message, action: str = "Allocate") -> None:
        now = self._clock.monotonic()
        outbox = self._warnings if message.type == WARNING else self._others
        who = about.metadata.uid or about.key
        key = (who, message.reason, message.topic or message.note)
        series = self._known.get(key)
        if message.type != WARNING:
            self._later.pop(who, None)
        if series is not None and self._goes_on(series, message, now):
            self._known.move_to_end(key)
            series.count += 1
            series.last_at = now
            if series.note != message.note:
                self._put_off(series, key, _News(kind, about, message, action))
            if now - series.sent_at >= _SERIES_SECONDS and not outbox.lanes.waits(series.namespace, series.name):
                series.sent_at = now
                self._enqueue(_Job(outbox, series, self._clock.wall()))
            return
        self._serial += 1
        moment = self._clock.wall()
        name = f"{about.metadata.name[:_NAME_LENGTH]}.{int(moment.timestamp() * 1e6):x}{self._serial:04x}"
        series = _Series(about.metadata.namespace or "default", name, message.note, now, sent_at=now, last_at=now)
        self._known[key] = series
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self._enqueue(_Job(outbox, series, moment, _News(kind, about, message, action)))

    def _goes_on(self, series: _Series, message: Message, now: float) -> bool:
        same = series.note == message.note or now - series.began_at < self._same_topic
        return same and now - series.last_at < _FORGET_SECONDS

    def _put_off(self, series: _Series, key: _Key, later: _News) -> None:
        others = self._later.setdefault(key[0], {})
        if key not in others:
            heapq.heappush(self._due, (series.began_at + self._same_topic, key))
            self._wake.set()
        others[key] = later

    def _report_what_is_due(self) -> None:
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            _, key = heapq.heappop(self._due)
            others = self._later.get(key[0], {})
            later = others.pop(key, None)
            if not others:
                self._later.pop(key[0], None)
            if later is not None:
                if (series := self._known.get(key)) is not None:
                    series.began_at = float("-inf")  # over, however its time is rounded
                self.report(later.kind, later.about, later.message, later.action)

    async def run(self) -> None:
        """Send events until cancelled."""
        async with self._warnings.lanes, self._others.lanes:
            while True:
                due = self._due[0][0] - self._clock.monotonic() if self._due else math.inf
                await wait_at_most(self._wake, due)
                self._wake.clear()
                self._report_what_is_due()

    def _has_better_to_do(self) -> bool:
        return self._is_busy() or len(self._warnings.lanes) > 0

    def _enqueue(self, job: _Job) -> None:
        lanes = job.outbox.lanes
        lanes.add(job.series.namespace, job.series.name, job)
        if len(lanes) > _WAITING_MOST:
            lanes.drop_one()
            self._metrics.events_dropped.inc()

    async def _deliver(self, job: _Job) -> None:
        with self._guard.each(job.series.name):
            await self._send(job)

    def _body(self, news: _News, series: _Series, moment: datetime) -> dict[str, Any]:
        kind, meta, message = news.kind, news.about.metadata, news.message
        regarding = {"apiVersion": kind.api_version, "kind": kind.name, "name": meta.name, "uid": meta.uid}
        if meta.namespace:
            regarding["namespace"] = meta.namespace
        return {
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity,
            "action": news.action,
            "reason": message.reason,
            "regarding": {name: value for name, value in regarding.items() if value},
            "note": message.note,
            "type": message.type,
            "metadata": {"name": series.name, "namespace": series.namespace},
            "eventTime": micro_timestamp(moment),
        }

    async def _send(self, job: _Job) -> None:
        series = job.series
        try:
            if job.news is not None:
                body = self._body(job.news, series, job.moment)
                made = await self._cluster.create(kinds.EVENT, body, namespace=series.namespace)
                series.uid = made.metadata.uid
            elif not series.uid:
                series.last_at = float("-inf")
            else:
                going_on = {"count": series.count, "lastObservedTime": micro_timestamp(self._clock.wall())}
                patch = {"metadata": {"uid": series.uid}, "series": going_on}
                await self._cluster.patch(kinds.EVENT, series.name, patch, namespace=series.namespace)
        except (NotFound, Conflict):
            # The namespace is being deleted, the event has expired, or one of somebody else has its
            # name: the next message starts a new series.
            series.last_at = float("-inf")
        except ClusterError as error:
            self._metrics.events_dropped.inc()
            log.debug("event not sent: %s", error)
