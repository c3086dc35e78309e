"""Laws of the selector language that need no second implementation."""

import string
from contextlib import suppress
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.cel import CompileError, DeviceInput, EvaluationError, compile_selector, quote
from hami_dra.cel.errors import CelError, CostExceeded
from hami_dra.cel.lexer import tokenize, unquote
from hami_dra.cel.meter import Meter
from hami_dra.cel.selector import _as_bool
from tests.support.cel_expressions import DEVICE, Expressions

texts = st.text(st.characters(), max_size=60)  # surrogates included
expressions = st.integers(0, 2**64).map(lambda seed: Expressions(Random(seed), depth=3).selector())


def readable(text):
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if not text.isascii() else text


@given(texts)
def test_quoted_text_is_one_token_that_means_the_text(text):
    literal = quote(text)
    tokens = tokenize(literal)
    assert [token.kind for token in tokens] == ["string", "end"]
    assert unquote(literal) == "".join(
        "\ufffd" if "\ud800" <= character < "\ue000" else character for character in text
    )
    assert literal.isascii()
    assert literal.isprintable()


@given(texts)
def test_quoted_text_cannot_leave_its_place(text):
    selector = compile_selector(f"false && {quote(text)} == {quote(text)}")
    assert selector.evaluate(DEVICE) is False
    named = DeviceInput.of("d.io", {"name": {"string": text}})
    if text == readable(text):
        assert compile_selector(f'device.attributes["d.io"].name == {quote(text)}').evaluate(named)


soup = st.lists(
    st.sampled_from(
        [
            "device", "attributes", ".", "?", "[", "]", "(", ")", "{", "}", ",", ":", "&&", "||", "!", "-", "==", "in", "<",
            "+", "1", "1u", "1.5", '"a"', "b'x'", "true", "null", "x", "has", "all", "map", "cel", "bind", "optional", "of",
            ".none()", "exists", "size", "'", "\\", "//", "\n", "0x", "quantity", ".?", "[?", "google.protobuf.Duration",
        ]
    ),
    max_size=25,
)  # fmt: skip


@given(st.one_of(soup.map("".join), soup.map(" ".join), st.text(max_size=40), st.text(string.printable, max_size=40)))
@settings(max_examples=400)
def test_whatever_is_written_the_outcome_is_a_verdict_or_one_of_two_errors(expression):
    with suppress(CompileError, EvaluationError):
        assert compile_selector(expression).evaluate(DEVICE) in (True, False)


@given(expressions)
@settings(max_examples=300, deadline=None)
def test_random_selectors_give_a_verdict_or_one_of_two_errors(expression):
    with suppress(CompileError, EvaluationError):
        assert compile_selector(expression).evaluate(DEVICE) in (True, False)


@given(expressions)
@settings(max_examples=300, deadline=None)
def test_counting_changes_nothing_but_the_count(expression):
    """Small devices are evaluated without a meter where the expression allows; large ones always with."""
    try:
        selector = compile_selector(expression)
    except CompileError:
        return
    assert outcome(lambda: selector.evaluate(DEVICE)) == outcome(lambda: counted(selector))


def counted(selector):
    value = selector.run_metered(DEVICE, Meter())
    return value if isinstance(value, bool) else _as_bool(value)


def outcome(evaluate):
    try:
        return evaluate()
    except (EvaluationError, CelError, CostExceeded) as error:
        return str(error)


@given(expressions)
@settings(max_examples=200, deadline=None)
def test_devices_that_agree_in_the_references_get_the_same_verdict(expression):
    try:
        selector = compile_selector(expression)
    except CompileError:
        return
    if not selector.references.complete:
        return
    named = selector.references.names
    attributes = {
        domain: {name: value for name, value in values.items() if (domain, name) in named}
        for domain, values in DEVICE.attributes.items()
    }
    capacity = {
        domain: {name: value for name, value in values.items() if (domain, name) in named}
        for domain, values in DEVICE.capacity.items()
    }
    less = DeviceInput(DEVICE.driver, attributes, capacity, allow_multiple_allocations=True)
    assert outcome(lambda: selector.evaluate(less)) == outcome(lambda: selector.evaluate(DEVICE))
