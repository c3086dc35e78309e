"""What a score plugin is, and kube-scheduler's default normalisation."""

from collections.abc import Callable
from typing import Final

import numpy as np

from hami_dra.api.arrays import Ints, Positions

MOST: Final = 100
"""fwk.MaxNodeScore"""


PluginScore = Callable[[Positions], Ints]
"""One plugin's score of nodes for one pod: 0 to `MOST` for each of these rows, the nodes that the
pod fits, not empty. What a node gets depends on all of them.
"""


def default_normalized(raw: Ints, *, reverse: bool = False) -> Ints:
    """Return counts in proportion to the largest (helper.DefaultNormalizeScore); `reverse`: low
    ones are good.

    >>> import numpy as np
    >>> default_normalized(np.array([0, 1, 3])).tolist()
    [0, 33, 100]
    >>> default_normalized(np.array([0, 1, 3]), reverse=True).tolist()
    [100, 67, 0]
    >>> default_normalized(np.array([0, 0]), reverse=True).tolist()
    [100, 100]
    """
    most = int(raw.max())
    scores = raw if most == 0 else quotients(MOST * raw, most)
    return MOST - scores if reverse else scores


def quotients(numerators: Ints, denominator: int) -> Ints:
    """Return whole quotients; numerators are not negative, and below 2^40. Floats are exact there,
    and four times as fast as numpy's integer division.
    """
    found: Ints = (numerators / denominator).astype(np.int64)
    return found
