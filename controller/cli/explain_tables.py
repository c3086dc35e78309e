"""Tables of `hami-dra explain`.

In: an `Explanation`. Out: rich tables and lines. Text from the cluster is never interpreted as
markup.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from controller.insight.explain import CardExplanation, Explanation, GangExplanation, NodeExplanation, Term

_NONE: Final = "-"
_REFUSED_SHOWN: Final = 3
_NODES_SHOWN: Final = 20
_LARGE: Final = 100_000
_HOW: Final = """How to read this: fitting nodes are compared by the vendors' value of the best set of cards (TOPOLOGY, if
any), then by what the pod prefers of nodes (PREFERS, if anything: kube-scheduler's scores, times their weights),
then by SCORE: binpack prefers the highest, spread the lowest; the lower name wins ties. The score of a node is 10 x used / total, before the pod; that of a card is computed with the pod on it, times the
weights. Under fair-share the score of a node is the sum of the costs shown, and the highest wins. See
docs/explain.md."""


def drawn(what: "Explanation", nodes: Collection[str], *, all_nodes: bool) -> list[Any]:
    """Return the tables and lines.

    `nodes`: nodes whose cards are shown; empty: the most relevant ones. `all_nodes`: list all
    nodes, not only the first.
    """
    parts: list[Any] = [_headline(what)]
    parts += [Text(f"note: {note}") for note in what.notes]
    if what.gang is not None:
        parts += ["", *_gang(what.gang)]
    if what.requests:
        parts += ["", _requests(what)]
    if what.policies:
        parts += ["", _policies(what)]
    if what.nodes:
        shown = what.nodes if all_nodes else what.nodes[:_NODES_SHOWN]
        parts += ["", _nodes(shown)]
        hidden = len(what.nodes) - len(shown)
        if hidden:
            parts.append(Text(f"and {hidden} more nodes: use --all-nodes, or -o json"))
    if what.runner_up is not None:
        parts += ["", _runner_up(what)]
    for node in what.nodes:
        if node.cards and node.node in (nodes or _of_interest(what)):
            parts += ["", Text(f"Cards of {node.node}{_node_suffix(what, node)}", style="bold"), _cards(node)]
    if any(node.terms for node in what.nodes):
        parts += ["", Text(_HOW, style="dim")]
    return parts


def _headline(what: "Explanation") -> Text:
    when = f"decided at {what.at}" if what.at else "computed on the present state, as if the pod had no place yet"
    result = {
        "placed": f"goes to {what.node}",
        "refused": "finds no node",
        "error": "cannot be placed",
        "waiting": "waits",
    }[what.outcome]
    text = Text(f"Pod {what.pod} {result} ({when})", style="bold")
    if what.message:
        text.append(f"\n{what.message}", style="")
    if what.reasons and what.outcome != "placed":
        counts = ", ".join(f"{count} {code}" for code, count in sorted(what.reasons.items()))
        text.append(f"\nreasons, each card or node counted once: {counts}", style="")
    return text


def _gang(gang: "GangExplanation") -> Iterator[Any]:
    yield Text(f"Member of {gang.gang}: {gang.min_count} of {len(gang.members)} members must run at once", style="bold")
    table = _table("MEMBER", "NODE")
    for each in gang.members[:_NODES_SHOWN]:
        table.add_row(*_texts(each.pod, f"{each.node} (runs)" if each.runs else each.node or _NONE))
    yield table
    if len(gang.members) > _NODES_SHOWN:
        yield Text(f"and {len(gang.members) - _NODES_SHOWN} more members: use -o json")
    if gang.domains:
        table = _table("DOMAIN", ">NODES", ">MEMBERS FIT", ">LEFT AFTER", "")
        for domain in gang.domains:
            note = "chosen" if domain.chosen else domain.problem
            table.add_row(*_texts(domain.name, str(domain.nodes), str(domain.fits), str(domain.left), note))
        yield table


def _requests(what: "Explanation") -> Table:
    table = _table("ASKED", "CLASS", ">CARDS", "OF EACH CARD")
    for each in what.requests:
        count = str(each.count) if each.count else "all"
        amounts = each.text or "the driver's defaults"
        if not each.ours:
            amounts += " (allocated by kube-scheduler)"
        table.add_row(*_texts(f"{each.claim} {each.request}", each.device_class, count, amounts))
    return table


_AXES: Final = {
    "node": "which node",
    "packing": "weights of packing",
    "device": "which cards",
    "weights": "weights of a card's score",
}


def _policies(what: "Explanation") -> Table:
    table = _table("POLICY", "VALUE", "FROM")
    for each in what.policies:
        name = _AXES.get(each.axis, each.axis)
        table.add_row(*_texts(f"{name} ({each.claim})" if each.claim else name, each.value, each.origin))
    return table


def _nodes(nodes: "Sequence[NodeExplanation]") -> Table:
    terms = list(dict.fromkeys(term.name for node in nodes for term in node.terms))
    ranked, topology = any(node.rank for node in nodes), any(node.topology for node in nodes)
    extra = [name for name, used in ((">LIST", ranked), (">TOPOLOGY", topology)) if used]
    prefers = ["PREFERS"] if any(node.preferences for node in nodes) else []
    table = _table("NODE", "RESULT", *extra, *prefers, ">SCORE", *(f">{name.upper()}" for name in terms), "WHY NOT")
    for node in nodes:
        style = "green" if node.chosen else "" if node.fits else "red"
        more = [_number(value) for value, used in ((node.rank, ranked), (node.topology, topology)) if used]
        more += [_preferences(node)] if prefers else []
        table.add_row(
            Text(node.node, style=style),
            Text("chosen" if node.chosen else "fits" if node.fits else "does not fit", style=style),
            *_texts(*more, f"{node.score:.2f}", *(_term(node.terms, name) for name in terms), _why(node)),
        )
    return table


def _preferences(node: "NodeExplanation") -> str:
    parts = ", ".join(f"{term.name} {_number(term.value)}" for term in node.preferences if term.value)
    return f"{node.preference} ({parts})" if parts else _NONE


def _runner_up(what: "Explanation") -> Text:
    rival = what.runner_up
    assert rival is not None
    by = f" by {_number(rival.lost_by)}" if rival.lost_by > 0 else ""
    return Text(f"Runner-up: {rival.node}, lost{by} in {rival.because}: {rival.text}")


def _cards(node: "NodeExplanation") -> Table:
    terms = list(dict.fromkeys(term.name for card in node.cards for term in card.terms))
    claims = {card.claim for card in node.cards}
    several = len({(card.claim, card.request) for card in node.cards}) > 1
    columns = [*(["REQUEST"] if several else []), "CARD", ">INDEX", "PRODUCT", "RESULT", ">SCORE"]
    table = _table(*columns, *(f">{name.upper()}" for name in terms), "FIGURES")
    for card in node.cards:
        asked = f"{card.claim.rpartition('/')[2]} {card.request}" if len(claims) > 1 else card.request
        style = "green" if card.chosen else "red" if card.code else ""
        table.add_row(
            *_texts(*([asked] if several else []), card.device.rpartition("/")[2]),
            Text(str(card.index) if card.index >= 0 else _NONE),
            Text(card.product or _NONE),
            Text(_result(card), style=style),
            Text(f"{card.score:.2f}" if card.score or card.terms else _NONE),
            *_texts(*(_term(card.terms, name) for name in terms), card.text),
        )
    return table


def _result(card: "CardExplanation") -> str:
    if card.code:
        return card.code
    return "chosen" if card.chosen else "left out" if card.text else "fits"


def _why(node: "NodeExplanation") -> str:
    reasons = ", ".join(f"{count} {code}" if count > 1 else code for code, count in sorted(node.reasons.items()))
    return f"{reasons}: {node.text}" if node.text else reasons


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
        return _NONE
    return f"{found.value:.2f} ({found.text})" if found.text else f"{found.value:.2f}"


def _texts(*values: str) -> Iterator[Text]:
    return (Text(value) for value in values)


def _table(*columns: str) -> Table:
    """Return a table; `>` before a column's name aligns it to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table
