"""The Grafana dashboard, made from a list of panels: `monitoring/dashboard.json`. Called by
hack/generate.py.

Grafana's own format says every place on the screen and every default again; here a row is a list of
panels, each a title, a unit and expressions. Nothing is read but this file. The names of metrics
are checked by tests/conformance/test_metrics_prometheus.py.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hami_dra.api import names

PATH: Final = "monitoring/dashboard.json"
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """Grafana's id of the unit: `bytes`, `percentunit` (0 to 1), `percent` (0 to 100), `s`, `none`."""
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    text: str = ""
    """What it shows, for the (i) beside the title."""
    stack: bool = False
    limits: Sequence[tuple[float, str]] = ()
    """Thresholds: from which value on which colour."""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


_VENDOR: Final = 'vendor=~"$vendor"'
_CARD: Final = f'{_VENDOR}, node=~"$node"'
_HOST: Final = 'node=~"$node"'
_DEVICE: Final = 'provider=~"$vendor", node=~"$node"'
_CONTAINER: Final = "{{namespace}}/{{pod}} {{container}}"
_BAD_WHEN_LOW: Final = ((0, "red"), (1, "green"))
_BAD_WHEN_HIGH: Final = ((0, "green"), (1, "red"))


def _sum(metric: str, by: str = "vendor", matchers: str = _VENDOR) -> str:
    return f"sum by ({by}) ({metric}{{{matchers}}})"


def _share(used: str, limit: str, by: str = "vendor", matchers: str = _VENDOR) -> str:
    return f"{_sum(used, by, matchers)} / {_sum(limit, by, matchers)}"


def _quantiles(metric: str, matchers: str = "") -> list[Query]:
    rate = f"sum by (le) (rate({metric}_bucket{{{matchers}}}[$__rate_interval]))"
    return [Query(f"histogram_quantile({q}, {rate})", name) for q, name in ((0.5, "median"), (0.99, "99 of 100"))]


def _rate(metric: str, by: str, matchers: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


ROWS: Final = (
    Row(
        "Overview",
        (
            Panel("Leaders", "none", [Query("sum(hami_dra_leader)")], "stat", 3, 4, limits=_BAD_WHEN_LOW),
            Panel(
                "Fence in force", "none", [Query("max(hami_dra_fence_ready)")], "stat", 3, 4,
                "In native mode there is none.", limits=_BAD_WHEN_LOW,
            ),
            Panel(
                "Pending pods", "none", [Query("sum by (state) (hami_dra_pending_pods)", "{{state}}")], "stat", 6, 4,
                "ready: to be decided on. no_room: refused until something changes. waiting: for an event or a time.",
            ),
            Panel("Cards", "none", [Query(_sum("hami_dra_cards"), "{{vendor}}")], "stat", 6, 4),
            Panel(
                "Unusable cards", "none", [Query(f'sum(hami_dra_cards{{{_VENDOR}, state="unusable"}})')], "stat", 3, 4,
                "Unhealthy, cordoned, or on a node that accepts no pods.", limits=_BAD_WHEN_HIGH,
            ),
            Panel(
                "Free whole cards", "none", [Query(f'sum(hami_dra_cards{{{_VENDOR}, state="free"}})')], "stat", 3, 4
            ),
            Panel(
                "Cards by state", "none", [Query(_sum("hami_dra_cards", "vendor, state"), "{{vendor}} {{state}}")],
                stack=True,
            ),
            Panel(
                "Memory allocated", "percentunit",
                [Query(_share("hami_dra_memory_allocated_bytes", "hami_dra_memory_limit_bytes"), "{{vendor}}")],
            ),
            Panel(
                "Cores allocated", "percentunit",
                [Query(_share("hami_dra_cores_allocated", "hami_dra_cores_limit"), "{{vendor}}")],
            ),
            Panel(
                "Shares allocated", "percentunit",
                [Query(_share("hami_dra_shares_allocated", "hami_dra_shares_limit"), "{{vendor}}")],
            ),
            Panel(
                "Free linked groups", "none",
                [Query(_sum("hami_dra_free_islands", "vendor, size"), "{{vendor}} x {{size}}")],
                text="Number of groups of linked free cards that could be allocated, by group size.",
            ),
            Panel(
                "Fragmentation", "percentunit", [Query(_sum("hami_dra_fragmentation_ratio"), "{{vendor}}")],
                text="Share of the free capacity that is on partly used cards.",
            ),
            Panel(
                "Free capacity in cards", "none", [Query(_sum("hami_dra_free_capacity"), "{{vendor}}")], width=12
            ),
            Panel(
                "Nodes with cards", "none", [Query(_sum("hami_dra_nodes", "vendor, state"), "{{vendor}} {{state}}")],
                width=12, stack=True,
            ),
        ),
    ),
    Row(
        "Nodes",
        (
            Panel(
                "Memory allocated by node", "percentunit",
                [Query(
                    f"topk(20, {_share('hami_dra_gpu_memory_allocated_bytes', 'hami_dra_gpu_memory_limit_bytes', 'node', _CARD)})",
                    "{{node}}",
                )],
                "bargauge", 12, 10,
            ),
            Panel(
                "Cores allocated by node", "percentunit",
                [Query(
                    f"topk(20, {_share('hami_dra_gpu_core_allocated_ratio', 'hami_dra_gpu_core_limit_ratio', 'node', _CARD)})",
                    "{{node}}",
                )],
                "bargauge", 12, 10,
            ),
        ),
    ),
    Row(
        "Cards",
        (
            Panel(
                "Unhealthy cards", "none", [Query(f"hami_dra_gpu_health{{{_CARD}}} == 0")], "table", 24, 6,
                "Cards with a taint that keeps pods away, other than an operator's cordon.",
            ),
            Panel(
                "Memory allocated", "bytes",
                [Query(
                    f"topk(30, hami_dra_gpu_memory_allocated_bytes{{{_CARD}}})", "{{node}} {{device_index}} {{device_type}}"
                )],
                width=12, height=9,
            ),
            Panel(
                "Shares", "none",
                [Query(f"topk(30, hami_dra_gpu_shares_allocated{{{_CARD}}})", "{{node}} {{device_index}} {{device_type}}")],
                width=12, height=9,
            ),
            Panel(
                "Largest memory holders", "bytes",
                [Query(
                    f"topk(20, sum by (namespace, pod) (hami_dra_vgpu_memory_allocated_bytes{{{_HOST}}}))",
                    "{{namespace}}/{{pod}}",
                )],
                "bargauge", 12, 10,
            ),
            Panel(
                "Memory by namespace", "bytes",
                [Query(f"sum by (namespace) (hami_dra_vgpu_memory_allocated_bytes{{{_HOST}}})", "{{namespace}}")],
                width=12, height=10, stack=True,
            ),
        ),
    ),
    Row(
        "Queue and latency",
        (
            Panel(
                "Oldest pending pod", "s",
                [Query("max by (state) (hami_dra_pending_pod_oldest_seconds)", "{{state}}")],
            ),
            Panel("Decisions", "cps", [Query(_rate("hami_dra_decisions_total", "result"), "{{result}}")]),
            Panel("Decision time", "s", _quantiles("hami_dra_decision_seconds")),
            Panel("Time from decision to write", "s", _quantiles("hami_dra_commit_seconds")),
            Panel("Commits, by result", "cps", [Query(_rate("hami_dra_commits_total", "result"), "{{result}}")]),
            Panel("Refusals, by reason", "cps", [Query(_rate("hami_dra_refusals_total", "reason"), "{{reason}}")]),
        ),
    ),
    Row(
        "Controller and webhook",
        (
            Panel("Undone, by cause", "cps", [Query(_rate("hami_dra_undos_total", "cause"), "{{cause}}")]),
            Panel(
                "Unexpected", "none",
                [
                    Query("sum(increase(hami_dra_foreign_allocations_total[1h]))", "foreign allocations"),
                    Query("sum(increase(hami_dra_overlaps_total[1h]))", "overlaps"),
                    Query("sum(increase(hami_dra_fence_restored_total[1h]))", "fence put back"),
                    Query("sum(increase(hami_dra_write_conflicts_total[1h]))", "conflicts"),
                    Query("sum(increase(hami_dra_unclear_writes_total[1h]))", "writes without an answer"),
                    Query("sum(increase(hami_dra_events_dropped_total[1h]))", "events left out"),
                    Query("sum(increase(hami_dra_internal_errors_total[1h]))", "internal errors"),
                    Query("max(hami_dra_unreadable_objects)", "unreadable objects"),
                ],
                text="In the last hour.",
            ),
            Panel(
                "Time since the last message of the API server", "s",
                [Query("max by (resource) (hami_dra_watch_age_seconds)", "{{resource}}")],
                text="It sends one about every minute, even if nothing changes.",
            ),
            Panel(
                "Lists and failures", "none",
                [
                    Query("sum by (resource) (increase(hami_dra_watch_lists_total[1h]))", "{{resource}} listed"),
                    Query("sum by (resource) (increase(hami_dra_watch_failures_total[1h]))", "{{resource}} failed"),
                ],
            ),
            Panel(
                "Pods reviewed by the webhook", "cps", [Query(_rate("hami_dra_webhook_reviews_total", "result"), "{{result}}")]
            ),
            Panel("Webhook review time", "s", _quantiles("hami_dra_webhook_review_seconds")),
        ),
    ),
    Row(
        "Quotas",
        (
            Panel(
                "Used", "percentunit",
                [Query(
                    "hami_resource_quota_used / (hami_resource_quota_limit > 0)", "{{namespace}} {{quota_name}} {{resourcequota}}"
                )],
                "bargauge", 24, 9, limits=((0, "green"), (0.9, "orange"), (1, "red")),
            ),
        ),
    ),
    Row(
        "Driver",
        (
            Panel(
                "Claims", "cps",
                [Query(_rate("hami_dra_driver_claims_total", "call, result"), "{{call}} {{result}}")],
            ),
            Panel("Preparation time", "s", _quantiles("hami_dra_driver_claim_seconds", 'call="prepare"')),
            Panel(
                "Drivers not registered with kubelet", "none", [Query("hami_dra_driver_registered == 0")], "table"
            ),
            Panel(
                "Faults found", "none",
                [Query("sum by (driver, kind) (hami_dra_driver_faulty_cards)", "{{driver}} {{kind}}")],
            ),
            Panel(
                "Cards found, devices published", "none",
                [
                    Query("sum by (driver) (hami_dra_driver_cards)", "{{driver}} cards"),
                    Query("sum by (driver) (hami_dra_driver_cordoned_cards)", "{{driver}} cordoned"),
                    Query("sum by (driver) (hami_dra_driver_devices)", "{{driver}} devices"),
                ],
            ),
            Panel(
                "Failed sensor reads", "cps",
                [Query(_rate("hami_dra_driver_monitor_failures_total", "driver, kind"), "{{driver}} {{kind}}")],
            ),
        ),
    ),
    Row(
        "Hardware",
        (
            Panel(
                "Memory in use and allocated", "percentunit",
                [
                    Query(
                        f"sum(hami_host_gpu_memory_used_bytes{{{_HOST}}}) / sum(hami_host_gpu_memory_total_bytes{{{_HOST}}})",
                        "in use",
                    ),
                    Query(
                        f"sum(hami_dra_gpu_memory_allocated_bytes{{{_HOST}}}) / sum(hami_dra_gpu_memory_limit_bytes{{{_HOST}}})",
                        "allocated",
                    ),
                ],
            ),
            Panel(
                "Utilization", "percent",
                [
                    Query(f"avg by (device_type) (hami_host_gpu_utilization_ratio{{{_HOST}}})", "{{device_type}}"),
                    Query(
                        f"avg by (device_type) (hami_host_gpu_memory_controller_utilization_ratio{{{_HOST}}})",
                        "{{device_type}} memory",
                    ),
                ],
            ),
            Panel(
                "Power", "watt", [Query(f"sum by (provider) (hami_device_power{{{_DEVICE}}})", "{{provider}}")], stack=True
            ),
            Panel(
                "Hottest cards", "celsius",
                [Query(f"topk(10, hami_device_temperature{{{_DEVICE}}})", "{{node}} {{device_no}} {{device_type}}")],
            ),
            Panel(
                "Memory errors", "none",
                [Query(
                    f"sum by (provider, error) (increase(hami_device_ecc_errors_total{{{_DEVICE}}}[1h]))", "{{provider}} {{error}}"
                )],
                text="In the last hour.",
            ),
            Panel(
                "Allocated and idle", "none",
                [Query(
                    "count(max by (node, device_uuid) (hami_dra_gpu_shares_allocated > 0)"
                    " and on (node, device_uuid) max by (node, device_uuid) (hami_host_gpu_utilization_ratio < 5)) or vector(0)",
                    "cards",
                )],
                text="Cards with tenants that are less than 5 percent busy.",
            ),
            Panel(
                "Memory in use by container", "bytes",
                [Query(f"topk(20, sum by (namespace, pod, container) ({names.METRIC_CONTAINER_MEMORY}{{{_HOST}}}))", _CONTAINER)],
                width=12,
                text="Of shared NVIDIA cards, as HAMi-core counts it; needs driver.usageCache: host.",
            ),
            Panel(
                "Cores in use by container", "percentunit",
                [Query(f"topk(20, max by (namespace, pod, container) ({names.METRIC_CONTAINER_UTILIZATION}{{{_HOST}}}))", _CONTAINER)],
                width=12,
                text="Of shared NVIDIA cards, the busiest card of each container; needs driver.usageCache: host.",
            ),
            Panel(
                "Granted and unused memory", "bytes",
                [Query(
                    f"topk(20, sum by (namespace, pod, container) (hami_vgpu_memory_limit_bytes{{{_HOST}}}"
                    f" - on (node, namespace, pod, container, device_uuid, vdevice_index) {names.METRIC_CONTAINER_MEMORY}{{{_HOST}}}))",
                    _CONTAINER,
                )],
                "bargauge", 24, 9,
                text="Memory of shared cards that containers were granted and do not use now.",
            ),
        ),
    ),
)  # fmt: skip


def dashboard() -> str:
    """JSON as Grafana imports it."""
    return (
        json.dumps(
            {
                "uid": "hami-dra",
                "title": "hami-dra",
                "tags": ["hami-dra", "gpu"],
                "schemaVersion": 39,
                "version": 1,
                "editable": True,
                "graphTooltip": 1,
                "refresh": "30s",
                "time": {"from": "now-6h", "to": "now"},
                "annotations": {"list": []},
                "templating": {
                    "list": [_source_choice(), _choice("vendor", "hami_dra_cards"), _choice("node", _NODES)]
                },
                "panels": list(_placed()),
            },
            indent=1,
        )
        + "\n"
    )


_NODES: Final = 'hami_dra_gpu_health{vendor=~"$vendor"}'


def _placed() -> Iterator[dict[str, Any]]:
    """Rows below one another, panels side by side as long as there is room."""
    number = y = 0
    for row in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        x = height = 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _COLUMNS:
                x, y, height = 0, y + height, 0
            yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    instant = panel.kind != "timeseries"
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stack else "none"}
        defaults["custom"] = {"fillOpacity": 20 if panel.stack else 5, "showPoints": "never", "stacking": stacking}
    if panel.unit == "percentunit":
        defaults["max"] = 1
    if panel.limits:
        (_, lowest), *steps = panel.limits
        colours = [{"value": None, "color": lowest}, *({"value": value, "color": colour} for value, colour in steps)]
        defaults["thresholds"] = {"mode": "absolute", "steps": colours}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if table else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "table":
        return {"showHeader": True}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == "bargauge":
        return {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": reduce}
    return {"colorMode": "value", "graphMode": "none", "reduceOptions": reduce}


def _source_choice() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _choice(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
