"""Rich tables that are never cut: as wide as they need to be, also in a pipe and in a narrow terminal."""

from typing import Any

_ENOUGH = 10_000


def print_wide(*what: Any) -> None:
    """Tables and plain text; text is printed as it is, without markup."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, _ENOUGH)
    for item in what:
        console.print(item, markup=not isinstance(item, str))
