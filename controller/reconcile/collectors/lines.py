"""Prometheus' text format for gauges with very many samples.

Used by `cards` and `pods`. The library's way (a `Sample` each, all in one go) takes seconds for 40,000 cards and as long nothing else
runs; here labels are text that is kept, and the lines come in blocks of a few milliseconds, between which others run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
BLOCK: Final = 2_000
"""Lines."""


@dataclass(frozen=True, slots=True)
class Gauge:
    name: str
    text: str

    @property
    def header(self) -> str:
        return f"# HELP {self.name} {self.text}\n# TYPE {self.name} gauge\n"


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """`node="n1",device_uuid="GPU-1"`"""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)


def blocks(gauge: Gauge, labelled: Sequence[str], values: Sequence[float]) -> Iterator[str]:
    """The family, in pieces. `labelled` and `values` go together."""
    yield gauge.header
    name = gauge.name
    for start in range(0, len(labelled), BLOCK):
        part = zip(labelled[start : start + BLOCK], values[start : start + BLOCK], strict=True)
        yield "".join([f"{name}{{{text}}} {value}\n" for text, value in part])
