"""The extras of the package, and what to say where a command needs one that is not installed.

`pip install hami-dra` installs what every command needs, and leaves out what only the programs in a
cluster use. `main.run` turns the import that fails into one sentence.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

EXTRAS: Final[Mapping[str, str]] = {
    "certifi": "auth-provider",
    "cryptography": "controller",
    "google.protobuf": "driver",
    "grpc": "driver",
    "jinja2": "dashboard",
    "kubernetes": "auth-provider",
    "pynvml": "driver",
}
"""Module → the extra of pyproject.toml that installs it."""


def missing_extra(module: str) -> str:
    """Return what to install for a module, as the rest of a sentence; empty if it is installed."""
    try:
        is_installed = find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_installed = False
    return "" if is_installed else needed_extra(module)


def needed_extra(module: str) -> str:
    """Return what to install for a module, as the rest of a sentence; empty if no extra has it.

    >>> needed_extra("grpc.aio")
    "needs the extra 'driver', which is not installed: pip install 'hami-dra[driver]'"
    >>> needed_extra("json")
    ''
    """
    extra = next((EXTRAS[name] for name in EXTRAS if f"{module}.".startswith(f"{name}.")), "")
    if not extra:
        return ""
    return f"needs the extra {extra!r}, which is not installed: pip install 'hami-dra[{extra}]'"
