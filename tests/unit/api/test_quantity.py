"""Quantities against answers recorded from k8s.io/apimachinery v0.37.1 (quantity_golden.jsonl: strings, and pairs added,
subtracted and compared by the Go package), and the parts of the contract that Go has no word for."""

import json
import struct
from decimal import Decimal, localcontext
from pathlib import Path

import pytest

from hami_dra.api.quantity import MAX_EXPONENT, Format, InvalidQuantity, Quantity

GOLDEN = [
    json.loads(line) for line in (Path(__file__).parent / "quantity_golden.jsonl").read_text("utf-8").splitlines()
]


def as_go_shows(quantity: Quantity) -> dict[str, object]:
    whole = quantity.as_int64()
    return {
        "str": str(quantity),
        "format": str(quantity.format),
        "int64": None if whole is None else str(whole),
        "float": f"{struct.unpack('>Q', struct.pack('>d', quantity.approximate_float()))[0]:x}",
    }


def assert_same(quantity: Quantity, go: dict[str, object]) -> None:
    assert as_go_shows(quantity) == {key: value for key, value in go.items() if key != "dec"}
    with localcontext() as context:
        context.prec = 1_000
        assert quantity.nanos == Decimal(str(go["dec"])) * 10**9


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: " ".join(case["in"]))
def test_same_as_go(case):
    if "error" in case:
        with pytest.raises(InvalidQuantity):
            [Quantity.parse(text) for text in case["in"]]
        return
    quantities = [Quantity.parse(text) for text in case["in"]]
    for quantity, go in zip(quantities, case["parsed"], strict=True):
        assert_same(quantity, go)
    if len(quantities) == 2:
        first, second = quantities
        assert_same(first.add(second), case["add"])
        assert_same(first.sub(second), case["sub"])
        assert (first > second) - (first < second) == case["cmp"]
        assert (first == second) == (case["cmp"] == 0)


def test_integers_count_whole_units():
    assert Quantity.parse(3) == Quantity.parse("3") == Quantity.from_int(3)
    assert str(Quantity.from_int(16 * 2**30, Format.BINARY_SI)) == "16Gi"
    assert str(Quantity.from_nanos(1_500_000_000)) == "1500m"


def test_numbers_of_a_manifest_mean_what_they_look_like():
    assert Quantity.parse(0.1) == Quantity.parse("100m")
    assert Quantity.parse(1e21) == Quantity.parse("1e21")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InvalidQuantity):
            Quantity.parse(bad)


def test_rounding_is_away_from_zero():
    assert [Quantity.parse(text).value() for text in ("1500m", "1n", "-1500m", "2", "0")] == [2, 1, -2, 2, 0]
    assert Quantity.parse("1500u").milli_value() == 2
    assert Quantity.parse("1.5Gi").value() == 1536 * 2**20


def test_equal_by_amount_and_usable_as_key():
    assert Quantity.parse("1Gi") == Quantity.parse("1024Mi")
    assert len({Quantity.parse("1Gi"), Quantity.parse("1024Mi"), Quantity.parse("1G")}) == 2
    assert Quantity.parse("1Gi") != 2**30


def test_immutable():
    with pytest.raises(AttributeError):
        Quantity.parse("1").nanos = 2  # type: ignore[misc]


@pytest.mark.parametrize("bad", [True, None, b"1", ["1"]])
def test_other_types_are_refused(bad):
    with pytest.raises(InvalidQuantity, match="a string or a number"):
        Quantity.parse(bad)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "number with an optional suffix"),
        ("16GB", "number with an optional suffix"),
        ("200K", "unknown suffix 'K'"),
        ("9" * 5000, "number with an optional suffix"),
        (f"1e{MAX_EXPONENT + 1}", "exponent"),
        ("\uff11", "number with an optional suffix"),  # a digit for Python, not for Kubernetes
        (" 1", "number with an optional suffix"),
        ("1\n", "number with an optional suffix"),
    ],
)
def test_messages_say_what_is_wrong(bad, why):
    with pytest.raises(InvalidQuantity, match=why):
        Quantity.parse(bad)
