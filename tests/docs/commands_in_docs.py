"""The commands that documents and --help show, and how a test can tell that each would work. Used by tests/docs."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from controller.cli.main import app, loaded

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples/README.md",
]
SHELL_LANGUAGES = ("console", "sh", "shell", "bash")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#\s.*$")
_REDIRECT = re.compile(r"\s*>\s*(\S+)$")


@dataclass(frozen=True)
class Shown:
    """One line as a reader would type it."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"{self.where}: {self.line}"

    @property
    def parts(self) -> list[list[str]]:
        """The commands of a pipeline, as words."""
        words = shlex.split(_REDIRECT.sub("", self.line))
        parts: list[list[str]] = [[]]
        for word in words:
            if word == "|":
                parts.append([])
            else:
                parts[-1].append(word)
        return parts

    @property
    def writes(self) -> str:
        """The file that a redirection makes, or empty."""
        found = _REDIRECT.search(self.line)
        return found[1] if found else ""


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of the fenced blocks of a document."""
    return ((found[1], found[2]) for found in _FENCE.finditer(path.read_text()))


def shown_in(path: Path) -> Iterator[Shown]:
    """`$ ` marks commands in console blocks, where the rest is output; in other shell blocks every line is one."""
    for language, text in blocks(path):
        if language in SHELL_LANGUAGES:
            for line in text.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ") if language == "console" else line
                if command.strip() and (command != line or language != "console") and not command.startswith("#"):
                    yield Shown(str(path.relative_to(ROOT)), _COMMENT.sub("", command).strip())


def shown_in_help(name: str) -> Iterator[Shown]:
    """The examples of a command: indented lines that begin with a program's name."""
    for line in (help_of(name)).splitlines():
        if re.match(r"    (hami-dra|kubectl|make) ", line + " "):
            yield Shown(f"hami-dra {name} --help", _COMMENT.sub("", line).strip())


def help_of(name: str) -> str:
    return str(loaded(name).help or "")


def params_of(name: str) -> list[Any]:
    """The parameters of a command, with those that it adds when it is parsed."""
    group = typer.main.get_command(app)
    root = group.make_context("hami-dra", [name], resilient_parsing=True)
    command = group.get_command(root, name)
    assert command is not None, name
    return list(command.get_params(command.context_class(command, info_name=name, parent=root)))


def options_of(name: str) -> list[tuple[str, ...]]:
    """The names of each option of a command: `("-v", "--verbosity")`, `("--probe", "--no-probe")`."""
    return [
        (*option.opts, *option.secondary_opts)
        for option in params_of(name)
        if option.param_type_name == "option" and "--help" not in option.opts
    ]


def parse(words: list[str]) -> Mapping[str, object]:
    """The parameters of a hami-dra command line, without running it. Raises what typer raises for a wrong one."""
    group = typer.main.get_command(app)
    root = group.make_context("hami-dra", list(words), resilient_parsing=False)
    with root:
        command = group.get_command(root, words[0]) if words[:1] else None
        if command is None:
            raise LookupError(f"no such command: {' '.join(words[:1])}")
        with command.make_context(words[0], list(words[1:]), parent=root) as context:
            return dict(context.params)


NEEDS_CLUSTER = {"controller", "driver", "webhook", "uninstall", "snapshot", "install-library", "version"}
READS_CLUSTER_OR_FILES = {"topology", "status", "explain", "doctor", "whatif", "defrag"}


def needs_cluster(words: list[str]) -> bool:
    """Of a hami-dra command line, without `hami-dra`."""
    name = words[0] if words else ""
    return (
        name in NEEDS_CLUSTER
        or "--publish" in words
        or "--remove" in words
        or (name in READS_CLUSTER_OR_FILES and not {"--machine", "-f", "--filename"} & {*words})
    )
