"""Strings: contains and similar functions, regular expressions, and cel-go's strings library (version 2)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import re2

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.formatting import format_text
from hami_dra.cel.library.registry import cost_by_name, function, heavy, loops, method, wants_meter

# Go's strings.TrimSpace removes these; Python's strip() would also remove the separators U+001C to
# U+001F.
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_QUOTED: Final = dict(zip('\\"\a\b\f\n\r\t\v', '\\"abfnrtv', strict=True))  # the backslash first

cost_by_name.update(
    dict.fromkeys(["lowerAscii", "upperAscii", "substring", "trim"], meter.scan_first)
    | dict.fromkeys(["replace", "split"], meter.scan_twice)
    | dict.fromkeys(["indexOf", "lastIndexOf"], meter.traverse_first)
    | dict.fromkeys(["find", "findAll"], meter.pattern_in_first)
    | {"join": lambda args: meter.scan(_joined_length(args), 2)}
)
_GROWING: Final = {"replace", "split", "join", "format", "findAll"}
wants_meter.update(_GROWING | {"matches", "find"})
heavy.update(_GROWING | {"strings.quote"})
loops.update({"join", "format"})


def _joined_length(args: Sequence[Any]) -> int:
    if type(args[0]) is not list:
        return 1
    separator = meter.size(args[1]) if len(args) == 2 else 0
    return sum(map(meter.size, args[0])) + separator * max(len(args[0]) - 1, 0)


def count_search(counter: meter.Meter | None, pattern: str, text: str) -> None:
    """Count the steps of a search. RE2 may execute every instruction of the pattern at every character."""
    if counter is not None:
        counter.work(len(text) * compile_pattern(pattern).programsize // 50)


_GO_WORDS: Final = {"missing )": "missing closing )", "missing ]": "missing closing ]"}


class BadPattern(ValueError):
    """Not a regular expression that RE2 accepts."""


@lru_cache(maxsize=32)  # each occupies as much as `max_mem` at most
def compile_pattern(text: str) -> Any:
    """Compile a pattern. Raises BadPattern.

    RE2 is linear in the length of the text, whatever the pattern. Search bytes with it: for a str
    the binding spends more time on character offsets than on the search.
    """
    if "\\C" in text.replace("\\\\", ""):
        raise BadPattern(
            f"error parsing regexp: invalid escape sequence: `\\C` in `{text}`"
        )  # RE2 in C++ knows it, Go does not
    try:
        return re2.compile(text, _options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error.args[0])
        problem, _, part = reason.partition(": ")
        raise BadPattern(f"error parsing regexp: {_GO_WORDS.get(problem, problem)}: `{part or text}`") from None


_WORK_OF_A_MATCH: Final = 20
_options: Final = re2.Options()
_options.log_errors = False
_options.max_mem = 2**20  # bytes; no reasonable pattern needs more


def _pattern(counter: meter.Meter | None, text: str, prefix: str = "") -> Any:
    """Compile a pattern that may be computed, so that compiling it counts as work."""
    try:
        compiled = compile_pattern(text)
    except BadPattern as error:
        raise CelError(f"{prefix}{error}") from None
    if counter is not None:
        counter.work(compiled.programsize * 5)
    return compiled


def _search(counter: meter.Meter | None, text: str, pattern: str, prefix: str = "") -> Any:
    compiled = _pattern(counter, pattern, prefix)
    count_search(counter, pattern, text)
    return compiled.search(text.encode())


@function("matches", "string, string -> bool", cost=meter.pattern_in_first)
@method("matches", "string, string -> bool", cost=meter.pattern_in_first)
def matches(counter: meter.Meter | None, text: str, pattern: str) -> bool:
    return _search(counter, text, pattern) is not None


@method("find", "string, string -> string")
def find(counter: meter.Meter | None, text: str, pattern: str) -> str:
    match = _search(counter, text, pattern, "Illegal regex: ")
    return match.group().decode() if match else ""


@method("findAll", "string, string -> list(string)")
@method("findAll", "string, string, int -> list(string)")
def find_all(counter: meter.Meter, text: str, pattern: str, limit: int = -1) -> list[str]:
    """Return at most `limit` matches, or all if it is negative.

    As in Go, an empty match right behind a match does not count.
    """
    found: list[str] = []
    previous_end = -1
    compiled = _pattern(counter, pattern, "Illegal regex: ")
    count_search(counter, pattern, text)
    # After an empty match the search advances by one byte, or by one character of a str.
    for match in compiled.finditer(text.encode() if text.isascii() else text):
        if 0 <= limit <= len(found):
            break
        counter.work(_WORK_OF_A_MATCH)
        if match.start() != match.end() or match.start() != previous_end:
            part = match.group()
            found.append(part if isinstance(part, str) else part.decode())
        previous_end = match.end()
    return found


method("contains", "string, string -> bool", cost=meter.search)(str.__contains__)
method("startsWith", "string, string -> bool", cost=meter.scan_second)(str.startswith)
method("endsWith", "string, string -> bool", cost=meter.scan_second)(str.endswith)
method("indexOf", "string, string -> int")(lambda _meter, text, part: text.find(part))
method("lastIndexOf", "string, string -> int")(lambda _meter, text, part: text.rfind(part))
method("lowerAscii", "string -> string")(lambda text: text.translate(_LOWER))
method("upperAscii", "string -> string")(lambda text: text.translate(_UPPER))
method("trim", "string -> string")(lambda text: text.strip(_SPACE))


@method("charAt", "string, int -> string")
def char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")
    return text[index : index + 1]


@method("indexOf", "string, string, int -> int")
def index_of_from(_: meter.Meter | None, text: str, part: str, start: int) -> int:
    if start < 0:
        raise CelError(f"index out of range: {start}")
    if not part:
        return min(start, len(text))
    return text.find(part, start)


@method("lastIndexOf", "string, string, int -> int")
def last_index_of_up_to(_: meter.Meter | None, text: str, part: str, last: int) -> int:
    if last < 0:
        raise CelError(f"index out of range: {last}")
    if not part:
        return min(last, len(text))
    if last >= len(text):
        return -1
    return text.rfind(part, 0, last + len(part))


@method("replace", "string, string, string -> string")
@method("replace", "string, string, string, int -> string")
def replace(counter: meter.Meter, text: str, old: str, new: str, limit: int = -1) -> str:
    if limit == 0:
        return text
    count = text.count(old) if limit < 0 else min(limit, text.count(old))
    counter.allocate(len(text) + count * len(new))
    return text.replace(old, new, count)


@method("split", "string, string -> list(string)")
@method("split", "string, string, int -> list(string)")
def split(counter: meter.Meter, text: str, separator: str, limit: int = -1) -> list[str]:
    """Return at most `limit` parts, the last one with the rest; all if it is negative."""
    if limit == 0:
        return []
    counter.allocate(len(text))
    if separator:
        return text.split(separator, max(limit - 1, -1))
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


@method("substring", "string, int -> string")
def substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return text[start:]


@method("substring", "string, int, int -> string")
def substring_range(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise CelError(f"index out of range: {index}")
    return text[start:end]


@method("join", "list(string) -> string")
@method("join", "list(string), string -> string")
def join(counter: meter.Meter, parts: list[Any], separator: str = "") -> str:
    for part in parts:
        if not isinstance(part, str):
            raise CelError(f"join: invalid input: {part}")
    counter.allocate(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


method("format", "string, list(dyn) -> string", cost=meter.scan_first)(format_text)


@function("strings.quote", "string -> string", cost=meter.scan_first)
def quote_(text: str) -> str:
    for character, letter in _QUOTED.items():
        text = text.replace(character, "\\" + letter)
    return f'"{text}"'
