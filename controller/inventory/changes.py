"""Who changed since when: lets derived columns be mended instead of made anew."""

from typing import Final

import numpy as np

from hami_dra.vendors.protocol import Positions

KEPT: Final = 1 << 16


class ChangeLog:
    """Row numbers in the order they changed. `version` grows by one with each entry."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._forgotten = 0

    @property
    def version(self) -> int:
        return self._forgotten + len(self._rows)

    def add(self, row: int) -> None:
        if len(self._rows) >= KEPT:
            half = KEPT // 2
            del self._rows[:half]
            self._forgotten += half
        self._rows.append(row)

    def since(self, version: int) -> Positions | None:
        """The rows that changed after `version`, each once, or None where that is no longer known: then all did."""
        if version < self._forgotten:
            return None
        return np.unique(np.array(self._rows[version - self._forgotten :], dtype=np.intp))
