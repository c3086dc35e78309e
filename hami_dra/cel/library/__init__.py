"""The functions of the DRA environment. Importing this package fills library.registry."""

from hami_dra.cel.library import authorizer, core, formats, formatting, lists, network, quantities, text, times, urls
from hami_dra.cel.library.registry import Overload, functions

__all__ = [
    "Overload",
    "authorizer",
    "core",
    "formats",
    "formatting",
    "functions",
    "lists",
    "network",
    "quantities",
    "text",
    "times",
    "urls",
]
