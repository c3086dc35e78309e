"""Count the lines of the product: all of them, and code, by package.

    python hack/size.py [--depth 2] [--base COMMIT]

Code is what is left without docstrings, comments, blank lines and imports. Files that a program
generates do not count. `--base` shows the same of another commit beside it. hack/conventions.py
holds the sums as a ratchet.
"""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TOPS: Final = ("hami_dra", "controller")
GENERATED: Final = "hami_dra/driver/kubelet/proto"
_NO_CODE: Final = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


class Size(NamedTuple):
    lines: int = 0
    code: int = 0

    def plus(self, other: "Size") -> "Size":
        return Size(self.lines + other.lines, self.code + other.code)


def size_of(text: str) -> Size:
    """Return the lines of a module and those of them that are code.

    A string over three lines is three lines of code, unless it stands alone (a docstring).

    >>> size_of(chr(10).join(["import os", "", "WORDS = [", "    1,  # a comment", "]", ""]))
    Size(lines=5, code=3)
    """
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Size(text.count("\n"), len(code))


def sources(base: str = "") -> Iterator[tuple[str, str]]:
    """Yield path below the root and text of each module that people write, of a commit if one is named."""
    if base:
        names = _git("ls-tree", "-r", "--name-only", base, *TOPS).splitlines()
    else:
        names = sorted(path.relative_to(ROOT).as_posix() for top in TOPS for path in (ROOT / top).rglob("*.py"))
    for name in names:
        if name.endswith(".py") and not name.startswith(GENERATED):
            yield name, _git("show", f"{base}:{name}") if base else (ROOT / name).read_text()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout


def by_package(depth: int, base: str = "") -> dict[str, Size]:
    """Return package, cut at so many names → its size, with all that lies below it."""
    packages: dict[str, Size] = {}
    for name, text in sources(base):
        package = "/".join(name.split("/")[:-1][:depth])
        packages[package] = packages.get(package, Size()).plus(size_of(text))
    return packages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=2, help="how many names of a package to tell apart")
    parser.add_argument("--base", default="", help="a commit to compare with")
    options = parser.parse_args()
    now = by_package(options.depth)
    base = by_package(options.depth, options.base) if options.base else {}
    print(f"{'package':<40} {'lines':>8} {'code':>8}" + (f" {'lines':>8} {'code':>8}  then" if base else ""))
    for package in [*sorted({*now, *base}), "sum"]:
        sizes = [_row(table, package) for table in ([now, base] if base else [now])]
        print(f"{package:<40} " + " ".join(f"{size.lines:>8,} {size.code:>8,}" for size in sizes))


def _row(table: dict[str, Size], package: str) -> Size:
    if package != "sum":
        return table.get(package, Size())
    columns = Counter[str]()
    for size in table.values():
        columns.update(lines=size.lines, code=size.code)
    return Size(columns["lines"], columns["code"])


if __name__ == "__main__":
    main()
