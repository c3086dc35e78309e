"""How a gang is named, and which one a pod states. Pure; imports nothing that decides."""

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple, get_args

from controller.settings.common import OptionalSource
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.printable import printable

Source = Literal["PodGroup", "coscheduling", "labels", "kueue", "leaderworkerset", "volcano"]
"""What names the gang: the table in `gangs.membership`."""
OPTIONAL_SOURCES: Final[frozenset[Source]] = frozenset(get_args(OptionalSource))
"""Sources that count only where an option says so."""
SOURCES: Final[Mapping[str, Source]] = {
    kinds.POD_GROUP.group: "PodGroup",
    kinds.COSCHEDULING_POD_GROUP.group: "coscheduling",
    kinds.VOLCANO_POD_GROUP.group: "volcano",
}
"""API group of a kind of `kinds.POD_GROUPS` → the source of its gangs."""
_OF_LABELS: Final[Mapping[str, Source]] = {
    names.COSCHEDULING_GROUP: "coscheduling",
    names.POD_GROUP_NAME: "labels",
    names.KUEUE_GROUP: "kueue",
    names.LEADER_WORKER_GROUP: "leaderworkerset",
}
"""The labels that state a gang, the one that counts first."""
_OF_ANNOTATIONS: Final[Mapping[str, Source]] = {names.VOLCANO_GROUP: "volcano"}
API_GROUPS: Final = {source: group for group, source in SOURCES.items()}
SIZE_KEYS: Final[Mapping[Source, str]] = {
    "labels": names.POD_GROUP_MIN_AVAILABLE,
    "kueue": names.KUEUE_GROUP_SIZE,
    "leaderworkerset": names.LEADER_WORKER_SIZE,
}
"""Source without an object → the label or annotation by which its pods say how many must run at once."""
MOST_MEMBERS: Final = 2**31 - 1
"""As in the API: minCount is an int32."""
SIZE_FIX: Final = "set it to the number of pods that must run together, 1 or more"


class GangKey(NamedTuple):
    source: Source
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return how messages name the gang, for example `PodGroup team/train`: no two gangs alike."""
        kind = f"PodGroup ({API_GROUPS[self.source]})" if self.source in ("coscheduling", "volcano") else "PodGroup"
        if self.source in API_GROUPS:
            return f"{kind} {self.namespace}/{self.name}"
        kind = "gang" if self.source == "labels" else f"gang ({self.source})"
        return f"{kind} {self.namespace}/{self.name}"


def gang_of(pod: Pod, also: Collection[Source] = frozenset()) -> GangKey | None:
    """Return the gang that the pod states, or None. `also`: optional sources that count."""
    group, labels, annotations = pod.spec.scheduling_group, pod.metadata.labels, pod.metadata.annotations
    if group is not None and group.pod_group_name:
        return GangKey("PodGroup", pod.metadata.namespace, group.pod_group_name)
    for stated, sources in ((labels, _OF_LABELS), (annotations, _OF_ANNOTATIONS)):
        if not sources.keys().isdisjoint(stated):  # hardly any pod states one
            for name, source in sources.items():
                if (value := stated.get(name)) and (source not in OPTIONAL_SOURCES or source in also):
                    return GangKey(source, pod.metadata.namespace, value)
    return None


def stated_size(source: Source, pod: Pod) -> tuple[str, str] | None:
    """Return the key and the text by which the pod says how many members must run at once; None
    where an object says it.
    """
    name = SIZE_KEYS.get(source)
    if name is None:
        return None
    return name, (pod.metadata.labels if source == "labels" else pod.metadata.annotations).get(name, "")


def size_of(text: str) -> int | None:
    """Return the number of pods, or None if it is none.

    >>> [size_of(text) for text in ("4", "0", "-1", "four", "4294967296", "")]
    [4, None, None, None, None, None]
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MOST_MEMBERS)):
        return None
    count = int(text)
    return count if 0 < count <= MOST_MEMBERS else None


def size_problem(name: str, text: str) -> str:
    """Return what is wrong with a stated size, as the predicate of a sentence; empty if nothing is."""
    if size_of(text) is not None:
        return ""
    return f"{f'has {name}: {printable(text)!r}' if text else f'lacks {name}'}; {SIZE_FIX}"
