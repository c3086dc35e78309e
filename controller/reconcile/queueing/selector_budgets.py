"""Budgets of CPU time for the selectors of each namespace, claim and expression.

Created by `term`; the scheduling cycle takes a `DecisionBudget` from it for each evaluation of a
pod and puts it in force (`Inventory.verdicts.within`). Limits are CPU seconds
(`settings.SelectorLimits`):

- slice: what a decision may evaluate without interruption; then other pods get their turn, and the
  pod its next one in time;
- expression: what one selector may cost on all devices, from the first one until all are known;
- claim: what all selectors of a pod's claims may cost until the pod is decided;
- namespace: what its claims may cost per minute; the rest waits.

Selectors of DeviceClasses belong to an administrator. They have a limit of their own and are
charged to no namespace.

Exceeded budgets are remembered by content (a digest), so that the same claim, created again under
another name or in another namespace, is refused without being evaluated, until its pause is over.
The pause doubles each time. Pure but for the clock that is passed in.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from controller.cluster.incremental import LruCache, digest_of_text
from controller.inventory import OverBudget, Overrun, Payer, SliceSpent
from controller.reconcile.runtime import Metrics, SelectorLimits
from hami_dra.api.printable import counted
from hami_dra.api.resource import ResourceClaim
from hami_dra.cel import SHORT
from hami_dra.kube.backoff import doubled

_REMEMBERED: Final = 4_096
"""Limit of stored digests; the oldest are forgotten first."""

Digest = bytes


class _Pause(Struct):
    times: int
    until: float
    what: str


class NamespaceWaits(SliceSpent):
    """The namespace has used up its budget for selectors: evaluate again at `until`."""

    def __init__(self, note: str, until: float) -> None:
        super().__init__(note)
        self.note: Final = note
        self.until: Final = until


class SelectorBudgets:
    """Budgets of all namespaces. `clock`: CPU seconds of the deciding thread."""

    def __init__(self, limits: SelectorLimits, clock: Callable[[], float], metrics: Metrics) -> None:
        self.limits: Final = limits
        self.clock: Final = clock
        self._metrics = metrics
        self.expressions, self.claims = LruCache[float](_REMEMBERED), LruCache[float](_REMEMBERED)
        """CPU seconds by digest, for evaluations in progress."""
        self._pauses: OrderedDict[Digest, _Pause] = OrderedDict()
        self._caused: dict[str, float] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        """Namespace → (debt in CPU seconds, time of that value); each minute pays back a minute's allowance."""

    def of(self, namespace: str, content: Callable[[], Digest], now: float) -> "DecisionBudget":
        """Return the budget of one evaluation of a pod.

        `content`: returns a digest of its claims, called only if a selector must be evaluated.
        """
        return DecisionBudget(self, namespace, content, now)

    def caused_by_others(self) -> dict[str, float]:
        """Return, once, the CPU seconds of decisions that namespaces caused by what stands in pods
        other than the decided one.
        """
        found, self._caused = self._caused, {}
        return found

    # -- for DecisionBudget ------------------------------------------------------------------------

    def pause_of(self, digest: Digest, now: float) -> _Pause | None:
        """Return the pause in force, if any."""
        pause = self._pauses.get(digest)
        return pause if pause is not None and now < pause.until else None

    def begin_pause(self, digest: Digest, what: str, now: float) -> None:
        """Refuse it until the pause is over; afterwards it has its whole budget."""
        self.expressions.drop(digest)
        self.claims.drop(digest)
        before = self._pauses.pop(digest, None)
        times = before.times + 1 if before is not None else 1
        seconds = doubled(self.limits.retry_first, times - 1, self.limits.retry_most)
        self._pauses[digest] = _Pause(times, now + seconds, what)
        if len(self._pauses) > _REMEMBERED:
            self._pauses.popitem(last=False)

    def caused(self, namespace: str, seconds: float) -> None:
        self._caused[namespace] = self._caused.get(namespace, 0.0) + seconds

    def count(self, payer: Payer, seconds: float) -> None:
        self._metrics.selector_seconds.labels(payer).inc(seconds)

    def count_overrun(self, limit: str) -> None:
        self._metrics.selector_overruns.labels(limit).inc()

    def spend(self, namespace: str, seconds: float, now: float) -> None:
        self._spent[namespace] = self._debt(namespace, now) + seconds, now
        if len(self._spent) > _REMEMBERED:
            self._spent = {name: entry for name, entry in self._spent.items() if self._debt(name, now) > 0}

    def wait_of(self, namespace: str, now: float) -> float:
        """Return how long the namespace must wait before it may evaluate one more slice; 0: not at all."""
        over = self._debt(namespace, now) + self.limits.slice - self.limits.namespace
        return max(0.0, over * 60.0 / self.limits.namespace)

    def _debt(self, namespace: str, now: float) -> float:
        seconds, at = self._spent.get(namespace, (0.0, now))
        return max(0.0, seconds - (now - at) * self.limits.namespace / 60.0)


class DecisionBudget:
    """The budget of one evaluation of a pod; a `Budget`."""

    limits: Final = SHORT

    def __init__(self, book: SelectorBudgets, namespace: str, content: Callable[[], Digest], now: float) -> None:
        self._book = book
        self._namespace = namespace
        self._content_of = content
        self._content: Digest | None = None
        self._now = now
        self._slice = 0.0

    @property
    def account(self) -> str:
        return self._namespace

    def clock(self) -> float:
        return self._book.clock()

    def admit(self, expression: str, payer: Payer) -> None:
        """Check before an evaluation. Raises OverBudget, SliceSpent."""
        book, now = self._book, self._now
        pause = book.pause_of(_digest_of(expression, payer), now)
        if pause is None and payer is Payer.CLAIM:
            pause = book.pause_of(self._claims, now)
        if pause is not None:
            raise OverBudget(Overrun(expression, payer, pause.what, pause.until))
        if payer is Payer.CLAIM and (wait := book.wait_of(self._namespace, now)) > 0:
            book.count_overrun("namespace")
            raise NamespaceWaits(
                f"the selectors of namespace {self._namespace} have taken the {book.limits.namespace:g} s of CPU that they may "
                f"take per minute; this pod goes on in {wait:.1f} s",
                now + wait,
            )

    def charge(self, expression: str, payer: Payer, seconds: float, *, done: int, left: int) -> None:
        """Charge an evaluation. Raises OverBudget, SliceSpent."""
        book, limits = self._book, self._book.limits
        book.count(payer, seconds)
        digest = _digest_of(expression, payer)
        total = _added(book.expressions, digest, seconds)
        most = limits.device_class if payer is Payer.CLASS else limits.expression
        if left and total > most:
            what = f"took {total:.2g} s of CPU and {counted(left, 'device')} {'is' if left == 1 else 'are'} left; a selector may take {most:g} s"
            raise self._over(expression, payer, "expression", digest, what)
        if done and not left:
            book.expressions.drop(digest)  # all devices have a result
        if payer is Payer.CLAIM:
            book.spend(self._namespace, seconds, self._now)
            of_claim = _added(book.claims, self._claims, seconds)
            if of_claim > limits.claim:
                what = f"is one of those that took {of_claim:.2g} s of CPU; the selectors of one pod may take {limits.claim:g} s"
                raise self._over(expression, payer, "claim", self._claims, what)
        self.spend(seconds)

    def too_expensive(self, expression: str, payer: Payer, seconds: float) -> OverBudget:
        self._book.count(payer, seconds)
        if payer is Payer.CLAIM:
            self._book.spend(self._namespace, seconds, self._now)
        what = (
            "costs more on a single device than hami-dra allows, about an eighth of what Kubernetes does: "
            "it loops through too many combinations"
        )
        return self._over(expression, payer, "evaluation", _digest_of(expression, payer), what)

    def spend(self, seconds: float, owner: str = "") -> None:
        """Charge other work. Raises SliceSpent."""
        if owner and owner != self._namespace:
            self._book.caused(owner, seconds)
        self._slice += seconds
        if self._slice >= self._book.limits.slice:
            raise SliceSpent

    def decided(self) -> None:
        """Record that the pod has its answer."""
        if self._content is not None:
            self._book.claims.drop(self._content)

    @property
    def _claims(self) -> Digest:
        if self._content is None:
            self._content = self._content_of()
        return self._content

    def _over(self, expression: str, payer: Payer, limit: str, digest: Digest, what: str) -> OverBudget:
        self._book.begin_pause(digest, what, self._now)
        self._book.count_overrun(limit)
        pause = self._book.pause_of(digest, self._now)
        return OverBudget(Overrun(expression, payer, what, pause.until if pause is not None else self._now))


def _added(sums: LruCache[float], digest: Digest, seconds: float) -> float:
    total = (sums.find(digest) or 0.0) + seconds
    sums.put(digest, total)
    return total


def content_of(claims: Iterable[ResourceClaim]) -> Digest:
    """Return a digest of the selectors of some claims, regardless of the claims' names."""
    expressions = {
        selector.cel.expression
        for claim in claims
        for request in claim.spec.devices.requests
        for exact in request.choices
        for selector in exact.selectors
        if selector.cel is not None
    }
    return digest_of_text("\0".join(sorted(expressions)))


def _digest_of(expression: str, payer: Payer) -> Digest:
    """Return the digest of a selector.

    That of a class differs from that of a claim with the same text, so that a claim cannot exhaust
    a class's budget.
    """
    return digest_of_text(f"class {expression}" if payer is Payer.CLASS else f"claim {expression}")
