"""What containers really use of shared cards, from the text of a node driver's /metrics. Pure.

Used by `hami-dra status --usage` and the dashboard. The text comes over the network from a program
that reads files which tenants write: whatever it is, nothing is raised, and unreadable values are
none.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api import names

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

log = logging.getLogger(__name__)

_MOST: Final = 4_096
"""Pairs of container and card in one answer."""
_LARGEST: Final = float(1 << 62)
_WHOLE: Final = 100
_LIMITS: Final = {
    names.METRIC_CONTAINER_MEMORY: (0.0, _LARGEST),
    names.METRIC_CONTAINER_UTILIZATION: (0.0, 1.0),
    names.METRIC_CONTAINER_LIMIT: (0.0, _LARGEST),
}
_LABELS: Final = ("namespace", "pod", "container", "device_uuid")


class ContainerUse(Struct, frozen=True, kw_only=True):
    """One container on one card. None: not reported."""

    namespace: str
    pod: str
    container: str
    memory_used: int | None = None
    """Bytes."""
    memory_limit: int | None = None
    utilization: float | None = None
    """Percent of the card's cores, 0 to 100."""


def samples_of(text: str, limits: Mapping[str, tuple[float, float]]) -> "Iterator[Sample]":
    """Yield samples within `limits` by metric, up to the first broken line of Prometheus' text. Never raises."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = "".join(f"{line}\n" for line in text.split("\n") if line.startswith(tuple(limits)))
    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                least, most = limits.get(sample.name, (0.0, -1.0))
                if least <= sample.value <= most:
                    yield sample
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:  # what the parser raises on garbage
        log.debug("unreadable metrics: %r", error)


def container_uses(text: str) -> dict[str, tuple[ContainerUse, ...]]:
    """Return the containers whose use is known by uuid of the card, ordered by namespace, pod, container."""
    found: dict[tuple[str, ...], ContainerUse] = {}
    for sample in samples_of(text, _LIMITS):
        key = tuple(sample.labels.get(name, "") for name in _LABELS)
        if all(key) and (key in found or len(found) < _MOST):
            namespace, pod, container, _ = key
            use = found.get(key, ContainerUse(namespace=namespace, pod=pod, container=container))
            match sample.name:
                case names.METRIC_CONTAINER_MEMORY:
                    use = replace(use, memory_used=int(sample.value))
                case names.METRIC_CONTAINER_LIMIT:
                    use = replace(use, memory_limit=int(sample.value))
                case _:
                    use = replace(use, utilization=_WHOLE * sample.value)
            found[key] = use
    by_card: dict[str, list[ContainerUse]] = {}
    for key in sorted(found):
        use = found[key]
        if use.memory_used is not None or use.utilization is not None:
            by_card.setdefault(key[-1], []).append(use)
    return {uuid: tuple(uses) for uuid, uses in by_card.items()}
