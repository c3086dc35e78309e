"""The jobs of `transaction`, and the state of one batch of them.

Created by `preparation`, consumed by `transaction`. Pure.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.prepare.checkpoint import Records
from hami_dra.driver.prepare.container_views import ViewArrangement
from hami_dra.driver.prepare.pods import Pod, claim_names
from hami_dra.driver.prepare.records import Record

Outcome = Record | str
"""The record of a prepared claim, or the reason of a failure; "" for a claim that is unprepared now."""


class Prepare(Struct, frozen=True):
    claims: Mapping[str, ResourceClaim]
    """By the uid in kubelet's call."""
    pods: tuple[Pod, ...] = ()
    """Existing pods that the claims are reserved for."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By uid of a claim that is reserved for a PodGroup whose pods cannot be listed: the group and the reason."""

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(self.claims)


class Unprepare(Struct, frozen=True):
    uids: tuple[str, ...]


Job = Prepare | Unprepare


class Group(Struct):
    """New claims that containers of the same pods use: prepared together or not at all."""

    uids: tuple[str, ...]
    arrangement: ViewArrangement
    why: str = ""
    """The reason of the failure, if not empty."""


class Batch(Struct):
    records: Records
    """Records to be written."""
    groups: list[Group] = field(default_factory=list)

    def outcome(self, uid: str, unsaved: str) -> Outcome:
        """Return the final outcome of a claim. `unsaved`: why its changes could not be written to the checkpoint."""
        failed = next((group.why for group in self.groups if uid in group.uids and group.why), "")
        return failed or unsaved or self.records.get(uid, "")


def parts(jobs: Sequence[Job]) -> list[list[Job]]:
    """Split jobs into batches in which no claim is both prepared and unprepared."""
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
    """Return the uids of the job in groups, those of one pod in one group."""
    uid_of = {claim.key: uid for uid, claim in job.claims.items()}
    group_of: dict[str, tuple[str, ...]] = {uid: (uid,) for uid in job.claims}
    for pod in job.pods:
        keys = (f"{pod.metadata.namespace}/{name}" for name in sorted(claim_names(pod)))
        uids = [uid_of[key] for key in keys if key in uid_of]
        joined = tuple(dict.fromkeys(member for uid in uids for member in group_of[uid]))
        group_of.update(dict.fromkeys(joined, joined))
    return list(dict.fromkeys(group_of.values()))
