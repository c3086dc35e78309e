"""docs/cli.md: every command with its options, as --help prints them. Used by hack/generate.py."""

from typing import Any, Final
from unittest.mock import patch

import typer

from controller.cli.main import COMMANDS, app

PATH: Final = "docs/cli.md"
_WIDTH: Final = 80
_INTRODUCTION: Final = """\
# Commands
<!-- Generated from the commands' --help: change it there and run make generate. -->
`hami-dra` is one program for users, for operators, and for everything that runs in the cluster. On
a machine with kubectl it is also a plugin: `kubectl hami status` is `hami-dra status`.
`hami-dra completion` prints completion scripts; kubectl completes the plugin without one.

Options have the names and meanings that they have in kubectl: `-n`, `-A`, `-l`, `-o`, `-w`,
`--context`. `-o json` and `-o yaml` print everything, in a form that only grows; tables may change.
Pods, claims and quotas are those of the kubeconfig context's namespace unless `-n` or `-A` says
otherwise.

Results go to stdout, notes and progress to stderr. The exit status is 0; 1 if a command found what
it looks for (`doctor` errors, `--fail-unplaced` a pod without a node); or 2 for bad input or a
cluster that cannot be read.
"""


def cli_reference() -> dict[str, str]:
    """Return the page by its path."""
    parts = [_INTRODUCTION]
    with patch("sys.argv", ["hami-dra"]):
        group: Any = typer.main.get_command(app)
        root = group.make_context("hami-dra", [], resilient_parsing=True, terminal_width=_WIDTH)
        parts.append(_block(root.get_help()))
        for title, commands in COMMANDS.items():
            parts.append(f"## {title}\n")
            for name in commands:
                command = group.get_command(root, name)
                context = command.make_context(name, [], parent=root, resilient_parsing=True)
                parts.append(f"### hami-dra {name}\n{_block(context.get_help())}")
    return {PATH: "\n".join(parts)}


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"
