"""The tables that the dashboard and `hami-dra status` share: quotas, and what namespaces hold. Pure."""

from typing import TYPE_CHECKING, Final

from controller.views.columns import Column, Columns, plain
from hami_dra.api.printable import in_bytes

if TYPE_CHECKING:
    from controller.inventory import QuotaLine
    from controller.views.overview import NamespaceView

QUOTAS: "Final[Columns[QuotaLine]]" = (
    plain("namespace", lambda line: line.namespace, "Namespace", sort=True),
    plain(
        "quota",
        lambda line: line.quota,
        "ResourceQuota",
        exported="resourceQuota",
        sort=lambda line: (line.quota, line.namespace),
        classes="",
    ),
    plain(
        "limit",
        lambda line: line.resource,
        "Resource",
        exported="resource",
        sort=lambda line: (line.resource, line.namespace),
        head="RESOURCE",
        classes="",
    ),
    plain("used", lambda line: line.used, "Used", number=True),
    plain("hard", lambda line: line.hard, "Allowed", number=True),
    plain("unit", lambda line: line.unit),
    plain("kind", lambda line: line.kind, "Kind", sort=lambda line: (line.kind, line.namespace)),
    Column("share", "Share", sort=lambda line: line.used / line.hard if line.hard else float(line.used > 0)),
)
NAMESPACES: "Final[Columns[NamespaceView]]" = (
    plain("namespace", lambda each: each.namespace, "Namespace", sort=True),
    plain("vendor", lambda each: each.vendor, "Vendor", sort=lambda each: (each.vendor, each.namespace)),
    plain("pods", lambda each: each.pods, "Pods", sort=True, number=True),
    plain("claims", lambda each: each.claims, "Claims", sort=True, number=True),
    plain("devices", lambda each: each.cards, "Devices", sort=True, number=True),
    plain("whole", lambda each: each.whole_cards, "Whole devices", sort=True, exported="wholeDevices", number=True),
    Column(
        "memory",
        "Memory",
        lambda each: each.memory,
        {"memoryBytes": lambda each: each.memory},
        lambda each: in_bytes(each.memory),
        number=True,
    ),
    plain("cores", lambda each: each.cores, number=True),
    Column("shares", text=lambda each: str(each.shares), number=True),
)
