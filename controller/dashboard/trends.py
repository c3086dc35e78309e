"""Trends over a span that the user chooses, as SVG with axes and as data for uPlot. Pure.

In: samples, oldest first. Out: `Chart`s. The axis has the whole span, or begins with the first
sample where the history is shorter. Without scripts a browser shows the polylines; with them `charts.js` draws `data` with
uPlot.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

SPANS: Final = {"30m": timedelta(minutes=30), "2h": timedelta(hours=2), "24h": timedelta(hours=24)}
"""By the value of `range` in the query."""
SPAN: Final = "2h"
"""Where the query names none."""
_POINTS: Final = 120
"""Points of a line at most: of all samples in a step, the last is drawn."""
WIDTH, HEIGHT = 720, 120
"""Of the viewBox, which is stretched to the size of the chart."""
_TICKS: Final = 4
_SHORT: Final = 60 * _TICKS
"""Seconds below which labels of the axis have seconds."""

Points = Sequence[tuple[datetime, float]]


class Line(Struct, frozen=True):
    name: str
    colour: int
    points: str
    """Of an SVG polyline."""
    latest: float


class Chart(Struct, frozen=True):
    lines: tuple[Line, ...]
    times: tuple[str, ...]
    """Labels of the x axis at equal distances, UTC."""
    top: int
    """Upper end of the y axis; the lower one is 0."""
    unit: str
    data: str
    """JSON for uPlot: `x` (seconds since 1970) and for each series name, colour and values."""


def chart(
    series: Mapping[str, Points], now: datetime, *, span: str = SPAN, unit: str = "", top: int = 0
) -> Chart | None:
    """Return the chart, or None if no series has two points. `top` of the y axis; 0: from the values, at least 4."""
    start = max(now - SPANS[span], min((points[0][0] for points in series.values() if points), default=now))
    seconds = max((now - start).total_seconds(), 1.0)
    kept = {name: _by_step(points, start, max(int(seconds) // _POINTS, 1)) for name, points in series.items()}
    if not any(len(points) > 1 for points in kept.values()):
        return None
    top = top or _rounded_up(max(value for points in kept.values() for value in points.values()))
    steps = sorted({step for points in kept.values() for step in points})
    lines = []
    for colour, (name, points) in enumerate(kept.items()):
        if points:
            spots = (
                f"{WIDTH * max(step - start.timestamp(), 0) / seconds:.1f},{HEIGHT * (1 - min(value / top, 1)):.1f}"
                for step, value in points.items()
            )
            lines.append(Line(name, colour, " ".join(spots), list(points.values())[-1]))
    data = {
        "x": steps,
        "from": int(start.timestamp()),
        "to": int(now.timestamp()),
        "top": top,
        "unit": unit,
        "series": [
            {"name": line.name, "colour": line.colour, "values": [kept[line.name].get(each) for each in steps]}
            for line in lines
        ],
    }
    shape = "%H:%M" if seconds >= _SHORT else "%H:%M:%S"
    ticks = (start + (now - start) * tick / _TICKS for tick in range(_TICKS + 1))
    times = tuple(tick.astimezone(UTC).strftime(shape) for tick in ticks)
    return Chart(tuple(lines), times, top, unit, json.dumps(data, separators=(",", ":")))


def _by_step(points: Points, start: datetime, step: int) -> dict[int, float]:
    """Return the last value of each step of some seconds, by the step's start in seconds since 1970."""
    return {int(at.timestamp()) // step * step: round(value, 1) for at, value in points if at >= start}


def _rounded_up(value: float) -> int:
    """Return a round number that is not less, even, and at least 4.

    >>> [_rounded_up(value) for value in (0, 4, 5, 13, 420)]
    [4, 4, 6, 20, 600]
    """
    digits = 10 ** math.floor(math.log10(max(value, 1)))
    return next(int(step * digits) for step in (2, 4, 6, 8, 10) if step * digits >= max(value, 4))
