"""A snapshot of one decision: copies of the few figures that explain it, cheap to take and to keep.

Taken by `explain` and by the controller's decision log, right after `decide` and before the
inventory changes. In: the answer with its trace. Out: a `DecisionSnapshot`, from which `render`
renders the `Explanation` on demand. Works on columns; Python loops run only over the nodes shown.
Pure.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct, field

from controller.allocation import UNJUDGED, ResolvedRequest
from controller.decide import Decision, Options, SchedulingRequest, Trace, Unschedulable, without_trace
from controller.insight.explain.runner_up import Contenders
from controller.inventory import Amounts, Device, Inventory, consumed_of
from controller.scoring import CardOfRequest, Policies
from controller.views.explanation import RunnerUp
from hami_dra.api.arrays import Codes, Ints
from hami_dra.vendors.protocol import CardRequest, Cards

_Columns = TypeVar("_Columns", Cards | None, CardRequest)

FEW: Final = 64
"""Clusters of at most this many nodes are kept whole, with the reasons of each node."""
SHOWN: Final = 4
"""Nodes kept of a larger cluster, including the chosen one and the runner-up."""
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})
"""Shared by the snapshots of all pods that have nothing there."""


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


class NodeSnapshot(Struct):
    """One node."""

    name: str
    fits: bool
    score: float
    terms: list[tuple[str, float]]
    loads: tuple[list[int], list[int]]
    """(used, total) of slots, cores and memory: the inputs of HAMi's score."""
    rank: int = 0
    topology: float = 0.0
    preferences: list[tuple[str, int, int]] = field(default_factory=list)
    """(kube-scheduler's plugin, weight, score from 0 to 100)"""
    tie: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=_nothing)
    why: str = ""
    """Why a filter plugin refuses the node, with object and figure."""
    first: int = 0
    """Its cards are `DecisionSnapshot.devices[first:end]`, in no particular order."""
    end: int = 0


class RequestSnapshot(Struct):
    """One request, or one alternative of a list, with its result for each card of the picture."""

    view: ResolvedRequest
    ours: bool
    codes: Codes
    ask: CardRequest


class DecisionSnapshot(Struct):
    pod: str
    uid: str
    answer: Decision | Unschedulable
    """Without its trace."""
    policies: Policies
    claims: tuple[str, ...]
    first_fit: bool
    places: tuple[NodeSnapshot, ...] = ()
    devices: tuple[Device, ...] = ()
    cards: Cards | None = None
    seen: tuple[RequestSnapshot, ...] = ()
    picks: tuple[tuple[ResolvedRequest, Device, Amounts], ...] = ()
    """The chosen devices, in order."""
    scores: Mapping[CardOfRequest, float] = field(default_factory=_nothing)
    """Scores of the cards on searched nodes, including what earlier requests of the pod took."""
    runner_up: RunnerUp | None = None
    reasons: Mapping[str, int] = field(default_factory=_nothing)
    left_out: int = 0

    @property
    def size(self) -> int:
        """Return the approximate size in bytes."""
        cards, requests = len(self.devices), len(self.seen)
        return 8_000 + 800 * len(self.places) + cards * (80 + 25 * requests) + 250 * len(self.scores)


def take(
    inventory: Inventory,
    scheduling_request: SchedulingRequest,
    options: Options,
    answer: Decision | Unschedulable,
    *,
    most: int | None = None,
) -> DecisionSnapshot:
    """`most`: nodes to keep, with reasons; None: all of a small cluster, a few of a larger one, at little cost."""
    trace = answer.trace
    picture = bare(inventory, scheduling_request, options, answer)
    if trace is None:
        return picture
    whole = most is not None or inventory.nodes.count <= FEW
    rivals = Contenders(inventory, scheduling_request, trace, answer)
    shown = rivals.all(FEW if most is None else most) if whole else rivals.best(SHOWN)
    picture.left_out = inventory.nodes.count - len(shown)
    picture.runner_up = rivals.runner_up()
    if whole:
        report = trace.report(inventory, 0)
        picture.reasons = dict(report.reasons)
        reasons = [report.of(row) for row in shown]
    else:
        known = answer.nodes if isinstance(answer, Unschedulable) else {}
        reasons = [dict(known.get(inventory.nodes.names[row], {})) for row in shown]
    in_words = most is not None or isinstance(answer, Unschedulable)
    _add_nodes(picture, inventory, rivals, shown, reasons, in_words=in_words)
    _add_cards(picture, inventory, trace, shown)
    return picture


def share_parts(picture: DecisionSnapshot, earlier: DecisionSnapshot) -> None:
    """Let equal parts of two snapshots be the same objects: between two refusals nothing changes."""
    if picture.devices == earlier.devices:
        picture.devices = earlier.devices
        picture.cards = _shared(picture.cards, earlier.cards)
    known = {place.name: place for place in earlier.places}
    picture.places = tuple([known[place.name] if known.get(place.name) == place else place for place in picture.places])
    if picture.places == earlier.places:
        picture.places = earlier.places
    for seen, before in zip(picture.seen, earlier.seen, strict=False):
        seen.ask = _shared(seen.ask, before.ask)
        if np.array_equal(seen.codes, before.codes):
            seen.codes = before.codes


def _shared(columns: _Columns, earlier: _Columns) -> _Columns:
    """Return the earlier columns if they are equal."""
    if columns is None or earlier is None:
        return columns
    is_equal = all(np.array_equal(getattr(columns, name), getattr(earlier, name)) for name in columns.__struct_fields__)
    return earlier if is_equal else columns


def bare(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options, answer: Decision | Unschedulable
) -> DecisionSnapshot:
    """Return a snapshot without nodes and cards."""
    return DecisionSnapshot(
        pod=scheduling_request.pod.key,
        uid=scheduling_request.pod.metadata.uid,
        answer=without_trace(answer),
        policies=scheduling_request.policies,
        claims=tuple(entry.claim.key for entry in scheduling_request.claims),
        first_fit=options.first_fit,
        reasons=answer.reasons if isinstance(answer, Unschedulable) else _NOTHING,
        left_out=inventory.nodes.count,
    )


def _add_nodes(
    picture: DecisionSnapshot,
    inventory: Inventory,
    rivals: Contenders,
    shown: list[int],
    reasons: list[dict[str, int]],
    *,
    in_words: bool,
) -> None:
    """`in_words`: with a sentence for each node that a filter plugin refuses."""
    nodes, trace = inventory.nodes, rivals.trace
    rows = np.array(shown, dtype=np.intp)
    places: list[NodeSnapshot] = []
    fits = rivals.fit(rows) if isinstance(picture.answer, Decision) else [False] * len(shown)
    for row, placing, fit, why in zip(shown, rivals.placings(rows), fits, reasons, strict=True):
        place = NodeSnapshot(
            name=nodes.names[row],
            fits=fit,
            score=placing.value,
            terms=trace.ranking.terms(row),
            loads=nodes.scores.loads(row),
        )
        if fit:
            place.rank, place.topology, place.tie = placing.rank, placing.topology, placing.tie
            if trace.preferences is not None:
                place.preferences = trace.preferences.terms(row)
        else:
            place.reasons = why
            if in_words:
                place.why = trace.verdicts.why(row)
        places.append(place)
    picture.places = tuple(places)


def _add_cards(picture: DecisionSnapshot, inventory: Inventory, trace: Trace, shown: list[int]) -> None:
    """Add the cards of the nodes, and chosen devices that several nodes can reach."""
    devices: list[Device] = []
    for place, row in zip(picture.places, shown, strict=True):
        place.first = len(devices)
        devices += _cards_of(inventory, row)
        place.end = len(devices)
    picture.devices = tuple(devices)
    solution = trace.solution
    if solution is not None:
        picks = [pick for picks in solution.picks for pick in picks]
        picture.picks = tuple(
            [(pick.request, pick.device, consumed_of(pick.device, pick.consumption.consumed)) for pick in picks]
        )
        if trace.chooser is not None:
            picture.scores = trace.chooser.scores
    if not devices:
        return
    rows = np.array([device.row for device in devices], dtype=np.intp)
    picture.cards = inventory.devices.cards(rows)
    shortage = trace.shortage() if isinstance(picture.answer, Unschedulable) else None
    seen: list[RequestSnapshot] = []
    for number, (group, columns) in enumerate(trace.wanted):
        for view, column in zip(group.alternatives, columns, strict=True):
            counted = None
            if shortage is not None and number < len(shortage.codes) and view is group.alternatives[-1]:
                counted = shortage.codes[number]
            codes = column.reasons(rows, counted)
            seen.append(RequestSnapshot(view, number < trace.ours, _judged(codes), column.ask(rows)))
    picture.seen = tuple(seen)


def _cards_of(inventory: Inventory, row: int) -> list[Device]:
    node: Ints = inventory.devices.node
    return [
        device
        for pool in inventory.pools_on(inventory.nodes.names[row])
        for device in pool.devices
        if device.row >= 0 and node[device.row] == row
    ]


def _judged(codes: Codes) -> Codes:
    """Return a copy in which cards that only the search can evaluate have no reason against them."""
    judged: Codes = np.where(codes == UNJUDGED, 0, codes).astype(np.uint8)
    return judged
