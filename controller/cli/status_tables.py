"""Tables of `hami-dra status`. In: an `Overview`, quota lines. Out: lines of text with colours."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from controller.cli.tables import NONE, Line, TextLayout, TextTable, device_names
from controller.views.columns import Columns, text_column
from controller.views.shared_tables import NAMESPACES, QUOTAS
from hami_dra.api.printable import in_bytes
from hami_dra.api.times import age

if TYPE_CHECKING:
    from controller.cli.container_usage import UsedCard
    from controller.insight.simulation import PendingPod, PendingPods
    from controller.inventory import QuotaLine
    from controller.views.overview import Card, NodeView, Overview, Packing, Reservation, Tenant, Vanished

_BAD: Final = "red"


def _state(node: "NodeView") -> str:
    state = "gone" if not node.there else "not ready" if not node.ready else "cordoned" if node.cordoned else "ready"
    return f"{state}, {node.troubled_cards} of its devices out of service" if node.troubled_cards else state


def _memory_in_use(used: "UsedCard") -> str:
    memory = NONE if used.memory_used is None else in_bytes(used.memory_used)
    return f"{memory}/{in_bytes(used.memory_limit)}" if used.memory_limit else memory


_AMOUNTS: Final[Columns[Any]] = (
    text_column("memory", lambda each: _memory(each.memory_used, each.memory_total), number=True),
    text_column("cores", lambda each: _of(each.cores_used, each.cores_total), number=True),
    text_column("shares", lambda each: _of(each.shares_used, each.shares_total), number=True),
)
_NODES: "Final[Columns[NodeView]]" = (
    text_column("node", lambda each: each.node),
    text_column("state", _state),
    text_column("vendors", lambda each: ", ".join(each.vendors)),
    text_column("products", lambda each: ", ".join(each.products) or NONE),
    text_column("devices", lambda each: str(each.cards), number=True),
    text_column("free", lambda each: str(each.free_cards), number=True),
    *_AMOUNTS,
)
_USAGE: "Final[Columns[UsedCard]]" = (
    text_column("node", lambda used: used.node),
    text_column("device", lambda used: used.card),
    text_column("pod", lambda used: f"{used.namespace}/{used.pod}"),
    text_column("container", lambda used: used.container),
    text_column("memory in use", _memory_in_use, number=True),
    text_column(
        "cores in use", lambda used: NONE if used.utilization is None else f"{used.utilization:.0f}%", number=True
    ),
)


def cards(overview: "Overview", layout: TextLayout, places: "Mapping[str, Sequence[Reservation]]") -> list[Line]:
    """`places`: what is held for units, by card."""
    if not overview.cards:
        return [Line("no devices: no ResourceSlice of a driver is published, or none is left by the options given")]
    kept = {(each.pod, device): each.holder for each in overview.reservations for device in each.devices}
    columns: Columns[Card] = (
        text_column("node", lambda card: card.node or "(several)"),
        text_column("device", lambda card: card.device),
        text_column("product", lambda card: card.product or NONE),
        text_column("driver", lambda card: card.driver, wide=True),
        text_column("index", lambda card: NONE if card.index is None else str(card.index), number=True, wide=True),
        text_column("numa", lambda card: str(card.numa) if card.numa > 0 else NONE, number=True, wide=True),
        text_column("uuid", lambda card: card.uuid or NONE, wide=True),
        *_AMOUNTS,
        text_column("health", _health),
        text_column("tenants", lambda card: _tenants(card, kept, places.get(card.id, ())) or NONE),
    )
    table = TextTable.of(columns, overview.cards, wide=layout.wide, colour=lambda card: _BAD if card.health else "")
    return [*table.lines(layout), *_unpublished(overview)]


def nodes(overview: "Overview", layout: TextLayout) -> list[Line]:
    if not overview.nodes:
        return [Line("no node has devices, or none is left by the options given")]
    table = TextTable.of(
        _NODES, overview.nodes, colour=lambda each: "" if each.ready and not each.troubled_cards else _BAD
    )
    return table.lines(layout)


def namespaces(overview: "Overview", layout: TextLayout) -> list[Line]:
    if not overview.namespaces:
        return [Line("no namespace holds a device, or none is left by the options given")]
    return TextTable.of(NAMESPACES, overview.namespaces).lines(layout)


def quotas(lines: "Sequence[QuotaLine]", layout: TextLayout, namespace: str | None) -> list[Line]:
    if not lines:
        return [Line(f"no ResourceQuota limits devices, such as limits.nvidia.com/gpumem{_only(namespace)}")]
    table = TextTable.of(QUOTAS, lines, colour=lambda line: _BAD if line.used >= line.hard else "")
    return table.lines(layout)


def _only(namespace: str | None) -> str:
    return "" if namespace is None else f", in namespace {namespace}; -A looks at all"


def pending(
    found: "PendingPods", kept: "Iterable[Reservation]", layout: TextLayout, *, namespace: str | None, now: datetime
) -> list[Line]:
    """Return the waiting pods, oldest first, gangs with their members; those in red wait for no node."""
    if not found.pods:
        return [Line(f"no pod waits for devices{_only(namespace)}")]
    table = TextTable("POD", ">AGE", "WHY")
    held = {
        each.pod: f"holds {_devices(each)} for {each.holder}"
        if each.kind == "gang"
        else f"{_devices(each)}: {_held(each)}"
        for each in kept
    }
    gangs: dict[str, list[PendingPod]] = {}
    for each in found.pods:
        gangs.setdefault(each.gang or each.pod, []).append(each)
    for gang, pods in gangs.items():
        first = pods[0]
        if not first.gang:
            why = *first.why, *([held[first.pod]] if first.pod in held else [])
            table.add(first.pod, age(first.since, now) or NONE, why, colour=_BAD if first.held else "")
            continue
        table.add(gang, age(first.since, now) or NONE, [each.removeprefix(f"{gang}: ") for each in first.why])
        for each in pods:
            table.add(f"  {each.pod}", age(each.since, now) or NONE, held.get(each.pod, ""))
    more = [Line(f"... {found.left_out} more: -n shows those of one namespace")] if found.left_out else []
    return [*table.lines(layout), *more]


def _devices(kept: "Reservation") -> str:
    names = device_names(kept.devices)
    return f"{names} of {kept.node}" if kept.node else names


def usage(used: "Sequence[UsedCard]", layout: TextLayout) -> list[Line]:
    """Return a table of what containers really use, below the others."""
    if not used:
        text = "no driver knows what containers use of shared devices: it needs HAMi-core and driver.usageCache: host (docs/monitoring.md)"
        return [Line(""), Line(text)]
    return [Line(""), *TextTable.of(_USAGE, used).lines(layout)]


def summary(overview: "Overview", layout: TextLayout) -> list[Line]:
    """Return each vendor's packing, unusable pools, and deleted claims whose devices are held."""
    found: list[Line] = []
    if overview.packing:
        sizes = list(overview.packing[0].free_islands)
        islands = "/".join(map(str, sizes))
        columns: Columns[Packing] = (
            text_column("vendor", lambda each: each.vendor),
            text_column("nodes", lambda each: str(each.nodes), number=True),
            text_column("empty", lambda each: str(each.empty_nodes), number=True),
            text_column("devices", lambda each: str(each.cards), number=True),
            text_column("free", lambda each: str(each.free_cards), number=True),
            text_column("partly", lambda each: str(each.partly_used_cards), number=True),
            text_column("full", lambda each: str(each.full_cards), number=True),
            text_column(
                f"free islands {islands}",
                lambda each: "/".join(str(each.free_islands[size]) for size in sizes),
                number=True,
            ),
            text_column("fragmented", lambda each: f"{each.fragmentation:.0%}", number=True),
            _AMOUNTS[0],
        )
        found += [Line(""), *TextTable.of(columns, overview.packing).lines(layout)]
    if overview.problems:
        found.append(Line(""))
        found += [Line(f"{what}: {problem}", _BAD) for what, problem in sorted(overview.problems.items())]
    if overview.vanished:
        found.append(Line(""))
        found += [Line(_vanished(each), _BAD) for each in overview.vanished]
    return found


def _vanished(each: "Vanished") -> str:
    what = f"ResourceClaim {each.namespace}/{each.claim} is gone" if each.uid else "several ResourceClaims are gone"
    holders = f"pod {', '.join(each.pods)}" if each.pods else f"node {each.node}"
    return f"{what}, but {holders} still holds {', '.join(each.devices)}: they count until it is over"


def _memory(used: int, total: int) -> str:
    return f"{in_bytes(used)}/{in_bytes(total)}" if total else NONE


def _of(used: int, total: int) -> str:
    return f"{used}/{total}" if total else NONE


def _health(card: "Card") -> str:
    words = ([card.health] if card.health else []) + (["cordoned"] if card.cordoned else [])
    return ", ".join(words) or "ok"


def _tenants(card: "Card", kept: "Mapping[tuple[str, str], str]", places: "Sequence[Reservation]") -> list[str]:
    """Return those who have some of it, and those for whom it is held who have nothing yet."""
    there = {f"{each.namespace}/{each.pod}" for each in card.tenants}
    held = [f"{each.pod} ({_held(each)})" for each in places if each.pod not in there]
    return [*(_tenant(card, tenant, kept) for tenant in card.tenants), *held]


def _held(kept: "Reservation") -> str:
    """Return `held by moves for pod team/one, until 2026-11-21T09:00:00+00:00`."""
    until = f", until {kept.until}" if kept.until else ""
    begin = f"; pods that are too young yet may move for it at {kept.moves_begin}" if kept.moves_begin else ""
    how = {"reserved": "reserved", "moves": "held by moves"}.get(kept.kind, "held")
    return f"{how} for {kept.holder}{until}{begin}"


def _tenant(card: "Card", tenant: "Tenant", kept: "Mapping[tuple[str, str], str]") -> str:
    """Return `team/pod (4GiB, 30 cores)`. `kept`: pod and device → for whom, of pods that do not run yet."""
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
    words += ["claim gone"] if tenant.vanished else []
    holder = kept.get((f"{tenant.namespace}/{tenant.pod}", f"{card.driver}/{card.pool}/{tenant.device}"))
    words += [f"held for {holder}"] if holder else []
    return f"{who} ({', '.join(words)})" if words else who


def _unpublished(overview: "Overview") -> list[Line]:
    return [
        Line(
            f"{held.device} is held by {each.namespace}/{each.pod or f'claim/{each.claim}'}, but no slice publishes it",
            _BAD,
        )
        for held in overview.unpublished
        for each in held.tenants
    ]
