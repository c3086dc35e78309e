"""The `hami-dra` command: one entry, commands in their own modules, heavy imports inside commands.

A command raises `CommandError` (exit 2) for what the user must fix; anything else is a bug and
keeps its traceback.
"""

import sys
from importlib import import_module
from importlib.metadata import version as package_version

import typer

from controller.cli.errors import CommandError
from controller.cli.extras import needed_extra

COMMANDS = (
    "demo",
    "status",
    "explain",
    "doctor",
    "simulate",
    "whatif",
    "snapshot",
    "convert",
    "controller",
    "driver",
    "webhook",
    "slices",
    "topology",
    "install_library",
    "uninstall",
)
"""Modules of this folder with a `register(app)`, in the order of --help."""

app = typer.Typer(
    name="hami-dra",
    help="A scoring scheduler for Kubernetes Dynamic Resource Allocation, with HAMi's semantics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"hami-dra {package_version('hami-dra')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def application() -> typer.Typer:
    """Return the application with all its commands."""
    if not app.registered_commands:
        for command in COMMANDS:
            import_module(f"controller.cli.{command}").register(app)
    return app


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    try:
        application()(arguments)
    except CommandError as error:
        typer.echo(f"hami-dra: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        advice = needed_extra(error.name or "")
        if not advice:
            raise
        typer.echo(f"hami-dra: this command {advice}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    run()
