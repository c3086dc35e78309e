"""The weights of the node policy `fair-share`, and their notation.

One annotation, `hami.io/packing-weights`, or the option `--packing-weights`:
`theta=0.65,left=0.5,rare=0,large=0`, any of them in any order, defaults for the others. Pure.
"""

import math

from msgspec import Struct
from msgspec.structs import replace

_LARGEST = 1000.0


class InvalidWeights(ValueError):
    """The annotation or option is not understood; the message says how to write it."""


class Packing(Struct, frozen=True):
    """Defaults and formula: docs/packing.md."""

    theta: float = 0.65
    """A free card counts only while this fraction of its fair share of the node's CPU and memory is left."""
    left: float = 0.5
    """Cost of eight free cards of a node, in cards (`g`): the larger, the sooner nearly full nodes are filled up."""
    rare: float = 0.0
    """Cost of taking a card of the rarest type, in cards, if the commonest type would do."""
    large: float = 0.0
    """Cost of taking an endlessly large card, in cards, if the smallest that would do has next to no memory."""

    @property
    def minds_scarcity(self) -> bool:
        return self.rare > 0 or self.large > 0


def parse_packing(value: str, default: Packing) -> Packing:
    """Parse the weights: `theta` above 0 up to 1, the others from 0 to 1000. Raises InvalidWeights.

    >>> parse_packing("left=1", Packing()) == Packing(left=1.0)
    True
    """
    found: dict[str, float] = {}
    for part in value.split(","):
        name, equals, text = (each.strip() for each in part.partition("="))
        if not equals or name not in {"theta", "left", "rare", "large"} or name in found:
            raise InvalidWeights(
                f"{value!r} is not like theta=0.65,left=0.5,rare=0,large=0: name some of them, each at most once"
            )
        found[name] = _number(name, text)
    if found.get("theta", 1.0) > 1.0 or found.get("theta", 1.0) <= 0.0:
        raise InvalidWeights(f"{value!r}: theta must be above 0 and at most 1")
    return replace(default, **found)


def _number(name: str, text: str) -> float:
    try:
        number = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= _LARGEST:
        raise InvalidWeights(f"{name}={text!r} must be a number from 0 to {_LARGEST:.0f}")
    return number
