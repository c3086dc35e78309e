"""The latest decisions, stored for explanations: in memory, bounded in number and bytes.

They are lost with the process. Filled by the scheduling cycle at each decision; read by the
dashboard and by `hami-dra explain --controller`. Storing copies a few figures (`explain.snapshot`);
the explanation is rendered on demand. Clusters of up to 64 nodes are stored whole; of larger ones
the chosen node, the runner-up and two more. While many pods are decided at once, most are stored
without nodes and cards: placed and refused ones have an allowance each, so that a wave of pods that
fit leaves the explanations of those that do not. It never raises, and never delays a decision for
long.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from controller.allocation import SelectorOverBudget
from controller.decide import Decision, EqualRefusals, Options, SchedulingRequest, Unschedulable
from controller.insight.explain import DecisionSnapshot, bare, explanation_of, share_parts, take
from controller.inventory import Inventory, SliceSpent
from controller.views.explanation import Explanation, GangExplanation
from hami_dra.api.core import Pod

log = logging.getLogger(__name__)

MOST: Final = 2_000
MOST_BYTES: Final = 32 << 20
_DETAILS_PER_SECOND: Final = 5.0
_BURST: Final = 50.0
"""A snapshot costs as much as a decision: after the burst they take a few thousandths of the time."""
_BYTES_OF_MEMBER: Final = 300
"""What a member adds to the explanation of its gang, about."""


class _Allowance(Struct):
    """How many decisions may be stored with nodes and cards: a burst, then `per_second`."""

    per_second: float
    tokens: float = _BURST
    filled_at: float = 0.0

    def take(self, now: float) -> bool:
        """Return whether one more may be. `now`: monotonic seconds."""
        self.tokens = min(_BURST, self.tokens + (now - self.filled_at) * self.per_second)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class _LoggedDecision(Struct):
    at: datetime
    uid: str
    picture: DecisionSnapshot | None
    """None: it was not decided."""
    waiting: Explanation | None = None
    claims: tuple[str, ...] = ()
    gang: GangExplanation | None = None
    """Of which it was decided as a member; its members share it."""

    @property
    def size(self) -> int:
        own = self.picture.size if self.picture is not None else 1_000
        return own + (_BYTES_OF_MEMBER if self.gang is not None else 0)

    def explanation(self, *, brief: bool = False) -> Explanation:
        found = explanation_of(self.picture, self.at, brief=brief) if self.picture is not None else self.waiting
        assert found is not None
        gang = self.gang
        if gang is not None and brief:
            gang = msgspec.structs.replace(gang, members=(), domains=())
        return msgspec.structs.replace(found, gang=gang) if gang is not None else found


class DecisionLog:
    """The latest decision of each pod; of those the latest `most`, in at most about `most_bytes`."""

    def __init__(
        self, most: int = MOST, most_bytes: int = MOST_BYTES, details_per_second: float = _DETAILS_PER_SECOND
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._placed, self._refused = _Allowance(details_per_second), _Allowance(details_per_second)
        self._bytes = 0
        self._kept: OrderedDict[str, _LoggedDecision] = OrderedDict()
        """By key of the pod, oldest first."""
        self._pod_of_claim: dict[str, str] = {}
        self._equal = EqualRefusals()
        self._latest: DecisionSnapshot | None = None
        """The latest one with nodes and cards: the next one has many equal parts."""

    # -- filling -----------------------------------------------------------------------------------

    def record(
        self,
        inventory: Inventory,
        request: SchedulingRequest,
        options: Options,
        answer: Decision | Unschedulable,
        *,
        at: datetime,
        now: float,
    ) -> None:
        """Record a decision before the inventory changes. `at`: wall clock, `now`: monotonic seconds."""
        key = request.pod.key
        before = self._kept.get(key)
        if answer.trace is None and before is not None and _is_same(before, request, answer):
            self._bytes -= before.size
            before.at, before.gang = at, None
            self._bytes += before.size
            self._kept.move_to_end(key)
            return
        allowance = self._refused if isinstance(answer, Unschedulable) else self._placed
        detailed = answer.trace is not None and allowance.take(now)
        try:
            picture = (take if detailed else bare)(inventory, request, options, answer)
            if detailed:
                if self._latest is not None:
                    share_parts(picture, self._latest)
                self._latest = picture
        except (SliceSpent, SelectorOverBudget):
            picture = bare(inventory, request, options, answer)
        except Exception:  # a decision must not fail because it cannot be explained
            log.exception("pod %s: its decision cannot be kept in detail", key)
            picture = bare(inventory, request, options, answer)
        picture.answer = self._equal.of(picture.answer)
        self._keep(key, _LoggedDecision(at, request.pod.metadata.uid, picture, claims=picture.claims))

    def waiting(
        self, pod: Pod, why: str, claims: Iterable[str] = (), *, passing: bool, at: datetime, replacing: bool = False
    ) -> None:
        """Record that the pod waits; it replaces a decision only if `replacing`: that was not carried out."""
        before = self._kept.get(pod.key)
        decided = before is not None and before.picture is not None and before.uid == pod.metadata.uid
        if passing and decided and not replacing:
            return
        moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = Explanation(pod.key, pod.metadata.uid, moment, "waiting" if passing else "error", message=why)
        self._keep(pod.key, _LoggedDecision(at, pod.metadata.uid, None, said, tuple(claims)))

    def together(self, gang: GangExplanation, pods: Iterable[Pod]) -> None:
        """Record that these pods, whose latest decisions are recorded, were decided as members of a gang."""
        for pod in pods:
            kept = self._kept.get(pod.key)
            if kept is not None and kept.uid == pod.metadata.uid:
                self._bytes -= kept.size
                kept.gang = gang
                self._bytes += kept.size

    def _keep(self, key: str, kept: _LoggedDecision) -> None:
        self._drop(key)
        self._kept[key] = kept
        self._bytes += kept.size
        for claim in kept.claims:
            self._pod_of_claim[claim] = key
        while len(self._kept) > self._most or (self._bytes > self._most_bytes and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self._bytes -= kept.size
        for claim in kept.claims:
            if self._pod_of_claim.get(claim) == key:
                del self._pod_of_claim[claim]

    # -- reading -----------------------------------------------------------------------------------

    def of_pod(self, key: str, *, brief: bool = False) -> Explanation | None:
        """Return the decision on a pod, `ns/name`. `brief`: without nodes and cards."""
        kept = self._kept.get(key)
        return kept.explanation(brief=brief) if kept is not None else None

    def of_claim(self, key: str) -> Explanation | None:
        """Return the latest decision on a pod that uses the claim, `ns/name`."""
        pod = self._pod_of_claim.get(key)
        return self.of_pod(pod) if pod else None

    def latest(self, most: int) -> list[Explanation]:
        """Return the latest decisions, newest first, without nodes, cards and members of gangs."""
        newest = list(reversed(self._kept))[: max(most, 0)]
        return [self._kept[key].explanation(brief=True) for key in newest]


def _is_same(kept: _LoggedDecision, request: SchedulingRequest, answer: Decision | Unschedulable) -> bool:
    """Return whether the pod was refused for the same reasons before, perhaps in more detail."""
    picture = kept.picture
    return (
        picture is not None
        and kept.uid == request.pod.metadata.uid
        and isinstance(answer, Unschedulable)
        and isinstance(picture.answer, Unschedulable)
        and dict(picture.answer.reasons) == dict(answer.reasons)
        and picture.answer.error == answer.error
    )
