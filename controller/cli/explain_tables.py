"""Tables of `hami-dra explain`. In: an `Explanation`. Out: lines, the conclusion first."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from controller.cli.tables import (
    NONE,
    Line,
    TextLayout,
    TextTable,
    codes,
    counted,
    device_names,
    paragraph,
    tables,
    without_pod,
)
from controller.views.columns import Column, Columns, text_column

if TYPE_CHECKING:
    from controller.views.explanation import (
        CardExplanation,
        Explanation,
        GangDomain,
        GangExplanation,
        GangMember,
        NodeExplanation,
        PolicyUsed,
        RequestAsked,
    )

_REFUSED_SHOWN: Final = 3
_NODES_SHOWN: Final = 20
_LARGE: Final = 100_000


class Shown(Struct, frozen=True):
    """How much of an explanation is shown."""

    nodes: Sequence[str] = ()
    """Nodes whose devices are shown."""
    devices: bool = False
    """Show those of the most relevant nodes where none is named."""
    all_nodes: bool = False
    """List all nodes, not only the first."""
    when: str = "computed now, as if the pod were not placed yet and no other pod waited"
    """The state that the explanation is about, where it was computed just now."""


def drawn(what: "Explanation", shown: Shown, layout: TextLayout) -> list[Line]:
    """Return the conclusion, then the tables."""
    parts = _headline(what, shown.when, layout)
    for note in what.notes:
        parts += paragraph(f"note: {note}", layout)
    if what.gang is not None:
        parts += [Line(""), *_gang(what.gang, layout)]
    if (rival := what.runner_up) is not None:
        by = f" by {_number(rival.lost_by)}" if rival.lost_by > 0 else ""
        parts += paragraph(f"Runner-up: {rival.node}, lost{by} in {rival.because}: {rival.text}", layout)
    parts += tables(((_REQUESTS, what.requests), (_POLICIES, what.policies)), layout)
    if what.nodes:
        listed = what.nodes if shown.all_nodes else what.nodes[:_NODES_SHOWN]
        parts += [Line(""), *_nodes(listed).lines(layout)]
        hidden = len(what.nodes) - len(listed)
        if hidden:
            parts.append(Line(f"and {hidden} more: use --all-nodes, or -o json"))
    chosen = shown.nodes or (_of_interest(what) if shown.devices else ())
    for node in what.nodes:
        if node.cards and node.node in chosen:
            is_rival = rival is not None and rival.node == node.node
            place = ", chosen" if node.chosen else ", runner-up" if is_rival else ""
            title = Line(f"Devices of {node.node}{place}", "bold")
            parts += [Line(""), title, *_cards(node).lines(layout)]
    return parts


def _headline(what: "Explanation", state: str, layout: TextLayout) -> list[Line]:
    when = f" (decided at {what.at})" if what.at else f" ({state})"
    when = "" if what.outcome == "unmanaged" else when
    result = {
        "placed": f"goes to {what.node}",
        "refused": "finds no node",
        "error": "cannot be placed",
        "waiting": "waits",
        "unmanaged": "requests no devices that hami-dra manages",
    }[what.outcome]
    lines = paragraph(f"Pod {what.pod} {result}{when}", layout, colour="bold")
    texts = without_pod(what.message, what.pod).splitlines()
    if what.reasons and what.outcome != "placed":
        texts = [*texts[:-1], f"{texts[-1] if texts else 'no node fits'} [{codes(what.reasons)}]"]
    return lines + [line for text in texts for line in paragraph(text, layout)]


def _gang(gang: "GangExplanation", layout: TextLayout) -> Iterator[Line]:
    yield Line(f"Member of {gang.gang}: {_must_run(gang)}", "bold")
    yield from TextTable.of(_MEMBERS, gang.members[:_NODES_SHOWN]).lines(layout)
    if len(gang.members) > _NODES_SHOWN:
        yield Line(f"and {len(gang.members) - _NODES_SHOWN} more: use -o json")
    if gang.domains:
        yield from TextTable.of(_DOMAINS, gang.domains).lines(layout)


def _must_run(gang: "GangExplanation") -> str:
    if not gang.min_count:
        return f"it has {counted(len(gang.members), 'member')}"
    if gang.min_count > gang.existing:
        return f"{counted(gang.min_count, 'member')} must run at once; {gang.existing} exist"
    ended = f", {gang.succeeded} of which ended well" if gang.succeeded else ""
    return f"{gang.min_count} of {counted(gang.existing, 'member')} must run at once{ended}"


_AXES: Final = {
    "node": "which node",
    "packing": "weights of packing",
    "device": "which devices",
    "weights": "weights of a device's score",
}
_MEMBERS: "Final[Columns[GangMember]]" = (
    text_column("member", lambda each: each.pod),
    text_column("node", lambda each: f"{each.node} (runs)" if each.runs else each.node or NONE),
)
_DOMAINS: "Final[Columns[GangDomain]]" = (
    text_column("domain", lambda domain: domain.name),
    text_column("nodes", lambda domain: str(domain.nodes), number=True),
    text_column("members fit", lambda domain: str(domain.fits), number=True),
    text_column("left after", lambda domain: str(domain.left), number=True),
    text_column("", lambda domain: "chosen" if domain.chosen else domain.problem),
)
_REQUESTS: "Final[Columns[RequestAsked]]" = (
    text_column("asked", lambda each: f"{each.claim} {each.request}"),
    text_column("class", lambda each: each.device_class),
    text_column("devices", lambda each: str(each.count or "all"), number=True),
    text_column(
        "of each device",
        lambda each: (each.text or "the driver's defaults") + ("" if each.ours else " (allocated by kube-scheduler)"),
    ),
)
_POLICIES: "Final[Columns[PolicyUsed]]" = (
    text_column("policy", lambda each: _AXES.get(each.axis, each.axis) + (f" ({each.claim})" if each.claim else "")),
    text_column("value", lambda each: each.value),
    text_column("from", lambda each: each.origin),
)


def _scores(rows: "Iterable[NodeExplanation | CardExplanation]") -> "Iterator[Column[Any]]":
    """Yield a column for each term of the rows' scores."""
    for name in dict.fromkeys(term.name for row in rows for term in row.terms):
        yield text_column(name, partial(_term, name), number=True)


def _nodes(nodes: "Sequence[NodeExplanation]") -> TextTable:
    columns: list[Column[NodeExplanation]] = [
        text_column("node", lambda node: node.node),
        text_column("result", lambda node: "chosen" if node.chosen else "fits" if node.fits else "does not fit"),
    ]
    if any(node.rank for node in nodes):
        columns.append(text_column("list", lambda node: _number(node.rank), number=True))
    if any(node.topology for node in nodes):
        columns.append(text_column("topology", lambda node: _number(node.topology), number=True))
    if any(node.preferences for node in nodes):
        columns.append(text_column("prefers", _preferences))
    columns += [text_column("score", lambda node: f"{node.score:.2f}", number=True), *_scores(nodes)]
    if any(not node.fits for node in nodes):
        columns.append(text_column("why not", _why))
    return TextTable.of(columns, nodes, colour=_chosen)


def _chosen(row: "NodeExplanation | CardExplanation") -> str:
    return "green" if row.chosen else ""


def _preferences(node: "NodeExplanation") -> str:
    parts = ", ".join(f"{term.name} {_number(term.value)}" for term in node.preferences if term.value)
    return f"{node.preference} ({parts})" if parts else NONE


def _cards(node: "NodeExplanation") -> TextTable:
    columns: list[Column[CardExplanation]] = [
        text_column("device", lambda card: device_names([card.device])),
        text_column("index", lambda card: str(card.index) if card.index >= 0 else NONE, number=True),
        text_column("product", lambda card: card.product or NONE),
        text_column("result", _result),
        text_column("score", lambda card: f"{card.score:.2f}" if card.score or card.terms else NONE, number=True),
        *_scores(node.cards),
        text_column("figures", lambda card: card.text),
    ]
    if len({card.claim for card in node.cards}) > 1:
        columns.insert(0, text_column("request", lambda card: f"{card.claim.rpartition('/')[2]} {card.request}"))
    elif len({card.request for card in node.cards}) > 1:
        columns.insert(0, text_column("request", lambda card: card.request))
    return TextTable.of(columns, node.cards, colour=_chosen)


def _result(card: "CardExplanation") -> str:
    if card.code:
        return card.code
    return "chosen" if card.chosen else "left out" if card.text else "fits"


def _why(node: "NodeExplanation") -> str:
    reasons = ", ".join(f"{count} {code}" if count > 1 else code for code, count in sorted(node.reasons.items()))
    return f"{reasons}: {node.text.removeprefix(f'{reasons}: ')}" if node.text else reasons


def _of_interest(what: "Explanation") -> set[str]:
    if what.outcome == "placed":
        return {what.node, what.runner_up.node if what.runner_up is not None else what.node}
    return {node.node for node in what.nodes[:_REFUSED_SHOWN]}


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:g}"


def _term(name: str, row: "NodeExplanation | CardExplanation") -> str:
    """Return the term of the row's score as a text such as `2.50 (2 of 8)`."""
    found = next((term for term in row.terms if term.name == name), None)
    if found is None:
        return NONE
    return f"{found.value:.2f} ({found.text})" if found.text else f"{found.value:.2f}"
