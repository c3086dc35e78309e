"""What `transaction` is asked to do, and the state of one batch of it.

Made by `preparation`, used up by `transaction`. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.prepare.checkpoint import Records
from hami_dra.driver.prepare.container_views import ViewArrangement
from hami_dra.driver.prepare.pods import Pod, claim_names
from hami_dra.driver.prepare.records import Record

Outcome = Record | str
"""What is prepared now, or why it failed; "" for what is not prepared any more."""


@dataclass(frozen=True, slots=True)
class Prepare:
    claims: Mapping[str, ResourceClaim]
    """By the uid that kubelet asks for."""
    pods: tuple[Pod, ...] = ()
    """For which they are reserved, as far as they exist."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By uid of a claim that is reserved for a PodGroup whose pods cannot be listed: which group, and why not."""

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(self.claims)


@dataclass(frozen=True, slots=True)
class Unprepare:
    uids: tuple[str, ...]


Job = Prepare | Unprepare


@dataclass(slots=True)
class Group:
    """Fresh claims that containers of the same pods use: prepared together or not at all."""

    uids: tuple[str, ...]
    arrangement: ViewArrangement
    why: str = ""
    """Not empty: it failed."""


@dataclass(slots=True)
class Batch:
    records: Records
    """As they will be written."""
    groups: list[Group] = field(default_factory=list)

    def outcome(self, uid: str, unsaved: str) -> Outcome:
        """When all is done. `unsaved`: why what was done for this claim could not be written down."""
        failed = next((group.why for group in self.groups if uid in group.uids and group.why), "")
        return failed or unsaved or self.records.get(uid, "")


def parts(jobs: Sequence[Job]) -> list[list[Job]]:
    """Batches in which no claim is both prepared and unprepared."""
    found: list[list[Job]] = []
    kinds: dict[str, type[Job]] = {}
    for job in jobs:
        if not found or any(kinds.get(uid, type(job)) is not type(job) for uid in job.uids):
            found.append([])
            kinds = {}
        found[-1].append(job)
        kinds |= dict.fromkeys(job.uids, type(job))
    return found


def together(job: Prepare) -> list[tuple[str, ...]]:
    """The uids of the job, those of one pod in one group."""
    uid_of = {claim.key: uid for uid, claim in job.claims.items()}
    group_of: dict[str, tuple[str, ...]] = {uid: (uid,) for uid in job.claims}
    for pod in job.pods:
        keys = (f"{pod.metadata.namespace}/{name}" for name in sorted(claim_names(pod)))
        uids = [uid_of[key] for key in keys if key in uid_of]
        joined = tuple(dict.fromkeys(member for uid in uids for member in group_of[uid]))
        group_of.update(dict.fromkeys(joined, joined))
    return list(dict.fromkeys(group_of.values()))
