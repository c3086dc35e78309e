"""Print the completion script of a shell: commands, options and their values, such as pods and nodes.

For kubectl hami nothing needs to be loaded: kubectl's own completion asks the program
kubectl_complete-hami, which is installed with kubectl-hami.

Examples:
    hami-dra completion bash > hami-dra.bash
    hami-dra completion zsh > _hami-dra
    hami-dra completion fish > hami-dra.fish

Load the file of bash in ~/.bashrc (source hami-dra.bash), put that of zsh into a folder of $fpath,
and that of fish into ~/.config/fish/completions.
"""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

ASK: Final = "__complete"
_NO_FILES: Final = ":4"
_FILES: Final = ":0"
_BASH: Final = """\
_hami_dra() {
    local line last=':4'
    COMPREPLY=()
    while IFS='' read -r line; do
        case "$line" in
            :[0-9]) last="$line" ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <(hami-dra __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [ "$last" = ':0' ]; then compopt -o default; fi
}
complete -F _hami_dra hami-dra
"""
_ZSH: Final = """\
#compdef hami-dra
_hami_dra() {
    local line last=':4' value
    local -a found
    while IFS='' read -r line; do
        case "$line" in
            :[0-9]) last="$line" ;;
            *$'\\t'*) value="${line%%$'\\t'*}"; found+=("${value//:/\\\\:}:${line#*$'\\t'}") ;;
            *) found+=("${line//:/\\\\:}") ;;
        esac
    done < <(hami-dra __complete "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)
    if [ "$last" = ':0' ]; then _files; fi
    _describe -t values 'value' found
}
if [ "$funcstack[1]" = "_hami_dra" ]; then _hami_dra "$@"; else compdef _hami_dra hami-dra; fi
"""
_FISH: Final = """\
function __hami_dra_answer
    set -l words (commandline -opc)[2..-1]
    hami-dra __complete $words (commandline -ct) 2>/dev/null
end
function __hami_dra_wants_file
    string match -q ':0' (__hami_dra_answer)[-1]
end
complete -c hami-dra -f -a '(__hami_dra_answer | string match -v -r "^:[0-9]\\$")'
complete -c hami-dra -F -n __hami_dra_wants_file
"""


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


SCRIPTS: Final = {Shell.bash: _BASH, Shell.zsh: _ZSH, Shell.fish: _FISH}


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell.")]) -> None:
    typer.echo(SCRIPTS[shell], nl=False)


def kubectl_complete() -> None:
    """Entry point of `kubectl_complete-hami`."""
    answer(sys.argv[1:])


def answer(words: Sequence[str]) -> None:
    """Print what may stand in place of the last word. Never fails: a shell waits for the answer."""
    try:
        lines = completions(words)
    except Exception:  # noqa: BLE001 (an error would be printed into the command that is being typed)
        lines = [_NO_FILES]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def completions(words: Sequence[str]) -> list[str]:
    """Return what may stand in place of the last word, as lines.

    The scripts call `hami-dra __complete WORDS... INCOMPLETE`, kubectl calls `kubectl_complete-hami
    WORDS... INCOMPLETE`. The answer is that of cobra, which kubectl is built on: a line for each value,
    with a tab and a description if it has one, then `:4` (no files), or `:0` where a file is wanted.
    """
    # private, and all there is: its public face prints in the format of one shell
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete

    from controller.cli.main import app

    # bash makes three words of --by=node
    *before, incomplete = [word for word in words if word != "="] or [""]
    if words and words[-1] == "=":
        before, incomplete = [*before, incomplete], ""
    group = typer.main.get_command(app)
    context: Any = _resolve_context(group, {}, "hami-dra", list(before))
    asked, rest = _resolve_incomplete(context, list(before), incomplete)
    found = asked.shell_complete(context, rest)
    # kubectl and cobra keep what stands before the = of --by=node
    prefix = incomplete.removesuffix(rest) if incomplete.startswith("-") and "=" in incomplete else ""
    lines = [prefix + item.value + (f"\t{_line(item.help)}" if item.help else "") for item in found]
    return [*lines, _FILES if not lines and _wants_file(asked, context) else _NO_FILES]


def _line(text: str) -> str:
    """Return the first sentence, in one line."""
    return " ".join(text.split()).partition(". ")[0]


def _wants_file(asked: Any, context: Any) -> bool:
    if not hasattr(asked, "display_type"):
        return False
    return asked.metavar == "FILE" or "path" in asked.display_type(context).lower()
