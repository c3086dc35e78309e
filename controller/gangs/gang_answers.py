"""The answers of `decide_gang`: a `GangDecision`, or a `GangUnschedulable`."""

from msgspec import Struct

from controller.decide.answers import Decision, Unschedulable
from controller.decide.refusal_reason import RefusalReason
from controller.decide.scheduling_request import SchedulingRequest


class DomainVerdict(Struct, frozen=True):
    """How one topology domain looked to a gang."""

    name: str
    """`<label>=<value>`; several labels are separated by commas. Empty: all nodes."""
    nodes: int
    """Number of nodes with these values."""
    fits: int
    """Upper bound of the members that fit at once, from columns; the number of members that were
    placed once the domain was tried.
    """
    left: int
    """Members like the hardest one that would still fit after the gang; negative: that many are lacking."""
    score: float
    """Sum of the node scores of its fitting nodes."""
    tried: bool = False
    """Whether the members were tried there."""
    problem: str = ""
    """Why the gang does not fit: `12 of 16 members fit, 4 too few`. Empty if it does."""


class GangDecision(Struct, frozen=True):
    placed: tuple[tuple[SchedulingRequest, Decision], ...]
    """At least `least` of them, in the order of `GangRequest.members`; in that of the decision where a
    member fits only after others.
    """
    left: tuple[tuple[SchedulingRequest, Unschedulable], ...] = ()
    """Elastic members that found no room."""
    domain: str = ""
    """Name of the chosen domain; empty where the gang has no topology constraint."""
    domains: tuple[DomainVerdict, ...] = ()
    """The domains in the order of preference, at most `Options.report_nodes`."""
    steps: int = 0
    """Decisions about single members that were needed."""


class GangUnschedulable(Struct, frozen=True):
    message: str
    """`3 of 4 members fit; ...`, with the domain and what it lacks."""
    refusal: Unschedulable
    """Of the member that found no room in the best attempt."""
    member: str
    """Key of that pod."""
    placeable: int
    """The most members that fitted at once."""
    domains: tuple[DomainVerdict, ...] = ()
    steps: int = 0
    reason: RefusalReason | None = None
    """What the message says; None where it is an error."""

    @classmethod
    def of_elastic(cls, answer: GangDecision) -> "GangUnschedulable":
        """Return the refusal of a gang whose members are all elastic, and none of which found room."""
        first, refusal = answer.left[0]
        return cls(refusal.message, refusal, first.pod.key, 0, answer.domains, answer.steps, refusal.reason)
