"""What `hami-dra status` draws. In: an `Overview`, quota lines. Out: rich tables and lines. Nothing from the cluster is markup."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from controller.overview.model import Card, Overview, Tenant
    from controller.quota.model import QuotaLine

_NONE: Final = "-"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def cards(overview: "Overview") -> list[Any]:
    if not overview.cards:
        return [Text("no cards: no ResourceSlice of a driver is published, or none is left by the options given")]
    table = _table("NODE", "CARD", "PRODUCT", ">MEMORY", ">CORES", ">SHARES", "HEALTH", "TENANTS")
    for card in overview.cards:
        table.add_row(
            *_texts(
                card.node or "(several)",
                card.device,
                card.product or _NONE,
                _memory(card.memory_used, card.memory_total),
                _of(card.cores_used, card.cores_total),
                _of(card.shares_used, card.shares_total),
            ),
            Text(_health(card), style="" if card.free or not (card.health or card.cordoned) else "red"),
            Text("\n".join(_tenant(card, tenant) for tenant in card.tenants) or _NONE),
        )
    return [table, *_unpublished(overview)]


def nodes(overview: "Overview") -> list[Any]:
    if not overview.nodes:
        return [Text("no node has cards, or none is left by the options given")]
    table = _table("NODE", "STATE", "VENDORS", "PRODUCTS", ">CARDS", ">FREE", ">MEMORY", ">CORES", ">SHARES")
    for each in overview.nodes:
        state = (
            "gone" if not each.there else "not ready" if not each.ready else "cordoned" if each.cordoned else "ready"
        )
        if each.troubled_cards:
            state += f", {each.troubled_cards} of its cards out of service"
        table.add_row(
            *_texts(
                each.node,
                state,
                ", ".join(each.vendors),
                ", ".join(each.products) or _NONE,
                str(each.cards),
                str(each.free_cards),
                _memory(each.memory_used, each.memory_total),
                _of(each.cores_used, each.cores_total),
                _of(each.shares_used, each.shares_total),
            )
        )
    return [table]


def namespaces(overview: "Overview") -> list[Any]:
    if not overview.namespaces:
        return [Text("no namespace holds a card, or none is left by the options given")]
    table = _table("NAMESPACE", "VENDOR", ">PODS", ">CLAIMS", ">CARDS", ">WHOLE", ">MEMORY", ">CORES", ">SHARES")
    for each in overview.namespaces:
        table.add_row(
            *_texts(
                each.namespace,
                each.vendor,
                str(each.pods),
                str(each.claims),
                str(each.cards),
                str(each.whole_cards),
                in_bytes(each.memory),
                str(each.cores),
                str(each.shares),
            )
        )
    return [table]


def quotas(lines: "Sequence[QuotaLine]") -> list[Any]:
    if not lines:
        return [Text("no ResourceQuota limits cards, such as limits.nvidia.com/gpumem")]
    table = _table("NAMESPACE", "QUOTA", "RESOURCE", ">USED", ">HARD", "UNIT")
    for line in lines:
        row = _texts(line.namespace, line.quota, line.resource, str(line.used), str(line.hard), line.unit)
        table.add_row(*row, style="red" if line.used >= line.hard else "")
    return [table]


def summary(overview: "Overview") -> list[Any]:
    """How each vendor's cards are packed, and pools that cannot be used."""
    found: list[Any] = []
    if overview.packing:
        sizes = list(overview.packing[0].free_islands)
        islands = "/".join(map(str, sizes))
        table = _table(
            "VENDOR", ">NODES", ">EMPTY", ">CARDS", ">FREE", ">PARTLY", ">FULL", f">FREE ISLANDS {islands}", ">FRAGMENTED", ">MEMORY"
        )  # fmt: skip
        for each in overview.packing:
            table.add_row(
                *_texts(
                    each.vendor,
                    str(each.nodes),
                    str(each.empty_nodes),
                    str(each.cards),
                    str(each.free_cards),
                    str(each.partly_used_cards),
                    str(each.full_cards),
                    "/".join(str(each.free_islands[size]) for size in sizes),
                    f"{each.fragmentation:.0%}",
                    _memory(each.memory_used, each.memory_total),
                )
            )
        found += [Text(""), table]
    if overview.problems:
        found.append(Text(""))
        found += [Text(f"{what}: {problem}", style="red") for what, problem in sorted(overview.problems.items())]
    return found


def in_bytes(amount: int) -> str:
    """`16GiB`, `1.5GiB`: at most one digit after the point, for people."""
    size, place = float(amount), 0
    while abs(size) >= 1024 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.1f}".removesuffix(".0") + (_UNITS[place] if amount else "")


def _table(*columns: str) -> Table:
    """`>` before a name: numbers, flush right."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table


def _texts(*cells: str) -> Iterable[Text]:
    return [Text(cell) for cell in cells]


def _memory(used: int, total: int) -> str:
    return f"{in_bytes(used)}/{in_bytes(total)}" if total else _NONE


def _of(used: int, total: int) -> str:
    return f"{used}/{total}" if total else _NONE


def _health(card: "Card") -> str:
    words = ([card.health] if card.health else []) + (["cordoned"] if card.cordoned else [])
    return ", ".join(words) or "ok"


def _tenant(card: "Card", tenant: "Tenant") -> str:
    """`team/pod (4GiB, 30 cores)`; what only looks on, and what has a part of the card, says so."""
    who = f"{tenant.namespace}/{tenant.pod}" if tenant.pod else f"{tenant.namespace}/claim/{tenant.claim}"
    if tenant.more_pods:
        who += f" and {len(tenant.more_pods)} more"
    if tenant.admin:
        return f"{who} (admin access)"
    words = [tenant.device] if tenant.device != card.device else []
    if tenant.whole and tenant.device == card.device:
        words.append("whole")
    else:
        words += [in_bytes(tenant.memory)] if tenant.memory else []
        words += [f"{tenant.cores} cores"] if tenant.cores else []
    return f"{who} ({', '.join(words)})" if words else who


def _unpublished(overview: "Overview") -> list[Any]:
    return [
        Text(
            f"{held.device} is held by {each.namespace}/{each.pod or f'claim/{each.claim}'}, and nobody publishes it",
            style="red",
        )
        for held in overview.unpublished
        for each in held.tenants
    ]
