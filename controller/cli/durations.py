"""Durations as users write them: 15s, 1m30s, 500ms, or a bare number of seconds."""

import re
from typing import Final

from controller.cli.errors import CommandError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def seconds(text: str, option: str) -> float:
    """Parse a duration. Raises CommandError, which names the option."""
    plain = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", plain):
        return float(plain)
    parts = _PART.findall(plain)
    if not parts or "".join(number + unit for number, unit in parts) != plain:
        raise CommandError(f"{option}: {text!r} is not a duration; write it like 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
