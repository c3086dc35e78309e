"""What one attempt at a decision may cost, so that none takes long: the next one may take twice as much.

Made by the scheduling cycle for a pod or a gang, charged by the searches of `decide`. A search that
found nothing on a node is remembered until the node changes, so each attempt goes on where the one
before ended:

    5,000 steps   nodes a and b have nothing, c is not finished     AttemptSpent
    10,000 steps  c has nothing either, d has                       placed

Without an attempt (simulations, benchmarks) only the limits of a decision hold.
"""

from typing import Final

from msgspec import Struct

from controller.inventory.selector_budget import SliceSpent

FIRST_ATTEMPT: Final = 5_000
"""Steps, some 30 milliseconds."""


class AttemptSpent(SliceSpent):
    """The steps of this attempt are spent: decide again, when it is the pod's turn again."""


class Attempt(Struct):
    most: int
    """Steps of all searches together."""
    is_last: bool
    """It is as long as an attempt may be: what it cannot find is given up, or the best so far counts."""
    spent: int = 0

    @property
    def left(self) -> int:
        return self.most - self.spent
