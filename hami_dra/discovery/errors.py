"""Errors while hardware is read. Raised by the back ends, caught by their callers."""

_SHOWN = 160
"""Characters of a tool's own text in a message."""


class DiscoveryError(Exception):
    """The hardware of one vendor cannot be read; the message says what to check."""


class ToolMissing(DiscoveryError):
    """The vendor's tool or library is not on this machine: no such hardware, or its driver is not installed."""


class ToolFailed(DiscoveryError):
    """The tool was started (or the library called) and did not answer; the message quotes it."""


class Unexpected(ValueError):
    """A word differs from the expected form. Parsers turn it into a problem or into Unreadable, with the place."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}, got {shown(got)}")


class Unreadable(DiscoveryError):
    """The tool answered, and the answer has no usable card; the message names the line and the expected form."""


def shown(text: str) -> str:
    """Return another program's text, safe and short enough for a message."""
    clean = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return f'"{clean}"' if len(clean) <= _SHOWN else f'"{clean[:_SHOWN]}..."'
