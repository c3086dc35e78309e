"""Tokenizes text, and unquotes string literals, by CEL's grammar (cel-go's CEL.g4 and unescape.go).

Used by the parser; `quote` also by all code that builds a selector from foreign text.
"""

import re
from typing import Final, NamedTuple

from hami_dra.cel.errors import located

_ESCAPE: Final = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_QUOTED: Final = (
    rf'"""(?:{_ESCAPE}|[^\\])*?"""'
    rf"|'''(?:{_ESCAPE}|[^\\])*?'''"
    r'|[rR]"""[\s\S]*?"""'
    r"|[rR]'''[\s\S]*?'''"
    rf'|"(?:{_ESCAPE}|[^\\"\n\r])*"'
    rf"|'(?:{_ESCAPE}|[^\\'\n\r])*'"
    r'|[rR]"[^"\n\r]*"'
    r"|[rR]'[^'\n\r]*'"
)
_TOKEN: Final = re.compile(
    rf"""
      (?P<space>(?:[\t \r\n\f]+|//[^\n]*)+)
    | (?P<bytes>[bB](?:{_QUOTED.replace(" ", "[ ]")}))
    | (?P<string>{_QUOTED.replace(" ", "[ ]")})
    | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
    | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
    | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<escaped>`[A-Za-z0-9_.\-/\ ]+`)
    | (?P<symbol>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{{}}])
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = {"in", "true", "false", "null"}
_ESCAPES: Final = re.compile(_ESCAPE)
_SIMPLE: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


class Token(NamedTuple):
    kind: str
    """string, bytes, float, uint, int, ident, escaped, end; symbols and keywords stand for themselves."""
    text: str
    at: int


def tokenize(source: str) -> list[Token]:
    """Return all tokens, the last of kind "end". Raises CompileError."""
    tokens: list[Token] = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise located(source, position, f"Syntax error: token recognition error at: {source[position]!r}")
        kind, text = match.lastgroup or "", match.group()
        if kind == "symbol" or text in _KEYWORDS:
            kind = text
        if kind != "space":
            tokens.append(Token(kind, text, position))
        position = match.end()
    tokens.append(Token("end", "<EOF>", len(source)))
    return tokens


def unquote(literal: str) -> str:
    """Return the text of a string token. Raises ValueError for an escape of an invalid character."""
    body, raw = _body(literal)
    return body if raw else _ESCAPES.sub(lambda match: _character(match.group()), body)


def unquote_bytes(literal: str) -> bytes:
    """Return the value of a bytes token (with its b).

    Octal and hex escapes are bytes, other characters their UTF-8.
    """
    body, raw = _body(literal[1:])
    if raw:
        return body.encode()
    value = bytearray()
    position = 0
    for match in _ESCAPES.finditer(body):
        value += body[position : match.start()].encode()
        value += _octets(match.group())
        position = match.end()
    return bytes(value + body[position:].encode())


def quote(text: str) -> str:
    """Return `text` as a CEL string literal: always one token that means exactly `text`.

    Everything but printable ASCII is escaped. Surrogates, which no CEL string can hold, become
    U+FFFD.
    """
    return '"' + "".join(map(_quoted, text)) + '"'


def _quoted(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if 0x20 <= code < 0x7F:
        return character
    if 0xD800 <= code < 0xE000:
        return "\\ufffd"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _body(literal: str) -> tuple[str, bool]:
    """Return the text between the quotes, with normalised line ends, and whether it is raw."""
    raw = literal[0] in "rR"
    if raw:
        literal = literal[1:]
    width = 3 if len(literal) >= 6 and literal[:3] in ('"""', "'''") else 1
    return literal[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _character(escape: str) -> str:
    mark = escape[1]
    if mark in "xXuU":
        code = int(escape[2:], base=16)  # noqa: FURB166 (int() does not know the prefix \\u)
    elif mark in "0123":
        code = int(escape[1:], 8)
    else:
        return _SIMPLE.get(mark, mark)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError("invalid unicode code point")
    return chr(code)


def _octets(escape: str) -> bytes:
    mark = escape[1]
    if mark in "uU":
        raise ValueError("unable to unescape string")
    if mark in "xX":
        return bytes.fromhex(escape[2:])
    if mark in "0123":
        return bytes([int(escape[1:], 8)])
    return _SIMPLE.get(mark, mark).encode()
