"""Prometheus' text format for gauges with very many samples.

Used by `cards` and `pods`. The library's way (one `Sample` each, all at once) takes seconds for
40,000 cards and blocks the loop during that time. Here labels are cached text, and the lines come
in blocks of a few milliseconds, between which other tasks run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
BLOCK: Final = 2_000
"""Lines in one block."""


class Gauge(Struct, frozen=True):
    name: str
    text: str

    @property
    def header(self) -> str:
        return f"# HELP {self.name} {self.text}\n# TYPE {self.name} gauge\n"


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Return `node="n1",device_uuid="GPU-1"`."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)


def blocks(gauge: Gauge, labelled: Sequence[str], values: Sequence[float]) -> Iterator[str]:
    """Yield the family in pieces. `labelled` and `values` are parallel."""
    yield gauge.header
    name = gauge.name
    for start in range(0, len(labelled), BLOCK):
        part = zip(labelled[start : start + BLOCK], values[start : start + BLOCK], strict=True)
        yield "".join([f"{name}{{{text}}} {value}\n" for text, value in part])
