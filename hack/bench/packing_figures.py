"""What `packing.py` measured, kept in a JSON file: a long run that was stopped goes on, and runs of
other policies and seeds join it.

The file is written after every single run, by renaming. It belongs to one trace and one load of the
arrival; figures of others are refused rather than mixed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.bench.packing_replay import Arrival, Churn
from hack.bench.packing_report import Row
from hack.bench.packing_trace import Trace


class BadFigures(ValueError):
    """A file of figures cannot be gone on with; the message says why."""


def about(trace: Trace, load: float) -> dict[str, Any]:
    """What all figures of one file have in common."""
    cards = sum(machine.cards for machine in trace.machines)
    return {
        "trace": trace.name,
        "nodes": len(trace.machines),
        "cards": cards,
        "jobs": len(trace.jobs),
        "demand": sum(job.demand for job in trace.jobs),
        "load": load,
    }


def read_figures(path: Path, common: dict[str, Any]) -> dict[str, Row]:
    """By policy; nothing where there is no such file. Raises BadFigures."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = [_row(each) for each in document["policies"]]
        other = [f"{name} {document.get(name)!r}, not {value!r}" for name, value in common.items()]
        other = [text for text, (name, value) in zip(other, common.items(), strict=True) if document.get(name) != value]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFigures(
            f"{path}: has no figures of this tool ({type(error).__name__}: {error}); name another file"
        ) from None
    if other:
        raise BadFigures(f"{path}: has figures of something else ({'; '.join(other)}); name another file")
    return {row.policy: row for row in rows}


def _row(document: dict[str, Any]) -> Row:
    row = Row(document["policy"])
    for seed, found in document["arrival"].items():
        row.arrivals[int(seed)] = Arrival(**found)
    for load, runs in document["churn"].items():
        row.churns[float(load)] = {int(seed): Churn(**found) for seed, found in runs.items()}
    return row


def write_figures(path: Path, common: dict[str, Any], rows: list[Row]) -> None:
    fresh = path.with_name(path.name + ".new")
    document = {**common, "policies": [row.document() for row in rows]}
    fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
