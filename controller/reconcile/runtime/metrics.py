"""The controller's metrics for Prometheus. One object per controller, with a registry of its own.

Labels here have few values by construction: never a pod, claim or node name. Metrics that are
computed at scrape time (cards, pods, packing, the queue, watches) are in
`controller.reconcile.observability.collectors`.
"""

from collections.abc import Collection, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.reconcile.runtime.queue_stats import QueueStats
from controller.scheduling.inventory.selector_budget import Payer
from hami_dra.kube.guard import LoopGuard

_DECISION_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._managed: frozenset[str] = frozenset()
        self.queue: QueueStats | None = None
        """The queue of the present term."""
        Gauge("hami_dra_build_info", "Always 1.", ["version"], registry=self.registry).labels(version("hami-dra")).set(
            1
        )
        self.decisions = Counter(
            "hami_dra_decisions",
            "Decisions on pods, by result: placed, refused, error.",
            ["result"],
            registry=self.registry,
        )
        self.decision_seconds = Histogram(
            "hami_dra_decision_seconds",
            "Duration of one decision in seconds, by result; unfinished: interrupted so that other pods get their turn.",
            ["result"],
            buckets=_DECISION_BUCKETS,
            registry=self.registry,
        )
        self.selector_seconds = Counter(
            "hami_dra_selector_cpu_seconds",
            "CPU seconds spent on evaluating selectors, by their place: claim, class.",
            ["payer"],
            registry=self.registry,
        )
        self.selector_overruns = Counter(
            "hami_dra_selector_overruns",
            "Selectors whose evaluation was stopped, by limit: evaluation, expression, claim, namespace.",
            ["limit"],
            registry=self.registry,
        )
        self.commits = Counter(
            "hami_dra_commits",
            "Decisions written, by result: done, stale, refused.",
            ["result"],
            registry=self.registry,
        )
        self.commit_seconds = Histogram(
            "hami_dra_commit_seconds",
            "Seconds from a decision until it is written.",
            buckets=_COMMIT_BUCKETS,
            registry=self.registry,
        )
        self.undos = Counter(
            "hami_dra_undos", "Allocations undone, by cause: node, unschedulable, scheduler, sibling, misplaced, overlap.", ["cause"],
            registry=self.registry,
        )  # fmt: skip
        self.gates_lifted = Counter("hami_dra_gates_lifted", "Scheduling gates removed.", registry=self.registry)
        self.gates_not_lifted = Gauge(
            "hami_dra_gates_not_lifted",
            "Pods whose scheduling gate cannot be removed because the API server refuses the change.",
            registry=self.registry,
        )
        self.orphans_freed = Counter(
            "hami_dra_orphans_freed", "Allocations freed because no pod referred to them.", registry=self.registry
        )
        self.foreign = Counter(
            "hami_dra_foreign_allocations", "Allocations of managed devices by other allocators.", ["driver"],
            registry=self.registry,
        )  # fmt: skip
        self.overlaps = Counter(
            "hami_dra_overlaps",
            "Allocations by other allocators that overlap with our own.",
            ["driver"],
            registry=self.registry,
        )
        self.fence_restored = Counter(
            "hami_dra_fence_restored", "Fence rules that were deleted or changed by others and replaced or restored.", ["driver"],
            registry=self.registry,
        )  # fmt: skip
        self.fence_ready = Gauge(
            "hami_dra_fence_ready", "1 while the fences of all drivers are known to hold.", registry=self.registry
        )
        self.fence_untested = Gauge(
            "hami_dra_fence_untested",
            "1 while the fence of a driver seems to hold, but no free device was available for a probe.",
            ["driver"],
            registry=self.registry,
        )
        self.exclusive = Gauge(
            "hami_dra_exclusive", "1 if the controller allocates, 0 in native mode.", registry=self.registry
        )
        self.leader = Gauge("hami_dra_leader", "1 while this process leads.", registry=self.registry)
        self.refusals = Counter(
            "hami_dra_refusals",
            "Refused decisions by reason code; each counts once for every code with which it refused cards or nodes.",
            ["reason"],
            registry=self.registry,
        )
        self.conflicts = Counter(
            "hami_dra_write_conflicts",
            "Writes to claims that conflicted with another client's write.",
            registry=self.registry,
        )
        self.unclear_writes = Counter(
            "hami_dra_unclear_writes", "Writes without a clear answer, resolved by a read.", registry=self.registry
        )
        self.events_dropped = Counter(
            "hami_dra_events_dropped", "Events dropped because too many were waiting.", registry=self.registry
        )
        self.internal_errors = Counter(
            "hami_dra_internal_errors",
            "Unexpected errors on single objects, by loop: the object was logged and skipped, the loop continued.",
            ["loop"],
            registry=self.registry,
        )

        self.loop_stalled = Counter(
            "hami_dra_loop_stalled_seconds",
            "Seconds for which the main loop was stalled, counting stalls of more than a second.",
            registry=self.registry,
        )
        self.held_back_pods = Gauge(
            "hami_dra_held_back_pods",
            "Pods that are postponed because the decision on them stalled a leader until it gave up.",
            registry=self.registry,
        )

    def begin(self, managed: Iterable[str], *, exclusive: bool) -> None:
        """Initialise the series at start. Counters start at 0: otherwise their first increase would
        be missed.
        """
        self._managed = frozenset(managed)
        self.exclusive.set(int(exclusive))
        for driver in self._managed:
            for counter in (self.foreign, self.overlaps, self.fence_restored, self.fence_untested):
                counter.labels(driver)
        for counter, values in (
            (self.decisions, ("placed", "refused", "error")),
            (self.commits, ("done", "stale", "refused")),
            (self.selector_seconds, tuple(Payer)),
            (self.selector_overruns, ("evaluation", "expression", "claim", "namespace")),
            (self.undos, ("node", "unschedulable", "scheduler", "sibling", "misplaced", "overlap")),
        ):
            for value in values:
                counter.labels(value)
        for value in ("placed", "refused", "error", "unfinished"):
            self.decision_seconds.labels(value)

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
        """Record the drivers whose fence holds untested now."""
        for driver in self._managed:
            self.fence_untested.labels(driver).set(int(driver in drivers))

    def guard(self, loop: str, passing: tuple[type[Exception], ...] = ()) -> LoopGuard:
        """Return a guard whose loop starts with an error count of 0."""
        self.internal_errors.labels(loop)
        return LoopGuard(loop, self.internal_error, passing=passing)

    def internal_error(self, loop: str) -> None:
        """Count an error reported by a `LoopGuard`."""
        self.internal_errors.labels(loop).inc()

    def refused(self, reasons: Iterable[str], *, error: bool) -> None:
        """Count a refused decision. `error`: it could not even search."""
        self.decisions.labels("error" if error else "refused").inc()
        for reason in reasons:
            self.refusals.labels(reason).inc()
