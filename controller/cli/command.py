"""The class of all commands: plain help as kubectl prints it, and options that were renamed.

A help text has paragraphs, which are wrapped, and indented lines, which stay as they are. Usage
lines and examples name the program as the user called it (`controller.cli.program`).
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args, get_origin

import typer
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperCommand

from controller.cli.program import as_typed


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
    """Have the plain values of these options and arguments (texts, choices, paths, defaults of any type)
    read without typer's pydantic models, whose import takes a fifth of a short command's time. What is
    not plain is left to typer, with its messages.
    """
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


_INDENT: Final = "    "
_LIST: Final = re.compile(r"<list\[(.*)\]>")
"""How typer shows the type of an option that may be repeated."""
_TYPE: Final = re.compile(r" <(str|int|path)(?: range)?>$", re.IGNORECASE)
"""How typer shows that a value is text, a number or a path: by the name of Python's class."""
_DURATION: Final = re.compile(r"\d+(ms|s|m|h)")
_OPTIONS: Final = "Options"


class Command(TyperCommand):
    """A command with help in plain text. `RENAMED` has options that had another name once."""

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Former name of an option, or value (`--by card`) → its name now; it works, with a note on stderr."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return self._parse_leniently(ctx, args)
        read_plain_values(self.get_params(ctx))
        try:
            return super().parse_args(ctx, list(self._renamed(args)))
        except typer.BadParameter as error:
            error.message = error.message.replace("Value error, ", "")
            raise

    def _parse_leniently(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse for completion: words stay as typed, which takes a third of the time."""
        parser = self.make_parser(ctx)
        given, rest, _ = parser.parse_args(args=args)
        ctx._opt_prefixes.update(parser._opt_prefixes)  # noqa: SLF001 (how completion knows options)
        for param in self.get_params(ctx):
            value, source = param.consume_value(ctx, given)
            ctx.params[param.name] = value
            ctx.set_parameter_source(param.name, source)
        ctx.args = list(rest)
        return list(rest)

    def _renamed(self, args: Sequence[str]) -> Iterator[str]:
        option = ""
        for arg in args:
            name, equals, value = arg.partition("=")
            former = name if name in self.RENAMED else f"{option} {name}"
            current = self.RENAMED.get(former)
            if current is not None:
                now = current if former == name else f"{option} {current}"
                typer.echo(f"note: {former} is now {now}; {former} goes away in a later version", err=True)
            option = name
            yield arg if current is None else f"{current}{equals}{value}"

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (typer's signature)
        for block in blocks(as_typed(self.help or "")):
            if block[0].startswith(_INDENT):
                formatter.write("".join(f"{line}\n" for line in block))
            else:
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(" ".join(block))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each group of options under its title."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            title = "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None)
            name, text = record
            sections.setdefault(title or _OPTIONS, []).append((_shown(_LIST.sub(r"<\1>", name), param), text))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _shown(name: str, param: Any) -> str:
    """Return an option as help shows it: PATH, NUMBER, DURATION, else the last word of its name in capitals."""
    match = _TYPE.search(name)
    if match is None:
        return name
    plain, kind = name[: match.start()], match[1].lower()
    if param.param_type_name == "argument":
        return plain
    if kind == "str":
        is_duration = isinstance(param.default, str) and _DURATION.fullmatch(param.default)
        return f"{plain} {'DURATION' if is_duration else plain.rpartition('-')[2].upper()}"
    return f"{plain} {'PATH' if kind == 'path' else 'NUMBER'}"


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the paragraphs of a help text; indented lines next to others are a block of their own."""
    block: list[str] = []
    for line in [*text.strip("\n").splitlines(), ""]:
        if block and (not line.strip() or line.startswith(_INDENT) != block[0].startswith(_INDENT)):
            yield block
            block = []
        if line.strip():
            block.append(line)
