"""The controller's metrics for Prometheus. One object per controller, with a registry of its own.

Labels here have few values by construction: never a pod, claim or node name. Metrics that are
computed at scrape time (cards, pods, packing, the queue, watches) are in
`controller.reconcile.observability.collectors`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Generic, Literal, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.inventory import Payer
from hami_dra.kube.guard import LoopGuard

State = Literal["ready", "no_room", "not_ours", "waiting", "held"]
"""`Queue` describes each."""


class QueueStats(Protocol):
    def waiting(self) -> tuple[Mapping[State, int], Mapping[State, str]]:
        """Return the number of pods in each state and the creation time of the oldest of each, where there is one."""


_DECISION_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_PREEMPTION_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_BIND_BUCKETS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""A creation timestamp has whole seconds."""
_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)

_M = TypeVar("_M")


class _Declared(Generic[_M]):
    """A metric as a line of `Metrics`, which has it by this name: help, label, the values from the start."""

    def __init__(
        self, kind: Callable[..., _M], name: str, text: str, label: str = "", values: Iterable[str] = (), **more: Any
    ) -> None:
        self.values = tuple(values)
        self._kind = kind
        self._arguments = (f"hami_dra_{name}", text, [label] if label else [])
        self._more = more

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute

    def __get__(self, metrics: "Metrics | None", owner: type) -> _M:
        """Exists for its type: in an instance the metric itself stands in front of it."""
        raise AttributeError(self.attribute)

    def create(self, registry: CollectorRegistry) -> _M:
        return self._kind(*self._arguments, registry=registry, **self._more)


class Metrics:
    build_info = _Declared(Gauge, "build_info", "Always 1.", "version")
    decisions = _Declared(
        Counter,
        "decisions",
        "Decisions on pods, by result: placed, refused, error.",
        "result",
        ("placed", "refused", "error"),
    )
    decision_seconds = _Declared(
        Histogram,
        "decision_seconds",
        "Duration of one decision in seconds, by result; unfinished: interrupted so that other pods get their turn.",
        "result",
        ("placed", "refused", "error", "unfinished"),
        buckets=_DECISION_BUCKETS,
    )
    gang_decisions = _Declared(
        Counter,
        "gang_decisions",
        "Evaluations of gangs, by result: placed, refused, incomplete.",
        "result",
        ("placed", "refused", "incomplete"),
    )
    gang_releases = _Declared(
        Counter, "gang_releases", "Times that the waiting members of a gang lost their devices, as others found none."
    )
    selector_seconds = _Declared(
        Counter,
        "selector_cpu_seconds",
        "CPU seconds spent on evaluating selectors, by their place: claim, class.",
        "payer",
        Payer,
    )
    selector_overruns = _Declared(
        Counter,
        "selector_overruns",
        "Selectors whose evaluation was stopped, by limit: evaluation, expression, claim, namespace.",
        "limit",
        ("evaluation", "expression", "claim", "namespace"),
    )
    commits = _Declared(
        Counter,
        "commits",
        "Decisions written, by result: done, stale, refused.",
        "result",
        ("done", "stale", "refused"),
    )
    commit_seconds = _Declared(
        Histogram, "commit_seconds", "Seconds from a decision until it is written.", buckets=_COMMIT_BUCKETS
    )
    bind_seconds = _Declared(
        Histogram,
        "bind_seconds",
        "Seconds from the creation of a pod until it is bound, of pods that fitted at once.",
        buckets=_BIND_BUCKETS,
    )
    preemptions = _Declared(
        Counter,
        "preemptions",
        "Places held for units without room, by result: begun (pods are evicted), awaited (pods terminate already), "
        "moving (pods move to make room), reserved (the unit has waited for long), placed, given_up.",
        "result",
        ("begun", "awaited", "moving", "reserved", "placed", "given_up"),
    )
    evictions = _Declared(Counter, "evictions", "Pods evicted for others.")
    preemption_seconds = _Declared(
        Histogram,
        "preemption_seconds",
        "Seconds for which a place was held until its unit was placed.",
        buckets=_PREEMPTION_BUCKETS,
    )
    undos = _Declared(
        Counter,
        "undos",
        "Allocations undone, by cause: node, unschedulable, scheduler, sibling, gang, misplaced, overlap.",
        "cause",
        ("node", "unschedulable", "scheduler", "sibling", "gang", "misplaced", "overlap"),
    )
    repeated_undos = _Declared(
        Counter, "repeated_undos", "Allocations of a pod that were undone after another of the same pod had been."
    )
    gates_lifted = _Declared(Counter, "gates_lifted", "Scheduling gates removed.")
    gates_not_lifted = _Declared(
        Gauge,
        "gates_not_lifted",
        "Pods whose scheduling gate cannot be removed because the API server refuses the change.",
    )
    orphans_freed = _Declared(Counter, "orphans_freed", "Allocations freed because no pod referred to them.")
    foreign = _Declared(Counter, "foreign_allocations", "Allocations of managed devices by other allocators.", "driver")
    overlaps = _Declared(Counter, "overlaps", "Allocations by other allocators that overlap with our own.", "driver")
    fence_restored = _Declared(
        Counter,
        "fence_restored",
        "Fence rules that were deleted or changed by others and replaced or restored.",
        "driver",
    )
    fence_ready = _Declared(Gauge, "fence_ready", "1 while the fences of all drivers are known to hold.")
    fence_untested = _Declared(
        Gauge,
        "fence_untested",
        "1 while the fence of a driver seems to hold, but no free device was available for a probe.",
        "driver",
    )
    exclusive = _Declared(Gauge, "exclusive", "1 if the controller allocates, 0 in native mode.")
    leader = _Declared(Gauge, "leader", "1 while this process leads.")
    refusals = _Declared(
        Counter,
        "refusals",
        "Refused decisions by reason code; each counts once for every code with which it refused cards or nodes.",
        "reason",
    )
    conflicts = _Declared(Counter, "write_conflicts", "Writes to claims that conflicted with another client's write.")
    unclear_writes = _Declared(Counter, "unclear_writes", "Writes without a clear answer, resolved by a read.")
    events_dropped = _Declared(Counter, "events_dropped", "Events dropped because too many were waiting.")
    internal_errors = _Declared(
        Counter,
        "internal_errors",
        "Unexpected errors on single objects, by loop: the object was logged and skipped, the loop continued.",
        "loop",
    )
    loop_stalled = _Declared(
        Counter,
        "loop_stalled_seconds",
        "Seconds for which the main loop was stalled, counting stalls of more than a second.",
    )
    held_back_pods = _Declared(
        Gauge,
        "held_back_pods",
        "Pods that are postponed because the decision on them stalled a leader until it gave up.",
    )

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._managed: frozenset[str] = frozenset()
        self.queue: QueueStats | None = None
        """The queue of the present term."""
        for declared in _declared():
            setattr(self, declared.attribute, declared.create(self.registry))
        self.build_info.labels(version("hami-dra")).set(1)

    def begin(self, managed: Iterable[str], *, exclusive: bool) -> None:
        """Initialise the series at start. Counters start at 0: otherwise their first increase would be missed."""
        self._managed = frozenset(managed)
        self.exclusive.set(int(exclusive))
        for driver in self._managed:
            for counter in (self.foreign, self.overlaps, self.fence_restored, self.fence_untested):
                counter.labels(driver)
        for declared in _declared():
            for value in declared.values:
                getattr(self, declared.attribute).labels(value)

    def lead(self, *, leads: bool) -> None:
        """Record the start or end of a term."""
        self.leader.set(int(leads))
        if not leads:
            self.fence_ready.set(0)
            self.held_back_pods.set(0)
            self.gates_not_lifted.set(0)
            self.untested(())
            self.queue = None

    def untested(self, drivers: Collection[str]) -> None:
        for driver in self._managed:
            self.fence_untested.labels(driver).set(int(driver in drivers))

    def guard(self, loop: str, passing: tuple[type[Exception], ...] = ()) -> LoopGuard:
        """Return a guard whose loop starts with an error count of 0."""
        self.internal_errors.labels(loop)
        return LoopGuard(loop, self.internal_error, passing=passing)

    def internal_error(self, loop: str) -> None:
        self.internal_errors.labels(loop).inc()

    def refused(self, reasons: Iterable[str], *, error: bool) -> None:
        """Count a refused decision. `error`: it could not even search."""
        self.decisions.labels("error" if error else "refused").inc()
        for reason in reasons:
            self.refusals.labels(reason).inc()


def _declared() -> Iterator[_Declared[Any]]:
    """Yield the metrics in the order of their declaration, which is that of /metrics."""
    return (each for each in vars(Metrics).values() if isinstance(each, _Declared))
