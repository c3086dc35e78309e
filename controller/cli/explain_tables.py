"""Tables of `hami-dra explain`. In: an `Explanation`. Out: lines, the conclusion first."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from controller.cli.tables import NONE, Line, TextLayout, TextTable, counted, paragraph, without_pod

if TYPE_CHECKING:
    from controller.views.explanation import CardExplanation, Explanation, GangExplanation, NodeExplanation, Term

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
    if what.runner_up is not None:
        parts += _runner_up(what, layout)
    for table in (_requests(what), _policies(what)):
        if table:
            parts += [Line(""), *table.lines(layout)]
    if what.nodes:
        listed = what.nodes if shown.all_nodes else what.nodes[:_NODES_SHOWN]
        parts += [Line(""), *_nodes(listed).lines(layout)]
        hidden = len(what.nodes) - len(listed)
        if hidden:
            parts.append(Line(f"and {hidden} more: use --all-nodes, or -o json"))
    chosen = shown.nodes or (_of_interest(what) if shown.devices else ())
    for node in what.nodes:
        if node.cards and node.node in chosen:
            title = Line(f"Devices of {node.node}{_node_suffix(what, node)}", "bold")
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
        counts = ", ".join(f"{count} {code}" for code, count in sorted(what.reasons.items()))
        texts = [*texts[:-1], f"{texts[-1] if texts else 'no node fits'} [{counts}]"]
    return lines + [line for text in texts for line in paragraph(text, layout)]


def _gang(gang: "GangExplanation", layout: TextLayout) -> Iterator[Line]:
    yield Line(f"Member of {gang.gang}: {_must_run(gang)}", "bold")
    table = TextTable("MEMBER", "NODE")
    for each in gang.members[:_NODES_SHOWN]:
        table.add(each.pod, f"{each.node} (runs)" if each.runs else each.node or NONE)
    yield from table.lines(layout)
    if len(gang.members) > _NODES_SHOWN:
        yield Line(f"and {len(gang.members) - _NODES_SHOWN} more: use -o json")
    if gang.domains:
        table = TextTable("DOMAIN", ">NODES", ">MEMBERS FIT", ">LEFT AFTER", "")
        for domain in gang.domains:
            note = "chosen" if domain.chosen else domain.problem
            table.add(domain.name, str(domain.nodes), str(domain.fits), str(domain.left), note)
        yield from table.lines(layout)


def _must_run(gang: "GangExplanation") -> str:
    if not gang.min_count:
        return f"it has {counted(len(gang.members), 'member')}"
    if gang.min_count > gang.existing:
        return f"{counted(gang.min_count, 'member')} must run at once; {gang.existing} exist"
    ended = f", {gang.succeeded} of which ended well" if gang.succeeded else ""
    return f"{gang.min_count} of {counted(gang.existing, 'member')} must run at once{ended}"


def _requests(what: "Explanation") -> TextTable:
    table = TextTable("ASKED", "CLASS", ">DEVICES", "OF EACH DEVICE")
    for each in what.requests:
        count = str(each.count) if each.count else "all"
        amounts = each.text or "the driver's defaults"
        if not each.ours:
            amounts += " (allocated by kube-scheduler)"
        table.add(f"{each.claim} {each.request}", each.device_class, count, amounts)
    return table


_AXES: Final = {
    "node": "which node",
    "packing": "weights of packing",
    "device": "which devices",
    "weights": "weights of a device's score",
}


def _policies(what: "Explanation") -> TextTable:
    table = TextTable("POLICY", "VALUE", "FROM")
    for each in what.policies:
        name = _AXES.get(each.axis, each.axis)
        table.add(f"{name} ({each.claim})" if each.claim else name, each.value, each.origin)
    return table


def _nodes(nodes: "Sequence[NodeExplanation]") -> TextTable:
    terms = list(dict.fromkeys(term.name for node in nodes for term in node.terms))
    ranked, topology = any(node.rank for node in nodes), any(node.topology for node in nodes)
    extra = [name for name, used in ((">LIST", ranked), (">TOPOLOGY", topology)) if used]
    prefers = ["PREFERS"] if any(node.preferences for node in nodes) else []
    refused = ["WHY NOT"] if any(not node.fits for node in nodes) else []
    table = TextTable("NODE", "RESULT", *extra, *prefers, ">SCORE", *(f">{name.upper()}" for name in terms), *refused)
    for node in nodes:
        more = [_number(value) for value, used in ((node.rank, ranked), (node.topology, topology)) if used]
        more += [_preferences(node)] if prefers else []
        table.add(
            node.node,
            "chosen" if node.chosen else "fits" if node.fits else "does not fit",
            *more,
            f"{node.score:.2f}",
            *(_term(node.terms, name) for name in terms),
            *([_why(node)] if refused else []),
            colour="green" if node.chosen else "",
        )
    return table


def _preferences(node: "NodeExplanation") -> str:
    parts = ", ".join(f"{term.name} {_number(term.value)}" for term in node.preferences if term.value)
    return f"{node.preference} ({parts})" if parts else NONE


def _runner_up(what: "Explanation", layout: TextLayout) -> list[Line]:
    rival = what.runner_up
    assert rival is not None
    by = f" by {_number(rival.lost_by)}" if rival.lost_by > 0 else ""
    return paragraph(f"Runner-up: {rival.node}, lost{by} in {rival.because}: {rival.text}", layout)


def _cards(node: "NodeExplanation") -> TextTable:
    terms = list(dict.fromkeys(term.name for card in node.cards for term in card.terms))
    claims = {card.claim for card in node.cards}
    several = len({(card.claim, card.request) for card in node.cards}) > 1
    columns = [*(["REQUEST"] if several else []), "DEVICE", ">INDEX", "PRODUCT", "RESULT", ">SCORE"]
    table = TextTable(*columns, *(f">{name.upper()}" for name in terms), "FIGURES")
    for card in node.cards:
        asked = f"{card.claim.rpartition('/')[2]} {card.request}" if len(claims) > 1 else card.request
        table.add(
            *([asked] if several else []),
            card.device.rpartition("/")[2],
            str(card.index) if card.index >= 0 else NONE,
            card.product or NONE,
            _result(card),
            f"{card.score:.2f}" if card.score or card.terms else NONE,
            *(_term(card.terms, name) for name in terms),
            card.text,
            colour="green" if card.chosen else "",
        )
    return table


def _result(card: "CardExplanation") -> str:
    if card.code:
        return card.code
    return "chosen" if card.chosen else "left out" if card.text else "fits"


def _why(node: "NodeExplanation") -> str:
    reasons = ", ".join(f"{count} {code}" if count > 1 else code for code, count in sorted(node.reasons.items()))
    return f"{reasons}: {node.text.removeprefix(f'{reasons}: ')}" if node.text else reasons


def _node_suffix(what: "Explanation", node: "NodeExplanation") -> str:
    if node.chosen:
        return ", chosen"
    return ", runner-up" if what.runner_up is not None and what.runner_up.node == node.node else ""


def _of_interest(what: "Explanation") -> set[str]:
    if what.outcome == "placed":
        return {what.node, what.runner_up.node if what.runner_up is not None else what.node}
    return {node.node for node in what.nodes[:_REFUSED_SHOWN]}


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:g}"


def _term(terms: "Iterable[Term]", name: str) -> str:
    """Return a text such as `2.50 (2 of 8)`."""
    found = next((term for term in terms if term.name == name), None)
    if found is None:
        return NONE
    return f"{found.value:.2f} ({found.text})" if found.text else f"{found.value:.2f}"
