"""Values of options that need no parser: texts, choices, paths, and defaults of any type.

typer reads every value, given or not, by a pydantic model, and importing pydantic takes a fifth of
a short command's time. What is not plain here (numbers, texts that are no choice, files that may
not be read) is left to typer, with its messages.
"""

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer._coercion import RuntimeParam, build_runtime_param


class _PlainValue(RuntimeParam):
    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        origin: Any = get_origin(self.annotation)
        several = origin is list
        kind = get_args(self.annotation)[0] if several else self.annotation
        if self.parameter_info.parser is None and (not several or isinstance(value, list | tuple)):
            items = [_plain(item, kind) for item in (value if several else [value])]
            if None not in items:
                return items if several else items[0]
        return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


def read_plain_values(params: Sequence[Any]) -> None:
    """Have the plain values of these options and arguments read without typer's models."""
    for param in params:
        if isinstance(param, typer.core.TyperOption | typer.core.TyperArgument):
            descriptor = param.type_descriptor
            param._runtime_param = _PlainValue(descriptor.parameter_info, descriptor.annotation)  # noqa: SLF001


def _plain(item: Any, kind: Any) -> Any:
    """Return the value as it is passed to the command, or None if typer is to read it."""
    if get_origin(kind) is Literal:
        return item if item in get_args(kind) else None
    if not isinstance(kind, type):
        return None
    if isinstance(item, kind) and (kind is bool or not isinstance(item, bool)):
        return item
    if issubclass(kind, Enum):
        return next((choice for choice in kind if choice.value == item), None)
    if kind is Path and isinstance(item, str) and (os.access(item, os.R_OK) or not os.path.lexists(item)):
        return Path(item)
    return None
