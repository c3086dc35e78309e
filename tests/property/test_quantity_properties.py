"""Laws that hold for every quantity, whatever its spelling."""

from hypothesis import given
from hypothesis import strategies as st

from hami_dra.api.quantity import Format, Quantity

SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi", "e3", "E-3", "e7"]

texts = st.builds(
    lambda sign, integer, fraction, suffix: f"{sign}{integer}{fraction}{suffix}",
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 2**40),
    st.sampled_from(["", ".", ".5", ".25", ".001", ".123456789"]),
    st.sampled_from(SUFFIXES),
)
quantities = texts.map(Quantity.parse)


@given(quantities)
def test_canonical_text_means_the_same(quantity):
    again = Quantity.parse(quantity.canonical())
    assert again == quantity
    if again.format is quantity.format:
        assert again.canonical() == quantity.canonical()


def test_a_binary_quantity_written_without_suffix_is_read_as_a_decimal_one():
    """So in Kubernetes: its canonical text is not always a fixed point."""
    assert Quantity.parse("4387562.5Ki").canonical() == "4492864000"
    assert Quantity.parse("4492864000").canonical() == "4492864k"


@given(quantities, quantities)
def test_sums_are_exact(first, second):
    assert first.add(second).nanos == first.nanos + second.nanos
    assert first.add(second).sub(second) == first
    assert first.add(second) == second.add(first)


@given(quantities, quantities)
def test_order_is_that_of_the_amounts(first, second):
    assert (first < second) == (first.nanos < second.nanos)
    assert (first <= second) == (not first > second)
    assert (first == second) == (hash(first) == hash(second) and first.nanos == second.nanos)


@given(st.integers(-(2**80), 2**80), st.sampled_from(list(Format)))
def test_integers_keep_their_value(number, format_):
    assert Quantity.from_int(number, format_).value() == number


@given(quantities)
def test_value_is_the_next_whole_number_away_from_zero(quantity):
    assert abs(quantity.value()) * 10**9 - abs(quantity.nanos) in range(10**9)
