"""Check what ruff and import-linter cannot: names, sizes, words, and that what is called pure is.

    python hack/conventions.py [--update]

Part of `make lint`. `--update` writes `hack/conventions.json` again: what was too long, the number
of stop words in each package, of imports past each package's face, and the size of the product,
when the checks began. All may fall and never rise: who adds a feature that needs more lines than
it saves runs `--update` and shows the new sum in the same commit.
"""

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hack.size import Size, size_of

ROOT: Final = Path(__file__).resolve().parent.parent
TOPS: Final = ("hami_dra", "controller")
GENERATED: Final = "hami_dra/driver/kubelet/proto"
RATCHET: Final = ROOT / "hack/conventions.json"

MOST_LINES: Final = 600
"""Of a module: what it is about decides where it is cut, up to here."""
MOST_CONCEPTS: Final = 14
"""Public classes and functions of a module: more are more than one subject."""
FEWEST_LINES: Final = 40
"""Of a module that only one other imports: below, it is a part of that one."""
VAGUE: Final = frozenset(["found", "each", "known", "wanted"])
"""As the only local names of a function they leave open what was found."""
MOST_LINES_VAGUE: Final = 8
"""Of a function that has only such names."""
MOST_FUNCTION_LINES: Final = 60
MOST_PACKAGES: Final = 2
"""In which one class name may be used."""

MODULES: Final = frozenset(
    [
        "standing",
        "likeness",
        "outlook",
        "shortcut",
        "promises",
        "demand",
        "kept",
        "taking",
        "parts",
        "typical",
        "views",
        "frames",
        "trial",
        "holdings",
        "spending",
        "room",
        "scope",
        "aftermath",
        "patience",
        "refusals",
        "undo",
        "bodies",
        "narrate",
        "world",
        "foreign",
        "orphans",
        "bypass",
        "leaving",
        "picture",
        "telling",
        "rivals",
        "words",
        "uncut",
        "cores",
        "wish",
        "wishes",
        "wanted",
        "station",
        "turn",
        "offer",
        "harmless",
        "work",
        "making",
        "jobs",
        "verbatim",
        "steering",
        "placer",
        "beside",
        "bridge",
    ]
)
"""Names that say nothing before the module is opened; docs/design/glossary.md has better ones."""

WORDS: Final = (
    "anew", "whoever", "whomever", "of ours", "so many", "as far as", "is told", "are told", "is asked", "are asked",
    "is looked at", "are looked at", "beside", "another's", "mend", "mends", "mended", "in vain",
)  # fmt: skip
DOCUMENTS: Final = ("README.md", "docs/*.md")
MOST_COLUMNS: Final = 100
"""Of prose in documents; tables, code, pictures and single long words may be longer."""
_WORD: Final = re.compile(rf"(?<!-)\b(?:{'|'.join(map(re.escape, WORDS))})\b(?!-)", re.IGNORECASE)
"""Not in flags: `--publish-beside-plugin` is public."""

SHORT_HELPER: Final = 8
"""A private helper of fewer lines that is called once may say less than its code."""
MOST_SHORT_HELPERS: Final = 6.5
"""Per cent of all functions; 7.3 before the controller had packages."""

IMPURE: Final = (
    "aiohttp", "asyncio", "grpc", "kubernetes", "socket", "subprocess", "threading", "time",
    "hami_dra.kube.http", "hami_dra.kube.transport", "hami_dra.kube.reflector", "hami_dra.kube.lease",
    "hami_dra.kube.embedded",
)  # fmt: skip
_PURE: Final = re.compile(r"\bPure\b[.:;,]")
PURE_BUT_FOR: Final = {"hami_dra/driver/kubelet/sockets.py": {"socket"}}
"""Constants and types only."""

CORE: Final = tuple(
    f"controller.{name}"
    for name in (
        "assessment",
        "preemption",
        "gangs",
        "decide",
        "scoring",
        "allocation",
        "inventory",
        "rules",
        "cluster",
        "reasons",
    )
)
"""What decides, without I/O. These packages import each other's modules; from outside, their faces count."""


@cache
def modules() -> tuple[tuple[str, str, ast.Module], ...]:
    """Return path below the root, text and syntax tree of each module that people write."""
    found = []
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(GENERATED):
                text = path.read_text()
                found.append((name, text, ast.parse(text)))
    return tuple(found)


def problems() -> Iterator[str]:
    allowed = json.loads(RATCHET.read_text())
    for name, text, tree in modules():
        if name.rpartition("/")[2].removesuffix(".py") in MODULES:
            yield f"{name}: a name of the stop list"
        yield from _too_long(name, text, tree, allowed)
        yield from (f"{name}: calls itself pure and imports {impure}" for impure in _impure(name, tree))
    yield from _in_many_packages()
    for line in documents():
        yield from _bad_prose(*line)
    yield from _too_many_words(allowed["words"])
    for package, past in imports_past_a_face().items():
        if len(past) > allowed["faces"].get(package, 0):
            yield f"{package} has a face: import from it, not from its modules: {', '.join(past)}"
    yield from _more_than_before(allowed["sums"])
    if (share := short_helpers()) > MOST_SHORT_HELPERS:
        yield f"{share:.1f} % of all functions are short helpers with one caller, at most {MOST_SHORT_HELPERS}: inline some"


def sums() -> dict[str, int]:
    """Return what of the whole product may only fall."""
    lines = size()
    return {"lines": lines.lines, "code": lines.code, "crumbs": len([*crumbs()]), "vague": len(vague_functions())}


def _more_than_before(allowed: Mapping[str, int]) -> Iterator[str]:
    found = {"crumbs": "; ".join(crumbs()), "vague": f"no names but {', '.join(sorted(VAGUE))}: {vague_functions()}"}
    for what, count in sums().items():
        if count > allowed[what]:
            fix = found.get(what, "simplify something, or run --update and say in the commit why it is worth it")
            yield f"{what}: {count}, {allowed[what]} before: {fix}"


def _in_many_packages() -> Iterator[str]:
    packages: dict[str, set[str]] = defaultdict(set)
    for name, _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                packages[node.name].add(name.rpartition("/")[0])
    for name, found in sorted(packages.items()):
        if len(found) > MOST_PACKAGES:
            yield f"class {name} is in {len(found)} packages: {', '.join(sorted(found))}"


def documents() -> Iterator[tuple[str, int, str]]:
    """Yield place, number and text of each line outside code."""
    for path in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        is_code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            is_fence = line.lstrip().startswith("```")
            is_code ^= is_fence
            if not (is_code or is_fence or line.startswith("    ")):
                yield path.relative_to(ROOT).as_posix(), number, line


def _bad_prose(name: str, number: int, line: str) -> Iterator[str]:
    yield from (f"{name}:{number}: {word!r}" for word in _WORD.findall(re.sub(r"`[^`]*`", "", line)))
    if len(line) > MOST_COLUMNS and not line.lstrip().startswith(("|", "![")) and " " in line.strip():
        yield f"{name}:{number}: {len(line)} columns, at most {MOST_COLUMNS}"


def _too_many_words(allowed: Mapping[str, int]) -> Iterator[str]:
    for package, count in words_left().items():
        if count > allowed.get(package, 0):
            yield f"{package}: {count} stop words, {allowed.get(package, 0)} before: {', '.join(WORDS)}"


def sizes(name: str, text: str, tree: ast.Module) -> dict[str, int]:
    """Return what of a module is too long: its own path, and `path::function`, with the number of lines."""
    lines, names = text.count("\n"), concepts(tree)
    found = {name: lines} if lines > MOST_LINES else {f"{name}::*": names} if names > MOST_CONCEPTS else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # of a command only the body counts: its signature is the list of its options
            start = node.body[0].lineno if name.startswith("controller/cli/") else node.lineno
            lines = (node.end_lineno or start) - start + 1
            if lines > MOST_FUNCTION_LINES:
                found[f"{name}::{node.name}"] = lines
    return found


def concepts(tree: ast.Module) -> int:
    """Return how many public classes and functions a module has."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return sum(isinstance(node, kinds) and not node.name.startswith("_") for node in tree.body)


def _too_long(name: str, text: str, tree: ast.Module, allowed: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for what, count in sizes(name, text, tree).items():
        before = allowed["lines"].get(what, 0)
        if count > before and what.endswith("::*"):
            yield f"{name}: {count} public classes and functions, at most {max(MOST_CONCEPTS, before)}"
        elif count > before:
            most = MOST_FUNCTION_LINES if "::" in what else MOST_LINES
            yield f"{what}: {count} lines, at most {max(most, before)}"


def crumbs() -> Iterator[str]:
    """Yield the small modules that only one other imports. What its own package's `__init__` imports is
    part of a face, or one of several that are put together there: it has more readers.
    """
    trees = {name.removesuffix(".py").replace("/", "."): (text, tree) for name, text, tree in modules()}
    importers: dict[str, set[str]] = defaultdict(set)
    for importer, (_, tree) in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for module in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                    importers[module].add(importer)
    for name, (text, _) in trees.items():
        if name.endswith("__init__") or text.count("\n") >= FEWEST_LINES or len(importers[name]) != 1:
            continue
        (importer,) = importers[name]
        if importer != f"{name.rpartition('.')[0]}.__init__":
            yield f"{name} has {text.count(chr(10))} lines and one importer: {importer}"


def vague_functions() -> list[str]:
    """Return the functions whose local names all leave open what they are."""
    found = []
    for name, _, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (node.end_lineno or node.lineno) - node.lineno < MOST_LINES_VAGUE:
                continue
            stored = {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
            if stored and stored <= VAGUE:
                found.append(f"{name}::{node.name}")
    return found


@cache
def size() -> Size:
    """Return the size of the product, as `hack/size.py` prints it."""
    total = Size()
    for _, text, _ in modules():
        total = total.plus(size_of(text))
    return total


def _impure(name: str, tree: ast.Module) -> Iterator[str]:
    if not _PURE.search(ast.get_docstring(tree) or ""):
        return
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)):
                imported = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Import():
                imported = [alias.name for alias in node.names]
            case _:
                continue
        for impure in IMPURE:
            if any(f"{each}.".startswith(f"{impure}.") for each in imported) and impure not in PURE_BUT_FOR.get(
                name, ()
            ):
                yield impure


def imports_past_a_face() -> dict[str, list[str]]:
    """Return package → what is imported of its modules from outside, though it has a face.

    A package's face is what its `__init__` imports. A package inside another one may have its own.
    """
    trees = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree for name, _, tree in modules()}
    faces = {module: offered for module, tree in trees.items() if (offered := _offered(module, tree)) is not None}
    found: dict[str, list[str]] = defaultdict(list)
    for importer, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (package := _package_with_face(str(node.module), faces)):
                inside = CORE if _is_in(package, CORE) else (package,)
                past = [
                    alias.name
                    for alias in node.names
                    if alias.name not in faces[package] and f"{package}.{alias.name}" not in faces
                ]
                if not _is_in(importer, inside) and (node.module != package or past):
                    found[package].append(f"{', '.join(past) or node.module} in {importer}")
    return dict(sorted(found.items()))


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _package_with_face(module: str, faces: Collection[str]) -> str:
    """Return the innermost package with a face that the module is, or is in; empty if there is none."""
    while module and module not in faces:
        module = module.rpartition(".")[0]
    return module


def _offered(name: str, tree: ast.Module) -> set[str] | None:
    """Return what a package imports that shows names of its own modules; None for other modules."""
    imported: set[str] = set()
    has_face = False
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
            has_face |= f"{node.module}.".startswith(f"{name}.")
    return imported if has_face else None


def short_helpers() -> float:
    """Return the short private helpers that are called at one place only, in per cent of all
    functions.

    Methods that a base class calls, commands and entries of tables do not count.
    """
    functions = short = 0
    for _, _, tree in modules():
        used: Counter[str] = Counter()
        called: Counter[str] = Counter()
        for node in ast.walk(tree):
            used[_name_of(node)] += 1
            if isinstance(node, ast.Call):
                called[_name_of(node.func)] += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                is_private = node.name.startswith("_") and not node.name.startswith("__")
                once = used[node.name] == called[node.name] == 1 and not node.decorator_list
                short += is_private and once and lines < SHORT_HELPER
    return 100 * short / functions


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def words_left() -> dict[str, int]:
    """Return the number of stop words in each package that has some."""
    counts: dict[str, int] = defaultdict(int)
    for name, text, _ in modules():
        counts[name.rpartition("/")[0]] += len(_WORD.findall(text))
    return {package: count for package, count in sorted(counts.items()) if count}


def main() -> int:
    if "--update" in sys.argv:
        lines = {what: count for module in modules() for what, count in sizes(*module).items()}
        faces = {package: len(past) for package, past in imports_past_a_face().items()}
        ratchet = {"sums": sums(), "lines": lines, "words": words_left(), "faces": faces}
        RATCHET.write_text(json.dumps(ratchet, indent=2) + "\n")
    found = list(problems())
    fine = f"names, sizes and words: fine; {sums()}, {short_helpers():.1f} % short helpers with one caller"
    print("\n".join(found) or fine)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
