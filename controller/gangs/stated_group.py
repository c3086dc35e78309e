"""What a gang is to be, as its group and its members state it: minCount, topology keys, and in what
the members disagree. Pure.

Reads no member but the few that a message names, so it costs the same however many there are.
"""

from collections.abc import Hashable, Iterable, Mapping
from itertools import islice
from typing import Final

from controller.cluster.pods.gang_key import (
    API_GROUPS,
    MOST_MEMBERS,
    SIZE_FIX,
    SIZE_KEYS,
    GangKey,
    size_of,
    size_problem,
    stated_size,
)
from controller.gangs.member_index import PRIORITY, MemberIndex, Statement
from controller.gangs.unit import TopologyConstraint
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.podgroups import MinMemberPodGroup, PodGroup
from hami_dra.api.podstate import is_pending, priority

MOST_PREFERRED: Final = 3
"""Topology keys that a gang may prefer; it may require one."""
_NAMED: Final = 3
"""Pods that a message names."""
_SCHEDULER: Final = "spec.schedulerName"
_WAITING_PRIORITY: Final = "priority of waiting members"
_NOT_SERVED: Final[Mapping[str, str]] = {
    "PodGroup": "turn on the feature gate GenericWorkload and its API, or use the labels "
    f"{names.POD_GROUP_NAME} and {names.POD_GROUP_MIN_AVAILABLE}"
}


_TOPOLOGY_ANNOTATIONS: Final = (
    (names.KUEUE_REQUIRED_TOPOLOGY, True),
    (names.KUEUE_PREFERRED_TOPOLOGY, False),
    (names.GANG_TOPOLOGY_KEY, False),
)


def statements_of(key: GangKey, pod: Pod) -> list[Statement]:
    """Return what a live member states of its gang."""
    found: list[Statement] = []
    if (size := stated_size(key.source, pod)) is not None:
        found.append(size)
    annotations = pod.metadata.annotations
    found += [(name, label) for name, _ in _TOPOLOGY_ANNOTATIONS if (label := annotations.get(name))]
    if is_pending(pod):
        found += [(_SCHEDULER, pod.spec.scheduler_name), (_WAITING_PRIORITY, priority(pod))]
    return found


class StatedGroup:
    """What one gang is to be. `pods`: its members by UID."""

    def __init__(self, key: GangKey, group: Object | None, pods: Mapping[str, Pod], index: MemberIndex) -> None:
        self._key = key
        self._group = group
        self._pods = pods
        self._index = index

    @property
    def priority(self) -> int:
        """The highest priority of a live member."""
        return max((value for value in self._index.values(PRIORITY) if isinstance(value, int)), default=0)

    def min_count(self, *, readable: bool) -> tuple[int, str]:
        """Return minCount, or 0 and what is wrong with it. `readable`: whether the group's kind is
        served, and may be read.
        """
        key = self._key
        if key.source in API_GROUPS:
            return self._min_count_of_group(readable=readable)
        name = SIZE_KEYS[key.source]
        texts = [str(text) for text in islice(self._index.values(name), _NAMED + 1)]
        counts = [size_of(text) for text in texts]
        for text, count in zip(texts, counts, strict=True):
            if count is None:
                return 0, f"Pod {self._pod_with(name, text).key} of {key} {size_problem(name, text)}"
        if len({*counts}) > 1 or len(texts) > _NAMED:
            return (
                0,
                f"pods of {key} disagree about {name} ({self._who_says(name, 'says')}); give all of them one value",
            )
        return counts[0] or 0 if counts else 0, ""

    def topology(self) -> tuple[TopologyConstraint, ...]:
        """Return the constraints of the group and its members, each once, required ones first: one
        that is required and `MOST_PREFERRED` that are preferred, or `topology_problem` says why not.
        """
        found = self._constraints()
        required = [each for each in found if each.required]
        return (*required[:1], *[each for each in found if not each.required][:MOST_PREFERRED])

    def problem(self, *, checks_priority: bool) -> str:
        """Return in what the members disagree, or empty. `checks_priority`: whether kube-scheduler
        needs the priority of a PodGroup to be that of its pods.
        """
        return self._topology_problem() or self._disagreement(checks_priority=checks_priority)

    # --- inside -----------------------------------------------------------------------------------

    def _min_count_of_group(self, *, readable: bool) -> tuple[int, str]:
        key, group = self._key, self._group
        if group is None:
            api = API_GROUPS[key.source]
            if not readable:
                fix = _NOT_SERVED.get(key.source, f"install the CRD podgroups.{api}")
                return 0, f"{key} cannot be read: this cluster serves no PodGroup of {api}, or hides it; {fix}"
            return 0, f"{key} does not exist; create it, or take the pods out of the group"
        if isinstance(group, PodGroup):
            policy = group.spec.scheduling_policy.gang
            count, where = policy.min_count if policy is not None else 0, "spec.schedulingPolicy.gang.minCount"
        else:
            assert isinstance(group, MinMemberPodGroup)
            count, where = group.spec.min_member, "spec.minMember"
        if not 0 < count <= MOST_MEMBERS:
            return 0, f"{key} has {where} {count}; {SIZE_FIX}"
        return count, ""

    def _constraints(self) -> list[TopologyConstraint]:
        """Return what is stated, at most one more of either kind than a gang may have."""
        found: dict[tuple[str, bool], TopologyConstraint] = {}
        constraints = self._group.spec.scheduling_constraints if isinstance(self._group, PodGroup) else None
        for at, entry in enumerate(islice(constraints.topology if constraints is not None else (), 2)):
            source = f"{self._key} spec.schedulingConstraints.topology[{at}].key"
            found.setdefault((entry.key, True), TopologyConstraint(entry.key, required=True, source=source))
        for name, required in _TOPOLOGY_ANNOTATIONS:
            for label in map(str, islice(self._index.values(name), MOST_PREFERRED + 1)):
                if (label, required) not in found:
                    source = f"annotation {name} of pod {self._pod_with(name, label).key}"
                    found[label, required] = TopologyConstraint(label, required, source)
        return sorted(found.values(), key=lambda each: not each.required)

    def _topology_problem(self) -> str:
        found = self._constraints()
        required = [each for each in found if each.required]
        preferred = [each for each in found if not each.required]
        if len(required) > 1:
            said = ", ".join(f"{each.source} says {each.key}" for each in required[:2])
            return f"{self._key} requires more than one topology key ({said}); require one key for all its pods"
        if len(preferred) > MOST_PREFERRED:
            said = ", ".join(f"{each.source} says {each.key}" for each in preferred[:_NAMED])
            return (
                f"{self._key} prefers more than {MOST_PREFERRED} topology keys ({said}, and more); give all its pods "
                f"the same ones, at most {MOST_PREFERRED}"
            )
        return ""

    def _disagreement(self, *, checks_priority: bool) -> str:
        """Return in what the members differ although kube-scheduler needs them to agree."""
        key, group = self._key, self._group
        if len(self._index.values(_SCHEDULER)) > 1:
            pods = self._who_says(_SCHEDULER, "")
            return f"pods of {key} have different schedulers ({pods}); set one spec.schedulerName for all"
        if not checks_priority or not isinstance(group, PodGroup) or group.spec.priority is None:
            return ""
        wrong = next((each for each in self._index.values(_WAITING_PRIORITY) if each != group.spec.priority), None)
        if wrong is None:
            return ""
        return (
            f"pod {self._pod_with(_WAITING_PRIORITY, wrong).key} has priority {wrong} and {key} has "
            f"{group.spec.priority}; kube-scheduler never places such a group: use one priorityClassName for both"
        )

    def _who_says(self, what: str, says: str) -> str:
        """Return for the first values a pod that states it: `team/a says 2, team/b says 3, and 4 more`."""
        values = self._index.values(what)
        some = sorted(map(str, islice(values, _NAMED)))
        said = [f"{self._pod_with(what, text).key}{f' {says}' if says else ':'} {text}" for text in some]
        more: Iterable[str] = [f"and {len(values) - _NAMED} more"] if len(values) > _NAMED else ()
        return ", ".join([*said, *more])

    def _pod_with(self, what: str, value: Hashable) -> Pod:
        return self._pods[self._index.one_of(what, value)]
