"""Arrays that grow, and numbers for values: what columns are made of. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

V = TypeVar("V", bound=Hashable)
_Scalar = TypeVar("_Scalar", bound=np.generic)


def grown(column: npt.NDArray[_Scalar], length: int, fill: int = 0) -> npt.NDArray[_Scalar]:
    """Return `column` grown to at least `length`; new elements are `fill`.

    >>> grown(np.array([4, 5]), 4, -1).tolist()
    [4, 5, -1, -1]
    """
    if len(column) >= length:
        return column
    fresh = np.full(length, fill, dtype=column.dtype)
    fresh[: len(column)] = column
    return fresh


class Interned(Generic[V]):
    """Numbers for values: equal values get one small number, in order of their first use.

    >>> kinds = Interned()
    >>> kinds.number("A100"), kinds.number("L4"), kinds.number("A100"), len(kinds)
    (0, 1, 0, 2)
    >>> kinds.values[1]
    'L4'
    """

    def __init__(self) -> None:
        self._numbers: dict[V, int] = {}
        self.values: list[V] = []
        """By number."""

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: V) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number
