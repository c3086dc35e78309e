"""Parses tokens to a syntax tree: precedence climbing over cel-go's grammar (CEL.g4), with its
limits.

Called by selector.compile_selector. Macros are expanded while parsing (macros.py). No names are
resolved here.
"""

from collections.abc import Iterator
from typing import Final

from hami_dra.cel.errors import CompileError, located
from hami_dra.cel.lexer import Token, tokenize, unquote, unquote_bytes
from hami_dra.cel.macros import MacroError, expand
from hami_dra.cel.tree import Call, Constant, Entry, Ident, ListLiteral, MapLiteral, Node, Select
from hami_dra.cel.values import Uint

MAX_LENGTH: Final = 100_000
MAX_DEPTH: Final = 250  # of nested expressions, and of operators, selections and calls applied to each other

_RESERVED: Final = frozenset(
    [
        "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
        "namespace", "return", "var", "void", "while",
    ]
)  # fmt: skip
_RELATIONS: Final = {"<", "<=", ">", ">=", "==", "!=", "in"}
_PRECEDENCE: Final = {
    "||": 1, "&&": 2, **dict.fromkeys(_RELATIONS, 3), "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_AND: Final = 2
_TERNARY: Final = 0.5  # weaker than any operator, but not the top


def parse(source: str) -> Node:
    """Parse an expression. Raises CompileError."""
    if len(source) > MAX_LENGTH:
        raise CompileError(
            f"compilation failed: ERROR: <input>:-1:0: expression code point size exceeds limit: "
            f"size: {len(source)}, limit {MAX_LENGTH}"
        )
    parser = _Parser(source)
    tree = parser.expression()
    parser.expect("end")
    return tree


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = tokenize(source)
        self._next = 0
        self._nesting = 0

    def expression(self, weakest: float = 0) -> Node:
        """Parse operators that bind stronger than `weakest`, all of them left-associative.

        At the top (`weakest` 0) also `a ? b : c`, whose middle part is no unparenthesised ternary.
        Few calls lie between one level of nesting and the next, so that MAX_DEPTH is reached before
        Python's own recursion limit.
        """
        self._nesting += weakest == 0
        if self._nesting > MAX_DEPTH:
            raise _too_deep(f"expression recursion limit exceeded: {MAX_DEPTH}")
        left = self._operand()
        while True:
            token = self._tokens[self._next]
            precedence = _PRECEDENCE.get(token.kind, 0)
            if precedence <= weakest:
                break
            self._next += 1
            right = self.expression(precedence)
            function = "@in" if token.kind == "in" else f"_{token.kind}_"
            if precedence > _AND:
                left = self._call(token, function, [left, right])
            elif isinstance(left, Call) and left.function == function:
                left.args.append(right)
                left.depth = max(left.depth, right.depth)
            else:
                left = self._call(token, function, [left, right], counts=False)
        if weakest == 0 and self._accept("?"):
            yes = self.expression(_TERNARY)
            self.expect(":")
            left = self._call(token, "_?_:_", [left, yes, self.expression()])
        self._nesting -= weakest == 0
        return left

    def expect(self, kind: str) -> Token:
        token = self._tokens[self._next]
        if token.kind != kind:
            raise self._unexpected(token, f"expecting {kind!r}")
        self._next += 1
        return token

    def _operand(self) -> Node:
        """Parse a value with its signs and suffixes: `.name`, `.method()`, `[index]`.

        A minus before a number belongs to the number; an even number of signs vanishes, as in
        cel-go.
        """
        sign = self._tokens[self._next]
        count = 0
        while sign.kind in {"!", "-"} and self._tokens[self._next].kind == sign.kind:
            self._next += 1
            count += 1
        token = self._tokens[self._next]
        if token.kind == "-" and sign.kind == "!" and self._tokens[self._next + 1].kind in {"int", "float"}:
            self._next += 1
            node = self._number(token.at)
        elif sign.kind == "-" and count == 1 and token.kind in {"int", "float"}:
            node, count = self._number(sign.at), 0
        elif token.kind == "(":
            self._next += 1
            node = self.expression()
            self.expect(")")
        else:
            node = self._primary(token)
        while True:
            token = self._tokens[self._next]
            if token.kind == ".":
                self._next += 1
                node = self._selection(token, node)
            elif token.kind == "[":
                self._next += 1
                function = "_[?_]" if self._accept("?") else "_[_]"
                index = self.expression()
                self.expect("]")
                node = self._call(token, function, [node, index])
            else:
                break
        return node if count % 2 == 0 else self._call(sign, sign.kind + "_", [node], counts=False)

    def _selection(self, dot: Token, operand: Node) -> Node:
        if self._accept("?"):
            name = self._field_name()
            return self._call(dot, "_?._", [operand, Constant(self._tokens[self._next - 1].at, name)])
        if self._tokens[self._next].kind == "ident" and self._tokens[self._next + 1].kind == "(":
            name = self._tokens[self._next].text
            self._next += 1
            paren = self.expect("(")
            return self._macro_or_call(paren, name, operand, self._arguments())
        return self._nested(Select(dot.at, operand, self._field_name()), [operand])

    def _field_name(self) -> str:
        token = self._tokens[self._next]
        if token.kind not in {"ident", "escaped"}:
            raise self._unexpected(token, "expecting IDENTIFIER")
        self._next += 1
        return token.text.strip("`")

    def _primary(self, token: Token) -> Node:
        match token.kind:
            case "[":
                return self._list(token)
            case "{":
                return self._map(token)
            case "ident" | ".":
                return self._name()
        return self._literal()

    def _name(self) -> Node:
        start = self._tokens[self._next]
        dot = self._accept(".")
        token = self.expect("ident")
        if token.text in _RESERVED:
            raise located(self._source, token.at, f"reserved identifier: {token.text}")
        name = "." + token.text if dot else token.text
        paren = self._tokens[self._next]
        if paren.kind == "(":
            self._next += 1
            return self._macro_or_call(paren, name, None, self._arguments())
        self._refuse_message(start)
        return Ident(token.at, name)

    def _refuse_message(self, start: Token) -> None:
        # `a.b.Message{...}`: no message type is useful in a selector
        index = self._next
        while self._tokens[index].kind == "." and self._tokens[index + 1].kind == "ident":
            index += 2
        if self._tokens[index].kind == "{":
            raise located(self._source, start.at, "message construction is not supported in a device selector")

    def _literal(self) -> Node:
        token = self._tokens[self._next]
        if token.kind in {"int", "float"}:
            return self._number(None)
        self._next += 1
        try:
            match token.kind:
                case "string":
                    return Constant(token.at, unquote(token.text))
                case "bytes":
                    return Constant(token.at, unquote_bytes(token.text))
                case "true" | "false":
                    return Constant(token.at, token.kind == "true")
                case "null":
                    return Constant(token.at, None)
                case "uint":
                    return Constant(token.at, _unsigned(token.text[:-1]))
        except ValueError as error:
            raise located(self._source, token.at, str(error)) from None
        raise self._unexpected(token, "expecting an expression")

    def _number(self, negative_at: int | None) -> Node:
        token = self._tokens[self._next]
        self._next += 1
        at = token.at if negative_at is None else negative_at
        sign = 1 if negative_at is None else -1
        if token.kind == "float":
            value = float(token.text)
            if value == float("inf"):
                raise located(self._source, at, "invalid double literal")
            return Constant(at, sign * value)
        number = sign * _integer(token.text)
        if not -(2**63) <= number < 2**63:
            raise located(self._source, at, "invalid int literal")
        return Constant(at, number)

    def _each(self, close: str) -> Iterator[bool]:
        """Yield before each element of a list or map whether it is optional; end behind `close`."""
        self._next += 1
        while self._tokens[self._next].kind not in {close, ","}:
            yield self._accept("?")
            if not (self._tokens[self._next].kind == "," and self._tokens[self._next + 1].kind not in {close, ","}):
                break
            self._next += 1
        self._accept(",")
        self.expect(close)

    def _list(self, bracket: Token) -> Node:
        elements: list[Node] = []
        optional: set[int] = set()
        for is_optional in self._each("]"):
            if is_optional:
                optional.add(len(elements))
            elements.append(self.expression())
        return self._nested(ListLiteral(bracket.at, elements, frozenset(optional)), elements, counts=False)

    def _map(self, brace: Token) -> Node:
        entries: list[Entry] = []
        for optional in self._each("}"):
            key = self.expression()
            self.expect(":")
            entries.append(Entry(key, self.expression(), optional))
        children = [child for entry in entries for child in (entry.key, entry.value)]
        return self._nested(MapLiteral(brace.at, entries), children, counts=False)

    def _arguments(self) -> list[Node]:
        arguments: list[Node] = []
        if not self._accept(")"):
            arguments.append(self.expression())
            while self._accept(","):
                arguments.append(self.expression())
            self.expect(")")
        return arguments

    def _macro_or_call(self, paren: Token, name: str, target: Node | None, args: list[Node]) -> Node:
        try:
            expanded = expand(paren.at, name, target, args)
        except MacroError as error:
            raise located(self._source, error.at, str(error)) from None
        node = Call(paren.at, name, target, args) if expanded is None else expanded
        return self._nested(node, [*([target] if target else []), *args], counts=target is not None)

    def _call(self, token: Token, function: str, args: list[Node], *, counts: bool = True) -> Node:
        return self._nested(Call(token.at, function, None, args), args, counts=counts)

    def _nested(self, node: Node, children: list[Node], *, counts: bool = True) -> Node:
        """Record the depth of `node`. cel-go counts ternaries, relations, sums, products and members."""
        node.depth = counts + max((child.depth for child in children), default=0)
        if node.depth > MAX_DEPTH:
            raise _too_deep("max recursion depth exceeded")
        return node

    def _accept(self, kind: str) -> bool:
        if self._tokens[self._next].kind != kind:
            return False
        self._next += 1
        return True

    def _unexpected(self, token: Token, wanted: str) -> CompileError:
        return located(self._source, token.at, f"Syntax error: mismatched input {token.text!r} {wanted}")


def _integer(text: str) -> int:
    """Return the value of decimal or hexadecimal digits; an excess of digits counts as too large."""
    digits = text.removeprefix("0x").lstrip("0") or "0"
    return int(digits, 16 if text.startswith("0x") else 10) if len(digits) <= 20 else 2**64


def _unsigned(text: str) -> Uint:
    number = _integer(text)
    if number >= 2**64:
        raise ValueError("invalid uint literal")
    return Uint(number)


def _too_deep(message: str) -> CompileError:
    return CompileError(f"compilation failed: ERROR: <input>:-1:0: {message}")
