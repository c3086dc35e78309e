"""Random lives of a cluster (`tests.support.lives`): whatever fails, the controller's state is that of a restarted one.

`make soak` plays 2,000 lives, others each time. A life that fails is played again by its seed::

    HAMI_DRA_LIVES=259 .venv/bin/pytest -q tests/property/test_random_lives.py
"""

import os
import random
from typing import Final

import pytest

from tests.support.examples import SOAK, examples
from tests.support.lives import live

LIVES: Final = examples(100)
FIRST: Final = random.randrange(2**32) if SOAK else 0
BLOCKS: Final = 10


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(3600)
def test_the_state_is_that_of_a_restarted_controller_and_nothing_is_left_over(block):
    seeds = [FIRST + number for number in range(LIVES) if number % BLOCKS == block]
    if "HAMI_DRA_LIVES" in os.environ:
        seeds = [int(os.environ["HAMI_DRA_LIVES"])] if block == 0 else []
    for seed in seeds:
        try:
            live(seed, steps=30 if SOAK or "HAMI_DRA_LIVES" in os.environ else 12)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_LIVES={seed}")
            raise
