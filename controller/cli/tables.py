"""Rich tables that are never truncated: as wide as needed, even in a pipe or narrow terminal."""

from typing import Any

_ENOUGH = 10_000


def print_wide(*what: Any) -> None:
    """Print tables and plain text; text is printed without markup."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, _ENOUGH)
    for item in what:
        console.print(item, markup=not isinstance(item, str))
