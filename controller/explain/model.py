"""What is said about one decision: the form in which it is kept, served as JSON (camelCase) and printed.

Made by `controller.explain.explain` and `controller.reconcile.decisionlog`; read by `hami-dra explain` and the page. Keys may be
added, never removed. Texts are for people, English, and hold nothing that a program should have to read.
"""

from typing import Final, Literal

import msgspec

Outcome = Literal["placed", "refused", "error", "waiting"]
"""`refused`: no node has room. `error`: something about the pod or its claims must be mended. `waiting`: not decided on."""

RANK: Final = "rank"
TOPOLOGY: Final = "topology"
SCORE: Final = "node score"
TIE: Final = "tie"
NAME: Final = "name"
NOMINATED: Final = "nominated"


class Term(msgspec.Struct, frozen=True, rename="camel"):
    """One summand of a score."""

    name: str
    """`shares`, `cores`, `memory`, or what another node policy is made of."""
    value: float
    """What it adds to the score, weight included."""
    text: str = ""
    """The figures behind it: `12 of 80`."""


class PolicyUsed(msgspec.Struct, frozen=True, rename="camel"):
    axis: str
    """`node`, `packing` (where its weights have a say), `device`, `weights`, or the annotation that says what is wanted of a vendor."""
    value: str
    origin: str
    """`annotation of Pod default/x`, `parameters of ...`, `controller default`."""
    claim: str = ""
    """`ns/name`; empty where it holds for the whole pod."""


class RequestAsked(msgspec.Struct, frozen=True, rename="camel"):
    """What the pod asks for, in the order in which it is served."""

    claim: str
    request: str
    """As allocation results spell it: `request`, or `request/subrequest`."""
    device_class: str
    count: int
    """0 = all of the node."""
    text: str = ""
    """Amounts of each card: `memory 7500Mi, cores 0`; empty = as the driver gives by default."""
    ours: bool = True
    """False: kube-scheduler allocates it."""


class CardExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """One card as one request saw it."""

    device: str
    """`driver/pool/device`."""
    uuid: str = ""
    product: str = ""
    index: int = -1
    """Number on the node, -1 = none."""
    claim: str = ""
    request: str = ""
    """Which of `Explanation.requests`."""
    code: str = ""
    """HAMi's reason code; empty = it fits."""
    text: str = ""
    """The figures compared: `asks 20480 MiB of memory, 8192 of 81920 MiB are free`."""
    score: float = 0.0
    """With the request on it, as HAMi scores cards; 0 and no terms where it was not scored."""
    terms: tuple[Term, ...] = ()
    chosen: bool = False


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    node: str
    fits: bool
    chosen: bool = False
    score: float = 0.0
    """By the node policy, before the pod."""
    terms: tuple[Term, ...] = ()
    """Their values make up `score`."""
    rank: int = 0
    """What it can give of prioritized lists; higher is better, and comes first. 0 where the pod has none."""
    topology: float = 0.0
    """What the vendors say of the best set of cards; higher is better, and comes before the score."""
    tie: float = 0.0
    """The same between nodes of equal score."""
    reasons: dict[str, int] = {}
    """Reason code → cards of the node, or 1 for the node itself. Of nodes that do not fit."""
    text: str = ""
    """Why the node does not fit, where a code alone does not say it."""
    cards: tuple[CardExplanation, ...] = ()
    """Empty where no card was looked at, or details were left out."""


class ChosenDevice(msgspec.Struct, frozen=True, rename="camel"):
    claim: str
    request: str
    device: str
    score: float = 0.0


class RunnerUp(msgspec.Struct, frozen=True, rename="camel"):
    """The node that would have been taken had the chosen one not been there."""

    node: str
    score: float
    lost_by: float
    """Difference in the key that decided; 0 for `name` and `nominated`."""
    because: str
    """The first key in which it was worse: `rank`, `topology`, `node score`, `tie`, `name`, `nominated`."""
    text: str = ""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    pod: str
    """`ns/name`."""
    uid: str
    at: str
    """RFC 3339, when it was decided; empty = computed on the present state."""
    outcome: Outcome
    node: str = ""
    message: str = ""
    reasons: dict[str, int] = {}
    """Reason code → how many cards or nodes have it as their first; of the nodes that do not fit."""
    policies: tuple[PolicyUsed, ...] = ()
    requests: tuple[RequestAsked, ...] = ()
    nodes: tuple[NodeExplanation, ...] = ()
    """The chosen one, the runner-up, the other fitting ones from best to worst, then those that do not fit."""
    chosen: tuple[ChosenDevice, ...] = ()
    runner_up: RunnerUp | None = None
    fitting: int = 0
    unfit: int = 0
    nodes_left_out: int = 0
    """Nodes that are not in `nodes`."""
    notes: tuple[str, ...] = ()


def to_json(what: Explanation | list[Explanation]) -> bytes:
    return msgspec.json.encode(what)


def from_json(text: bytes | str) -> Explanation:
    """Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(text, type=Explanation)
