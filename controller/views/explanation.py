"""The explanation of one decision, as it is stored, served as JSON (camelCase) and printed.

Created by `controller.insight.explain.explain` and `controller.reconcile.runtime.decision_log`;
read by `hami-dra explain` and the dashboard. Keys may be added, never removed. Texts are English,
for people; no program should have to parse them.
"""

from typing import Final, Literal

import msgspec

from controller.reasons import Reason
from controller.views import View

Outcome = Literal["placed", "refused", "error", "waiting", "unmanaged"]
"""`refused`: no node has room. `error`: the pod or its claims must be fixed. `waiting`: not decided
yet. `unmanaged`: the pod requests no device that hami-dra allocates; only the command says it.
"""

RANK: Final = "rank"
TOPOLOGY: Final = "topology"
PREFERENCE: Final = "preference"
SCORE: Final = "node score"
TIE: Final = "tie"
NAME: Final = "name"
NOMINATED: Final = "nominated"


class Term(View, frozen=True):
    """One summand of a score."""

    name: str
    """`shares`, `cores`, `memory`, or a component of another node policy."""
    value: float
    """Its contribution to the score, weight included."""
    text: str = ""
    """The figures it is computed from: `12 of 80`."""


class PolicyUsed(View, frozen=True):
    axis: str
    """`node`, `packing` (if its weights matter), `device`, `weights`, or the annotation with a vendor's preferences."""
    value: str
    origin: str
    """`annotation of Pod default/x`, `parameters of ...`, `controller default`."""
    claim: str = ""
    """`ns/name`; empty if the policy holds for the whole pod."""


class RequestAsked(View, frozen=True):
    """One request of the pod, in the order in which requests are allocated."""

    claim: str
    request: str
    """As in allocation results: `request`, or `request/subrequest`."""
    device_class: str
    count: int
    """0: all devices of the node."""
    text: str = ""
    """Amounts on each card: `memory 7500Mi, cores 0`; empty: the driver's defaults."""
    ours: bool = True
    """False: kube-scheduler allocates it."""


class CardExplanation(View, frozen=True):
    """One card from the point of view of one request."""

    device: str
    """`driver/pool/device`."""
    uuid: str = ""
    product: str = ""
    index: int = -1
    """Number on the node; -1 if there is none."""
    claim: str = ""
    request: str = ""
    """Name of the request, one of `Explanation.requests`."""
    code: str = ""
    """HAMi's reason code; empty if the card fits."""
    text: str = ""
    """The figures compared: `asks 20480 MiB of memory, 8192 of 81920 MiB are free`."""
    score: float = 0.0
    """HAMi's score of the card including the request; 0 without terms if it was not scored."""
    terms: tuple[Term, ...] = ()
    chosen: bool = False


class NodeExplanation(View, frozen=True):
    node: str
    fits: bool
    chosen: bool = False
    score: float = 0.0
    """Score by the node policy, before the pod is placed."""
    terms: tuple[Term, ...] = ()
    """The summands of `score`."""
    rank: int = 0
    """Which choice of prioritized lists the node can meet: higher is better, compared first; 0: no list."""
    topology: float = 0.0
    """The vendors' value of the best set of cards; higher is better, compared before the score."""
    preference: int = 0
    """What the pod prefers, by kube-scheduler's scores: higher is better, compared after `topology`."""
    preferences: tuple[Term, ...] = ()
    """The summands of `preference`, by kube-scheduler's plugin."""
    tie: float = 0.0
    """The vendors' value that decides between nodes of equal score."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason code → cards of the node, or 1 for the node itself. Empty for nodes that fit."""
    text: str = ""
    """Why the node does not fit, if the code alone does not say it."""
    cards: tuple[CardExplanation, ...] = ()
    """Empty if no card was evaluated, or details were left out."""


class ChosenDevice(View, frozen=True):
    claim: str
    request: str
    device: str
    score: float = 0.0


class RunnerUp(View, frozen=True):
    """The node that would have been chosen if the chosen one had not existed."""

    node: str
    score: float
    lost_by: float
    """Difference in the deciding key; 0 for `name` and `nominated`."""
    because: str
    """The first key in which it was worse: `rank`, `topology`, `node score`, `tie`, `name`, `nominated`."""
    text: str = ""


class GangMember(View, frozen=True):
    pod: str
    """`ns/name`."""
    node: str = ""
    """Where it runs, or where this decision would place it."""
    runs: bool = False


class GangDomain(View, frozen=True):
    """One topology domain from the point of view of a gang."""

    name: str
    """`<label>=<value>`."""
    nodes: int
    fits: int
    """Members that fit there at once, at most."""
    left: int
    """Members that would still fit after the gang; negative: that many are lacking."""
    score: float = 0.0
    chosen: bool = False
    problem: str = ""


class GangExplanation(View, frozen=True):
    """The decision on all members of the pod's gang."""

    gang: str
    """`PodGroup ns/name`."""
    min_count: int
    members: tuple[GangMember, ...]
    fits: bool
    """Whether the members that wait can all be placed; else `message` says why not."""
    message: str = ""
    domains: tuple[GangDomain, ...] = ()
    """In order of preference; empty if the gang has no topology constraint."""
    reason: Reason | None = None
    """What the message says, in parts; None where the gang fits, or cannot be decided on."""
    succeeded: int = 0
    """Number of members that ended well; each stands in for one that does not exist."""

    @property
    def existing(self) -> int:
        return len(self.members) + self.succeeded


class Explanation(View, frozen=True):
    pod: str
    """`ns/name`."""
    uid: str
    at: str
    """Time of the decision, RFC 3339; empty: computed on the present state."""
    outcome: Outcome
    node: str = ""
    message: str = ""
    reason: Reason | None = None
    """Of a refused pod, what the message says, in parts. None where the message is an error."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """First reason code → number of cards or nodes, over the nodes that do not fit."""
    why: tuple[str, ...] = ()
    """Of a refused pod, why some nodes do not fit, beyond the message: plugin of kube-scheduler, object, figure."""
    policies: tuple[PolicyUsed, ...] = ()
    requests: tuple[RequestAsked, ...] = ()
    nodes: tuple[NodeExplanation, ...] = ()
    """The chosen node, the runner-up, the other fitting nodes from best to worst, then those that do not fit."""
    chosen: tuple[ChosenDevice, ...] = ()
    runner_up: RunnerUp | None = None
    fitting: int = 0
    unfit: int = 0
    nodes_left_out: int = 0
    """Number of nodes that are not in `nodes`."""
    notes: tuple[str, ...] = ()
    gang: GangExplanation | None = None
    """None: the pod is no member of a gang, or was decided alone."""


def to_json(what: Explanation | list[Explanation]) -> bytes:
    return msgspec.json.encode(what)


def from_json(text: bytes | str) -> Explanation:
    """Parse an explanation. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(text, type=Explanation)
