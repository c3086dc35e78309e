"""How a gang is named. Pure."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from hami_dra.api import kinds

Source = Literal["PodGroup", "coscheduling", "labels", "kueue", "leaderworkerset", "volcano"]
"""What names the gang (`membership`)."""
SOURCES: Final[Mapping[str, Source]] = {
    kinds.POD_GROUP.group: "PodGroup",
    kinds.COSCHEDULING_POD_GROUP.group: "coscheduling",
    kinds.VOLCANO_POD_GROUP.group: "volcano",
}
"""API group of a kind of `kinds.POD_GROUPS` → the source of its gangs."""
API_GROUPS: Final = {source: group for group, source in SOURCES.items()}


class GangKey(NamedTuple):
    source: Source
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return how messages name the gang, for example `PodGroup team/train`."""
        kind = f"PodGroup ({API_GROUPS[self.source]})" if self.source in ("coscheduling", "volcano") else "PodGroup"
        if self.source in API_GROUPS:
            return f"{kind} {self.namespace}/{self.name}"
        return f"gang {self.namespace}/{self.name}"
