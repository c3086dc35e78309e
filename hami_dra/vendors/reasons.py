"""Reason codes as small integers, so that columns of them can be stored and counted."""

from typing import Final

from hami_dra.api import names

CODES: Final[tuple[str, ...]] = (
    "",
    names.CARD_NOT_HEALTH,
    names.CARD_CORDONED,
    names.CARD_TYPE_MISMATCH,
    names.CARD_APP_CLASS_MISMATCH,
    names.CARD_QOS_MISMATCH,
    names.CARD_UUID_MISMATCH,
    names.MODE_NOT_FIT,
    names.CARD_TIME_SLICING_EXHAUSTED,
    names.EXCLUSIVE_CONFLICT,
    names.RESOURCE_QUOTA_NOT_FIT,
    names.CARD_INSUFFICIENT_MEMORY,
    names.CARD_INSUFFICIENT_CORE,
    names.EXCLUSIVE_CONFLICT,
    names.CARD_COMPUTE_UNITS_EXHAUSTED,
    names.CARD_MIG_INFEASIBLE,
    names.CUSTOM_FILTER_RULE,
    names.NUMA_NOT_FIT,
    names.ALLOCATED_CARDS_INSUFFICIENT,
)
"""Index = number of the code. The order is HAMi's order of checks: the first that fails is the
card's reason. EXCLUSIVE_CONFLICT is there twice: a card in use is refused by the policy `mutex`
before amounts are compared, and by a request for all of its cores after them.
"""

NUMBER: Final[dict[str, int]] = {code: number for number, code in enumerate(CODES)}
"""Number of each code; of EXCLUSIVE_CONFLICT the later one."""
MUTEX_CONFLICT: Final = CODES.index(names.EXCLUSIVE_CONFLICT)
"""The earlier number of EXCLUSIVE_CONFLICT."""
