"""Reads manifests as users keep them: YAML streams, JSON, `kind: List`, whole folders.

Called by `convert`, `simulate` and callers that apply manifests/ and deviceclasses/. In: paths.
Out: the objects with their sources. Nothing is validated beyond "this is an object". Values stay
what the API server would read: dates and 12:30 are strings, not times; a duplicate key is an error.
Whatever a file contains, only BadDocument is raised: JSON is sanitized like an API server's
answers, and nesting is measured before anything recurses (libyaml's composer would overflow the C
stack).
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from hami_dra.api.errors import InputError
from hami_dra.api.sanitize import MOST_LEVELS, is_deeper, sanitized

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # PyYAML without libyaml: slower, same results
    from yaml import SafeLoader as _Base  # type: ignore[assignment] # has the methods used here

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Suffixes of files read in a folder; a file that is named explicitly may have any name."""


_TOO_DEEP: Final = f"objects are nested more than {MOST_LEVELS} levels deep"
_INDENTATION: Final = re.compile(r"^[-?: \t]+", re.MULTILINE)


class BadDocument(InputError):
    """A file cannot be read; the message names the file, the document and the line."""


class Document(Struct, frozen=True):
    source: Path
    index: int
    """Position in its file, from 1; items of a List are counted as documents."""
    raw: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.source}, document {self.index}"


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """Return all objects of files and folders (recursive, in name order). Raises BadDocument."""
    return [document for path in paths for file in _files(path) for document in _read(file)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in SUFFIXES)
    if not path.exists():
        raise BadDocument(f"{path}: no such file or folder")
    return [path]


def _read(file: Path) -> Iterator[Document]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDocument(f"{file}: cannot be read: {error}") from error
    index = 0
    for line, value in _parse(file, text):
        for raw in _objects(file, line, value):
            index += 1
            yield Document(file, index, raw)


def _parse(file: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each value with the line on which it starts."""
    if file.suffix == ".json":
        yield 1, _parse_json(file, text)
        return
    document = 0
    try:
        for loader in _documents(file, text):
            document += 1
            node = loader.get_node()
            if node is not None:  # an empty document
                yield node.start_mark.line + 1, _Unshared(file, len(text)).of(loader.construct_document(node))
    except RecursionError:
        raise BadDocument(
            f"{file}, document {document}: an anchor contains itself, or objects are nested too deeply"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise BadDocument(f"{file}, document {document or 1}{line}: not YAML: {error.problem}") from error
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: a number with more digits than Python reads, a lone surrogate
        raise BadDocument(f"{file}, document {document or 1}: not YAML: {error}") from error


def _parse_json(file: Path, text: str) -> Any:
    """Parse a JSON file. Raises BadDocument."""
    encoded = text.encode()
    if is_deeper(encoded, MOST_LEVELS):
        raise BadDocument(f"{file}, document 1: {_TOO_DEEP}")
    try:
        return json.loads(sanitized(encoded, numbers=True), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BadDocument(f"{file}, line {error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{file}, document 1: not JSON: {error}") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _documents(file: Path, text: str) -> Iterator["_Loader"]:
    """Yield the loader once for each document. Raises BadDocument if one is nested too deeply."""
    if _may_be_deep(text):
        _require_shallow(file, text)
    loader = _Loader(text)
    try:
        while loader.check_node():
            yield loader
    finally:
        loader.dispose()


def _may_be_deep(text: str) -> bool:
    """Return whether the text may be nested too deeply.

    Each level needs a bracket, or more indentation than the level above it.
    """
    indented = max((len(found[0]) for found in _INDENTATION.finditer(text)), default=0)
    return text.count("[") + text.count("{") + indented > MOST_LEVELS


def _require_shallow(file: Path, text: str) -> None:
    """Raise BadDocument if a document is nested too deeply, by parser events, without recursion."""
    depth = document = 0
    for event in yaml.parse(text, Loader=_Loader):
        document += isinstance(event, yaml.DocumentStartEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_LEVELS:
            line = f", line {event.start_mark.line + 1}" if event.start_mark else ""
            raise BadDocument(f"{file}, document {document}{line}: {_TOO_DEEP}")


class _Unshared:
    """Copies the target of each alias, so that changing one occurrence does not change the others.

    A document that would grow to many more values than it has characters is refused: only aliases
    of aliases cause that.
    """

    def __init__(self, file: Path, characters: int) -> None:
        self._file = file
        self._left = 100_000 + 10 * characters

    def of(self, value: Any) -> Any:
        """Return a copy of the value. Raises BadDocument."""
        self._left -= 1
        if self._left < 0:
            raise BadDocument(f"{self._file}: its anchors and aliases expand to too much; write the values out")
        if isinstance(value, dict):
            return {key: self.of(entry) for key, entry in value.items()}
        return [self.of(entry) for entry in value] if isinstance(value, list) else value


def _objects(file: Path, line: int, value: Any) -> Iterator[dict[str, Any]]:
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadDocument(f"{file}, line {line}: a {type(value).__name__}, not an object with apiVersion and kind")
    kind = value.get("kind")
    items = value.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for item in items:
            if not isinstance(item, dict):
                raise BadDocument(
                    f"{file}, line {line}: an item of the {kind} is a {type(item).__name__}, not an object"
                )
            # items of a PodList carry neither kind nor apiVersion
            inherited = {"apiVersion": value.get("apiVersion", ""), "kind": kind.removesuffix("List")}
            yield from _objects(file, line, {**inherited, **item} if kind != "List" else item)
    else:
        yield value


class _Loader(_Base):
    """YAML as the API server reads it (sigs.k8s.io/yaml).

    No dates, no base-60 numbers, keys are text, duplicate keys are errors.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise _bad_key(key_node, f"the key {key_node.value!r} is given twice")
                seen.add(key_node.value)
        self.flatten_mapping(node)
        return {self._key(key_node): self.construct_object(value_node, deep) for key_node, value_node in node.value}

    def _key(self, node: yaml.Node) -> str:
        key = self.construct_object(node, deep=True)
        if isinstance(key, str):
            return key
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, int | float):
            return str(key)
        raise _bad_key(node, "a key is not text; put it in quotes")


def _bad_key(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_PATTERNS: Final = {
    "bool": None,
    "null": None,
    "merge": None,
    "int": re.compile(r"^[-+]?(?:0b[0-1_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    "float": re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
"""Types of a plain scalar other than string; None keeps PyYAML's own pattern."""
_PREFIX: Final = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _PATTERNS[tag.removeprefix(_PREFIX)] or pattern)
        for tag, pattern in resolvers
        if tag.removeprefix(_PREFIX) in _PATTERNS
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
