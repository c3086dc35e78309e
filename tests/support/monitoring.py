"""What is shipped for Prometheus and Grafana, as tests look at it."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = (ROOT / "monitoring/alerts.yaml").read_text()
DASHBOARD: dict[str, Any] = json.loads((ROOT / "monitoring/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

_VARIABLES = {"$__rate_interval": "5m", "$vendor": "nvidia", "$node": "gpu-0"}


def alerts() -> dict[str, dict[str, Any]]:
    """By name."""
    return {rule["alert"]: rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]}


def expressions() -> list[str]:
    """Of the dashboard, as Grafana sends them."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for name, value in _VARIABLES.items():
        found = [text.replace(name, value) for text in found]
    assert [text for text in found if "$" in text] == []
    return found


def metrics_in(exposition: str) -> set[str]:
    """Names as expressions have them: of a histogram those of its parts too."""
    families = re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE)
    names = {name for name, _ in families if not name.endswith("_created")}
    parts = {f"{name}_{part}" for name, kind in families if kind == "histogram" for part in ("bucket", "sum", "count")}
    return names | parts
