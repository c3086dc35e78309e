"""Durations as users write them: 15s, 1m30s, 500ms, or a bare number of seconds."""

import re
from typing import Final

from controller.cli.errors import CommandError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LEAST, _MOST = 0.1, 86400.0
_BOUNDS: Final = {
    "--gate-patience": (0.0, _MOST),
    "--gang-hold": (0.0, _MOST),
    "--event-interval": (0.0, _MOST),
    "--recovery-time": (0.0, _MOST),
    "--confirm-time": (0.0, _MOST),
    "--monitor-interval": (0.0, _MOST),
    "--orphan-age": (1.0, _MOST),
    "--unschedulable-timeout": (1.0, _MOST),
    "--stall-limit": (1.0, 600.0),
    "--lease-duration": (1.0, 3600.0),
}
"""Least and most seconds of options for which it is not 0.1 s to 24 h."""
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def seconds(text: str, option: str) -> float:
    """Parse a duration within the option's bounds. Raises CommandError, which names the option."""
    value = _parsed(text, option)
    least, most = _BOUNDS.get(option, (_LEAST, _MOST))
    if not least <= value <= most:
        raise CommandError(f"{option}: {text!r} is out of range: from {least:g}s to {most:g}s")
    return value


def _parsed(text: str, option: str) -> float:
    plain = text.strip()
    if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", plain):
        return float(plain)
    parts = _PART.findall(plain)
    if not parts or "".join(number + unit for number, unit in parts) != plain:
        raise CommandError(f"{option}: {text!r} is not a duration; write it like 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
