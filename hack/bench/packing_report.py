"""What `packing.py` measured, as a table, as JSON and as a picture. Pure: numbers in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hack.bench.packing_replay import Arrival, Churn

_COLOURS: Final = ("#4878a8", "#9aa5b1", "#2e8b57", "#c06f2d", "#8d6cab", "#b5525c", "#6b8e23", "#20808d")
_INK: Final = "#24292f"
_TEXT: Final = f'font-family="sans-serif" font-size="12" fill="{_INK}"'
_FAINT: Final = "#d0d7de"


@dataclass(slots=True)
class Row:
    """All runs of one policy, by seed."""

    policy: str
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    churns: dict[float, dict[int, Churn]] = field(default_factory=dict)
    """By load."""

    @property
    def allocated(self) -> list[float]:
        return [run.allocated for _, run in sorted(self.arrivals.items())]

    @property
    def roomy(self) -> list[float]:
        return [float(run.roomy) for _, run in sorted(self.arrivals.items())]

    def churn(self, load: float, figure: str) -> list[float]:
        return [getattr(run, figure) for _, run in sorted(self.churns.get(load, {}).items())]

    def document(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "arrival": {str(seed): asdict(run) for seed, run in sorted(self.arrivals.items())},
            "churn": {
                f"{load:g}": {str(seed): asdict(run) for seed, run in sorted(runs.items())}
                for load, runs in sorted(self.churns.items())
            },
        }


def table(rows: Sequence[Row], load: float, loads: Sequence[float]) -> str:
    """Markdown. Means over the seeds; the spread (standard deviation) of the first figure."""
    percents = " / ".join(f"{100 * each:.0f}" for each in loads)
    titles = [
        "policy",
        f"allocated at {100 * load:.0f} %",
        "sd",
        "jobs placed",
        "8-card nodes at half load",
        *([f"in churn at {percents} %", f"rejected in churn, % at {percents} %"] if loads else []),
        "seeds: arrival, churn" if loads else "seeds",
    ]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        placed = [float(run.placed) for run in row.arrivals.values()]
        cells = [
            row.policy,
            _mean(row.allocated, 2),
            f"{statistics.stdev(row.allocated):.2f}" if len(row.allocated) > 1 else "-",
            _mean(placed, 0),
            _mean(row.roomy, 0),
        ]
        seeds = str(len(row.arrivals))
        if loads:
            cells += [" / ".join(_mean(row.churn(each, "roomy"), 0) for each in loads)]
            cells += [" / ".join(_mean(row.churn(each, "rejected"), 2) for each in loads)]
            seeds += ", " + " / ".join(str(len(row.churns.get(each, {}))) for each in loads)
        cells.append(seeds)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f}" if values else "-"


def picture(rows: Sequence[Row], title: str, load: float, loads: Sequence[float]) -> str:
    """SVG: three groups of bars, one bar for each policy."""
    panels: list[tuple[str, str, Mapping[str, float]]] = [
        (f"allocated at {100 * load:.0f} % asked for", "%", {row.policy: _value(row.allocated) for row in rows}),
        ("nodes open for 8 cards at half load", "", {row.policy: _value(row.roomy) for row in rows}),
    ]
    panels += [
        (
            f"rejected, churn at {100 * each:.0f} %",
            "%",
            {row.policy: _value(row.churn(each, "rejected")) for row in rows},
        )
        for each in loads
    ]
    width, height, gap, top = 210, 200, 24, 64
    total = gap + len(panels) * (width + gap)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {top + height + 70}" {_TEXT}>',
        f"<title>{_escaped(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{gap}" y="22" font-size="15" font-weight="bold">{_escaped(title)}</text>',
    ]
    for number, (name, unit, values) in enumerate(panels):
        left = gap + number * (width + gap)
        parts.append(f'<text x="{left}" y="46">{_escaped(name)}</text>')
        parts += _bars(values, unit, left, top, width, height)
    for number, row in enumerate(rows):
        across = gap + number * 130
        parts.append(
            f'<rect x="{across}" y="{top + height + 40}" width="12" height="12" fill="{_colour(number)}"/>'
            f'<text x="{across + 18}" y="{top + height + 50}">{_escaped(row.policy)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _bars(values: Mapping[str, float], unit: str, left: int, top: int, width: int, height: int) -> list[str]:  # noqa: PLR0917 (a place on the paper)
    known = [value for value in values.values() if value >= 0]
    high = max([*known, 1e-9])
    # shares of the whole that are all large would look alike from 0
    low = 5 * (min(known) // 5) if unit and known and min(known) > 50 else 0.0
    step = width / max(len(values), 1)
    parts = [f'<line x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}" stroke="{_FAINT}"/>']
    if low:
        parts.append(f'<text x="{left}" y="{top + height + 28}" fill="#6e7781">from {low:.0f} %</text>')
    for number, value in enumerate(values.values()):
        if value < 0:
            continue
        tall = (height - 20) * (value - low) / max(high - low, 1e-9)
        across = left + number * step
        parts.append(
            f'<rect x="{across + 3:.1f}" y="{top + height - tall:.1f}" width="{step - 6:.1f}" height="{tall:.1f}" '
            f'fill="{_colour(number)}"/>'
            f'<text x="{across + step / 2:.1f}" y="{top + height - tall - 4:.1f}" text-anchor="middle" font-size="10">'
            f"{value:.1f}</text>"
        )
    return parts


def _value(values: Sequence[float]) -> float:
    """-1: nothing was measured."""
    return statistics.fmean(values) if values else -1.0


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
