"""Which gang a pod is a member of. Pure."""

from typing import NamedTuple


class GangKey(NamedTuple):
    source: str
    """What names the gang: `PodGroup`, `coscheduling`, `labels`, `kueue`, `leaderworkerset`, `volcano`."""
    namespace: str
    name: str
