"""The flags of options that are declared with the settings they are for (`hami_dra.api.flags`).

A command has records of settings as arguments, `command(*, queueing: QueueingSettings)`, and single
options. typer sees a function with an argument for each option, and the command gets what they mean.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from msgspec import NODEFAULT, Struct, structs

from controller.cli import completion_values
from controller.cli.errors import CommandError
from hami_dra.api.flags import Declared, Form


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return what typer registers. It raises InputError for a value or a record that is refused."""
    records: dict[str, type[Struct]] = {}
    options: dict[str, Declared] = {}
    shown: list[inspect.Parameter] = []
    own = inspect.signature(command).parameters
    for parameter in own.values():
        if _is_record(parameter.annotation):
            records[parameter.name] = parameter.annotation
            shown += map(_parameter, _options(parameter.annotation))
        elif option := Declared.of(parameter.name, parameter.annotation, parameter.default):
            options[parameter.name] = option
            shown.append(_parameter(option))
        else:
            shown.append(parameter)

    def registered(**written: Any) -> None:
        values = {name: value for name, value in written.items() if name in own}
        values |= {name: _value(option, written[name]) for name, option in options.items()}
        values |= {name: _record(record, written) for name, record in records.items()}
        command(**values)

    registered.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return registered


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _options(record: type[Struct]) -> Iterator[Declared]:
    """Yield the options of a record and of the records in it."""
    for each in structs.fields(record):
        if option := Declared.of(each.name, each.type, each.default):
            yield option
        elif _is_record(each.type):
            yield from _options(each.type)


def _parameter(declared: Declared) -> inspect.Parameter:
    option, form, default = declared.option, declared.option.form, declared.default
    kind: Any = declared.kind
    if form.choices:
        kind = Literal[form.choices]
    elif form.read:
        kind = str
    elif declared.is_repeated:
        kind = _item_kind(declared)
    if declared.is_repeated:
        kind = list[kind]
        default = default if default is inspect.Parameter.empty else None
    elif default is NODEFAULT:
        default = None
    elif form.read and default is not None:
        default = form.write(default)
    # what is on, or not known, can be switched off
    flags = option.flags or ((declared.flag,) if kind is bool and default is False else ())
    shown = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar,
        envvar=option.envvar,
        min=form.least,
        max=form.most,
        callback=_callback(form),
        autocompletion=getattr(completion_values, option.values) if option.values else None,
        show_default=option.show_default,
    )
    kind = Annotated[kind | None if default is None else kind, shown]
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _item_kind(declared: Declared) -> Any:
    kind = get_args(declared.kind)[0]
    # typer takes a Literal, but no list of them
    return StrEnum(declared.name, {text: text for text in get_args(kind)}) if get_origin(kind) is Literal else kind


def _callback(form: Form) -> Callable[[Any], Any] | None:
    check = form.check
    if check is None:
        return None

    def callback(value: Any) -> Any:
        for item in value if isinstance(value, list | tuple) else [value]:
            try:
                if item is not None:
                    check(item)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        return value

    return callback


def _record(record: type[Struct], written: Mapping[str, Any]) -> Any:
    """Return a record with what was written; what was not has the record's defaults."""
    values: dict[str, Any] = {}
    for each in structs.fields(record):
        if option := Declared.of(each.name, each.type, each.default):
            values[each.name] = _value(option, written[each.name])
        elif _is_record(each.type):
            values[each.name] = _record(each.type, written)
    return record(**{name: value for name, value in values.items() if value is not NODEFAULT})


def _value(declared: Declared, written: Any) -> Any:
    if written in (None, [], ()):
        return declared.default
    read, container = declared.option.form.read, get_origin(declared.kind)
    if read is None and declared.is_repeated:
        return container(str(each) if get_origin(get_args(declared.kind)[0]) is Literal else each for each in written)
    try:
        return written if read is None else read(written)
    except ValueError as error:
        raise CommandError(f"{declared.flag}: {error}") from error
