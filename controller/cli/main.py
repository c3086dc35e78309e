"""The `hami-dra` command, which is `kubectl hami`, too: a command is imported when it is used.

A command raises an `InputError` (exit 2) for what the user must fix; anything else is a bug and
keeps its traceback.
"""

import errno
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from controller.cli.extras import needed_extra
from controller.cli.program import program
from hami_dra.api.errors import InputError
from hami_dra.api.printable import escaped

_SERVICES: Final = "Run on the cluster"
COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Look at a cluster": {
        "status": "Show devices, what is in use, and by whom",
        "explain": "Say why a pod got its node and devices, or none",
        "doctor": "Find problems, and say how to fix each",
        "topology": "Show how the devices of a node are connected",
        "version": "Show the versions of all components",
    },
    "Try before you change": {
        "simulate": "Place the pods of manifests, without a cluster",
        "whatif": "Show the effects of a policy, more pods or fewer nodes",
        "defrag": "Plan moves of pods that free devices or nodes",
        "snapshot": "Save a cluster's state for simulate, explain and whatif",
        "convert": "Convert HAMi manifests to ResourceClaims",
        "demo": "Show four placements on a cluster in memory",
    },
    _SERVICES: {
        "controller": "Run the controller, which allocates devices to pods",
        "webhook": "Run the webhook, which converts HAMi resources to claims",
        "driver": "Run the node driver, which publishes and prepares devices",
        "slices": "Print, check or publish ResourceSlices",
        "install-library": "Install HAMi-core on this node",
        "uninstall": "Remove hami-dra from a cluster",
    },
    "Other": {"completion": "Print the completion script of a shell"},
}
"""Title → command → its line in the list of all, which is shown without importing them."""

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

HELP: Final = """Allocate GPUs and other devices with Kubernetes DRA: binpack, spread, topology and sharing.

{program} COMMAND --help has examples."""


class LazyGroup(TyperGroup):
    """All commands; each is imported when it is used, and the list of them needs none."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (typer's signature)
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (typer's signature)
        if cmd_name not in command_names():
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = loaded(cmd_name)
        return self.commands[cmd_name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["--version"] and not ctx.resilient_parsing:
            from importlib.metadata import version

            typer.echo(f"hami-dra {version('hami-dra')}")
            ctx.exit()
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        if (args and not args[0].startswith("-")) or (not args and ctx.resilient_parsing):
            # No option of the group itself: what typer would do, without 0.3 s for importing pydantic.
            ctx._protected_args, ctx.args = args[:1], args[1:]  # noqa: SLF001
            ctx._opt_prefixes.update(("-", "--"))  # noqa: SLF001
            return list(ctx.args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in command_names() and not ctx.resilient_parsing:
            ctx.fail(_no_such_command(args[0]))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ARG002 (typer's signature)
        from typer._click.shell_completion import CompletionItem

        return [CompletionItem(name, help=line) for name, line in _lines() if name.startswith(incomplete)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (typer's signature)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(HELP.format(program=program()))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl([("--version", "Print the version."), ("-h, --help", "Show this message and exit.")])

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (typer's signature)
        width = max(map(len, command_names()))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])


app = typer.Typer(
    name="hami-dra",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Have a group although typer sees no command."""


def command_names() -> list[str]:
    """Return the names of all commands, in the order of --help."""
    return [name for name, _ in _lines()]


def loaded(name: str) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    register(single, name)
    return typer.main.get_command(single)


def register(app: typer.Typer, name: str) -> None:
    """Import a command and add it to the application.

    Its module has the function, and the help as its docstring; also `RENAMED` (of `Command`) and `COMMAND`, its class, where it needs them.
    """
    from controller.cli import command
    from controller.cli.declared import with_options

    function = name.replace("-", "_")
    module = import_module(f"controller.cli.{function}")

    class Named(getattr(module, "COMMAND", command.Command)):  # type: ignore[misc]
        RENAMED = getattr(module, "RENAMED", {})

    app.command(name, help=module.__doc__, cls=Named)(with_options(getattr(module, function)))


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the console scripts `hami-dra` and `kubectl-hami`."""
    given = sys.argv[1:] if arguments is None else arguments
    _open_streams()
    if arguments is not None or COMMANDS[_SERVICES].keys() & set(given[:1]):
        _run(given)
        return
    # saves a tenth of a short command's time: the 100,000 objects of its modules live until it ends
    gc.set_threshold(200_000, 50, 100)
    try:
        _run(given)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _end_at_once(ended.code or 0)
    _end_at_once(0)


def _open_streams() -> None:
    """Replace the streams that the caller closed (`>&-`), which Python has as None, by empty ones."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open until the program ends)


def _run(given: list[str]) -> None:
    try:
        if given[:1] == ["__complete"]:
            from controller.cli.completion import answer

            answer(given[1:])
            return
        app(given, prog_name=program())
    except InputError as error:
        text = "\n".join([escaped(str(message)) for message in error.args])
        typer.echo(f"{program()}: {text}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in {*_UNWRITABLE, errno.EPIPE}:
            raise
        # what is buffered cannot be written either, and Python would try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            sys.exit(1)  # the reader of the output has enough
        typer.echo(f"{program()}: the output cannot be written: {error.strerror}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        advice = needed_extra(error.name or "")
        if not advice:
            raise
        typer.echo(f"{program()}: this command {advice}", err=True)
        sys.exit(2)


def _end_at_once(code: int) -> None:
    """End a short command, and free nothing: freeing every module takes an eighth of its time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader of the output has enough
        code = code or 1
    except OSError:
        return  # Python tries again, and says what is the matter
    os._exit(code)


def _lines() -> Iterator[tuple[str, str]]:
    return (item for commands in COMMANDS.values() for item in commands.items())


def _no_such_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, command_names())
    return f"No such command {name!r}." + (f" Did you mean {', '.join(map(repr, near))}?" if near else "")


if __name__ == "__main__":
    run()
