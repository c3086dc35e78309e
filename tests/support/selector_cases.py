"""Random selectors on random devices, judged twice: by `hami_dra.cel` and by Kubernetes' own environment (hack/oracle/cel).

Used by tests/conformance and hack/fuzz.py. A `SelectorCase` is plain JSON, so that a failing one can be kept in a file.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypedDict

from hypothesis import strategies as st

from hami_dra.cel import Features
from tests.support.cel_expressions import RICH, Expressions, as_question, device_input, verdict

Json = dict[str, Any]
Ask = Callable[[Json], Json]
"""Question to hack/oracle/cel → answer."""

LONGEST: Final = 1_500
KNOWN: Final = {
    "cel-go broke": "it panicked, so there is nothing to agree with",
    "Go cannot hash a version": "it looks a semver up in a map, and ends with an internal error; we find that it is not there",
    "Quantity.Sub overflows in Go": (
        "it negates an int64 without regard to overflow, and so adds the smallest one; we subtract it"
    ),
    "cel-go cannot sort by a key that fails": (
        "it ends with an internal error where the key of a sortBy() is an error, even where || or && would absorb that; to us it is "
        "an error like any other"
    ),
}
_LEAST: Final = -(2**63)
_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "string": ("T4", "", "a", "b", "é", "10.1.2.3", "1.0.0"),
    "int": (0, 1, 2, -7, 2**63 - 1, _LEAST),
    "bool": (True, False),
    "version": ("550.54.15", "1.0.0", "2.0.0-rc.1", "1.0.0+b"),
    "strings": (["a"], ["b", "a"], ["x", "x"]),
    "ints": ([1], [3, 1, 2], [0, 0]),
    "bools": ([True], [True, False]),
    "versions": (["1.0.0"], ["2.0.0", "1.0.0"]),
}
_AMOUNTS: Final = ("0", "1", "16Gi", "100", "1500m", "0.5Gi", "1e3", "8Gi", "-1")


class SelectorCase(TypedDict):
    expression: str
    device: Json
    consumableCapacity: bool
    listTypeAttributes: bool
    stored: bool
    """The environment of stored expressions, where gates play no part; else that of new ones."""


class SelectorDisagreement(AssertionError):
    """We and Kubernetes differ in what cannot be explained by `KNOWN`."""


@st.composite
def selector_cases(draw: st.DrawFn) -> SelectorCase:
    random = Random(draw(st.integers(0, 2**32 - 1)))
    depth = draw(st.sampled_from([1, 2, 3, 4]))
    expression = Expressions(random, depth=depth).selector()
    return {
        "expression": expression if len(expression) < LONGEST else "true",
        "device": drawn_device(random) if draw(st.booleans()) else RICH,
        "consumableCapacity": draw(st.booleans()),
        "listTypeAttributes": draw(st.booleans()),
        "stored": draw(st.sampled_from([True, True, True, False])),
    }


def drawn_device(random: Random) -> Json:
    """Like the rich device, but it may lack some of it, have other values, or values of another type."""
    device: Json = {"name": "d", "attributes": {}, "capacity": {}}
    for name, attribute in RICH["attributes"].items():
        if random.randrange(4):
            (kind,) = attribute
            if not random.randrange(10):
                kind = sorted(_VALUES)[random.randrange(len(_VALUES))]
            values = _VALUES[kind]
            device["attributes"][name] = {kind: values[random.randrange(len(values))]}
    for name in RICH["capacity"]:
        if random.randrange(4):
            device["capacity"][name] = {"value": _AMOUNTS[random.randrange(len(_AMOUNTS))]}
    shared = random.randrange(3)
    if shared:
        device["allowMultipleAllocations"] = shared == 1
    return device


def _subtracts_the_least(case: SelectorCase) -> bool:
    in_device = any(attribute.get("int") == _LEAST for attribute in case["device"]["attributes"].values())
    return ".sub(" in case["expression"] and (in_device or str(_LEAST) in case["expression"])


def compare(case: SelectorCase, ask: Ask) -> Counter[str]:
    """The verdict of both, or the name of a known difference. Raises SelectorDisagreement."""
    expression = case["expression"]
    features = Features(
        consumable_capacity=case["consumableCapacity"],
        list_type_attributes=case["listTypeAttributes"],
        stored=case["stored"],
    )
    answer = ask(as_question(expression, features, case["device"]))
    if answer["expect"] == "panic":
        return Counter(["cel-go broke"])
    ours, message, _ = verdict(expression, features, device_input(case["device"]))
    if ours == answer["expect"]:
        return Counter([f"both say {ours}"])
    if "hash of unhashable type" in answer["message"]:
        return Counter(["Go cannot hash a version"])
    if "*types.Err is not traits.Lister" in answer["message"] and ".sortBy(" in expression:
        return Counter(["cel-go cannot sort by a key that fails"])
    if _subtracts_the_least(case):
        return Counter(["Quantity.Sub overflows in Go"])
    raise SelectorDisagreement(
        f"{expression}\n  Kubernetes: {answer['expect']} {answer['message']}\n  ours:       {ours} {message}"
    )
