"""Flags of the options that vendors declare (`VendorPlugin.options`), for `driver` and `slices`.

The registry is imported when a command is parsed or its help is shown, not when the command is
registered: other commands do not pay for it.
"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, cast

import typer
from typer.core import TyperOption

from controller.cli.command import Command
from controller.cli.errors import CommandError

if TYPE_CHECKING:
    from hami_dra.api.options import VendorOption, VendorSettings, Written

_KEY: Final = "hami-dra.vendor-options"
VENDORS: Final = "{vendors}"
"""In the help of a command's own option: the names of all vendors."""


class DriverCommand(Command):
    """A command with a flag for each option of a vendor, and with vendors' names in its help."""

    only_published: ClassVar = False
    """Only the options that change what is published, without defaults of their own."""
    only: ClassVar[frozenset[str]] = frozenset()
    """Only the options of these names; empty: all."""

    def get_params(self, ctx: Any) -> list[Any]:
        from hami_dra.vendors.registry import plugin_names

        params = [copy(param) for param in super().get_params(ctx)]
        for param in params:
            if isinstance(param, TyperOption) and param.help:
                param.help = param.help.replace(VENDORS, ", ".join(plugin_names()))
        return [*params, *_vendor_params(self.only, only_published=self.only_published)]


class SlicesCommand(DriverCommand):
    """A command with a flag for each option that changes what is published."""

    only_published = True


def given_options(context: typer.Context) -> "dict[VendorOption[Any], Written]":
    from hami_dra.vendors.registry import OPTIONS

    given: dict[str, Written] = context.meta.get(_KEY, {})
    return {option: given[option.name] for option in OPTIONS if option.name in given}


def vendor_settings(context: typer.Context) -> "VendorSettings":
    """Return the values of all vendors' options. Raises CommandError."""
    from hami_dra.api.options import InvalidOption, VendorSettings

    try:
        return VendorSettings.of(given_options(context))
    except InvalidOption as error:
        raise CommandError(str(error)) from error


def _vendor_params(only: frozenset[str], *, only_published: bool) -> list[Any]:
    """Let typer make parameters of a function that has an argument for each option."""
    from hami_dra.vendors.registry import OPTIONS

    def arguments() -> None: ...

    chosen = [
        _argument(option, [plugin.title for plugin in plugins], with_default=not only_published)
        for option, plugins in OPTIONS.items()
        if (option.field or not only_published) and (not only or option.name in only)
    ]
    cast(Any, arguments).__signature__ = inspect.Signature(chosen)
    app = typer.Typer(add_completion=False)
    app.command()(arguments)
    return list(typer.main.get_command(app).params)


def _argument(option: "VendorOption[Any]", titles: list[str], *, with_default: bool) -> inspect.Parameter:
    kind: Any = Literal[option.choices] if option.choices else type(option.default)
    flags = [f"--{option.name}", *([f"--no-{option.name}"] if kind is bool else [])]
    info = typer.Option(
        "/".join(flags),
        envvar=option.envvar or None,
        help=option.help if with_default else f"{option.help} Default: {option.default}.",
        rich_help_panel=f"Options for devices of {', '.join(titles)}",
        show_default=with_default,
        expose_value=False,
        callback=_remember(option),
    )
    return inspect.Parameter(
        option.name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default if with_default else None,
        annotation=Annotated[kind if with_default else kind | None, info],
    )


def _remember(option: "VendorOption[Any]") -> "Callable[[typer.Context, Any], None]":
    def callback(context: typer.Context, value: Any) -> None:
        if value is not None:
            context.meta.setdefault(_KEY, {})[option.name] = value

    return callback
