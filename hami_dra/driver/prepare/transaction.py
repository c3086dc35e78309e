"""Prepare and unprepare claims, many at a time: the work behind kubelet's calls, without the waiting.

Called by `preparation`, one batch at a time, in a thread. In: jobs (claims and pods from the API
server; uids to unprepare). Out: one outcome per claim: the answer to kubelet, or the sentence with
the reason of the failure. Blocks; raises no error about a single claim.

The order of one batch, under a lock that keeps out another instance of the driver:

1. Read the checkpoint (from memory, unless another process wrote it).
2. Take back the claims to unprepare.
3. Check each claim to prepare. One that is prepared is answered as before, after its missing
   artifacts (a removed file, all of them after a reboot) are created again. Others are read and
   checked for free capacity.
4. If partitions will be created, or cards put out of MIG mode: write the checkpoint with these
   claims as `preparing`, so that a start after a crash can find them.
5. Create partitions, CDI files, folders. Failed claims are taken back.
6. Write the checkpoint. Only then are calls answered. If it cannot be written, the new artifacts
   are taken back.

If the driver is killed at any point, `start` of the next instance or the next call for the claim
leaves nothing behind.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.prepare.artifacts import ArtifactWriter
from hami_dra.driver.prepare.batching import Batch, Group, Job, Outcome, Prepare, Unprepare, parts, together
from hami_dra.driver.prepare.checkpoint import Checkpoint, Records
from hami_dra.driver.prepare.claim import check_identity, fingerprint, read_claim
from hami_dra.driver.prepare.container_views import arrange
from hami_dra.driver.prepare.errors import NotWritten, PrepareError
from hami_dra.driver.prepare.inventory import Inventory
from hami_dra.driver.prepare.overcommit import ClaimHolding, check_overcommit
from hami_dra.driver.prepare.pods import Pod, claim_names
from hami_dra.driver.prepare.records import Record

log = logging.getLogger(__name__)

UNEXPECTED: Final = "the driver failed because of a bug; its log has details"


@dataclass(eq=False)
class PrepareTransactions:
    """Process batches. `inventory`: the devices published now, None if not known. `lock`: held for each batch."""

    inventory: Callable[[], Inventory | None]
    maker: ArtifactWriter
    checkpoint: Checkpoint
    lock: AbstractContextManager[None]
    written: Mapping[str, Record] = field(default_factory=lambda: MappingProxyType({}))
    """Records of claims that are prepared or about to be, by uid, as last written; replaced, never
    changed: safe to read from any thread.
    """
    is_known: bool = False
    """Whether `written` equals the checkpoint; False while it cannot be read or written."""
    _followed: Inventory | None = None

    # --- start ---

    def start(self) -> list[str]:
        """Finish or take back the unfinished work of an earlier instance.

        Returns failures, in sentences; the next call for the claim tries again. Raises Unreadable,
        NotWritten if not even the list of claims can be read.
        """
        problems: list[str] = []
        with self.lock:
            records = self.checkpoint.load()
            self._try(problems, self.checkpoint.tidy)
            self._try(problems, partial(self._take_leftovers, problems, records))
            for record in list(records.values()):
                if record.state == "preparing" and self._try(problems, partial(self.maker.take_back, record, records)):
                    del records[record.uid]
            self._try(problems, partial(self.maker.recut_unheld, records))
            inventory = self.inventory()
            if inventory is not None:
                for uid in [uid for uid, record in records.items() if record.state == "prepared"]:
                    self._try(problems, partial(self._repair, records, uid, inventory))
            self._save(records)
        return problems

    def _save(self, records: Records) -> None:
        self.checkpoint.save(records)
        self.written = MappingProxyType(dict(records))
        self.is_known = True

    def _take_leftovers(self, problems: list[str], records: Records) -> None:
        for record in self.maker.leftovers(records):
            self._try(problems, partial(self.maker.take_back, record, records))

    @staticmethod
    def _try(problems: list[str], step: Callable[[], object]) -> bool:
        try:
            step()
        except PrepareError as error:
            problems.append(str(error))
            return False
        return True

    # --- one batch ---

    def run(self, jobs: Sequence[Job]) -> list[dict[str, Outcome]]:
        """Run jobs. Returns one map for each, by claim uid."""
        try:
            with self.lock:
                outcomes: list[dict[str, Outcome]] = []
                for part in parts(jobs):
                    outcomes += self._run(part)
                return outcomes
        except NotWritten as error:  # the lock cannot be acquired
            return [dict.fromkeys(job.uids, str(error)) for job in jobs]

    def _run(self, jobs: Sequence[Job]) -> list[dict[str, Outcome]]:
        try:
            before = self.checkpoint.load()
        except PrepareError as error:
            self.is_known = False
            return [dict.fromkeys(job.uids, str(error)) for job in jobs]
        batch = Batch(dict(before))
        inventory = self.inventory()
        if inventory is not None:
            self._follow(batch.records, inventory)
        opened = [self._begin(job, batch, inventory) for job in jobs]
        if inventory is not None:
            self._make(batch, inventory)
        unsaved = ""
        try:
            self._save(batch.records)
        except PrepareError as error:
            unsaved = str(error)
            for group in batch.groups:
                if not group.why:
                    self._fail(batch.records, group, unsaved)
        return [
            {
                uid: found or batch.outcome(uid, unsaved if before.get(uid) != batch.records.get(uid) else "")
                for uid, found in open_.items()
            }
            for open_ in opened
        ]

    def _begin(self, job: Job, batch: Batch, inventory: Inventory | None) -> dict[str, str]:
        """Begin a job. Returns errors by uid; "" for claims without an error so far."""
        if isinstance(job, Unprepare):
            found = {uid: self._unprepared(batch.records, uid) for uid in job.uids}
            if inventory is not None:
                self._narrow(batch.records, frozenset(uid for uid, why in found.items() if not why), inventory)
            return found
        if inventory is None:
            return dict.fromkeys(job.uids, "the driver has not found its devices yet: kubelet will ask again")
        try:
            return self._look_at(job, batch, inventory)
        except Exception:  # a bug over one claim must not stop those of other pods
            log.exception("claims %s", ", ".join(claim.key for claim in job.claims.values()))
            return dict.fromkeys(job.uids, UNEXPECTED)

    def _unprepared(self, records: Records, uid: str) -> str:
        record = records.get(uid)
        if record is None:
            return ""
        try:
            self.maker.take_back(record, records)
        except PrepareError as error:
            return str(error)
        del records[uid]
        return ""

    def _narrow(self, records: Records, gone: frozenset[str], inventory: Inventory) -> None:
        """Describe claims again whose containers saw the devices of claims that are `gone`.

        Such a container may be restarted (a pod can name a claim that was generated for another
        one), when those devices are allocated to others.
        """
        problems: list[str] = []
        for uid, record in list(records.items()):
            views = tuple(
                replace(view, asked=tuple(each for each in view.asked if each[0] not in gone)) for view in record.views
            )
            if views != record.views:
                narrowed = records | {uid: replace(record, views=views)}
                if self._try(problems, partial(self.maker.remake, narrowed, uid, inventory)):
                    records.update(narrowed)
        for problem in problems:
            log.warning("%s", problem)

    # --- checking ---

    def _look_at(self, job: Prepare, batch: Batch, inventory: Inventory) -> dict[str, str]:
        """Check the claims of a job. Returns refusals by uid; "" for claims that are prepared or in the batch now."""
        found = dict.fromkeys(job.claims, "")
        fresh: dict[str, Record] = {}
        for uid, claim in job.claims.items():
            try:
                check_identity(claim, uid)
                if not self._is_known(batch, uid, claim, inventory):
                    fresh[uid] = read_claim(claim, inventory)
            except PrepareError as error:
                found[uid] = str(error)
        unclear = _unclear(job, {**batch.records, **fresh})
        found.update({uid: why for uid, why in unclear.items() if uid in fresh and not found[uid]})
        for uids in together(job):
            members = [fresh[uid] for uid in uids if uid in fresh]
            bad = next((uid for uid in uids if found[uid]), None)
            if bad is not None:
                why = f"with another claim of the pod: {found[bad]}"
                found.update(dict.fromkeys((record.uid for record in members if not found[record.uid]), why))
            elif members:
                why = self._admit(members, job.pods, batch, inventory)
                found.update(dict.fromkeys((record.uid for record in members), why))
        return found

    def _is_known(self, batch: Batch, uid: str, claim: ResourceClaim, inventory: Inventory) -> bool:
        """Return whether it is prepared with its present allocation, or will be in this batch. Raises PrepareError."""
        record = batch.records.get(uid)
        if record is None:
            return False
        if any(uid in group.uids for group in batch.groups):
            return True
        if record.state == "prepared" and record.allocation == fingerprint(claim, inventory.driver):
            self._repair(batch.records, uid, inventory)
            return True
        # reallocated, so the containers that had it are gone; or never finished
        self.maker.take_back(record, batch.records)
        del batch.records[uid]
        return False

    def _repair(self, records: Records, uid: str, inventory: Inventory) -> None:
        """Create missing artifacts of the claim again. Raises PrepareError."""
        self.maker.unpartition(records[uid])
        record = self.maker.without_lost(records[uid])
        own = [held.own_partition for held in record.held]
        if any(partition is not None and partition.id is None for partition in own):
            if record != records[uid]:
                records[uid] = record
                self._save(records)
            self.maker.remake(records, uid, inventory)
        moved = self.maker.renumbered(records[uid], inventory)
        if moved == records[uid]:
            self.maker.write(moved, fresh=False)
            return
        renumbered = records | {uid: moved}
        self.maker.remake(renumbered, uid, inventory)
        records.update(renumbered)

    def _follow(self, records: Records, inventory: Inventory) -> None:
        """Describe claims again whose cards have other numbers than when they were prepared.

        Once for each inventory: a failure is retried when kubelet calls for the claim.
        """
        if inventory is self._followed:
            return
        self._followed = inventory
        problems: list[str] = []
        for uid, record in list(records.items()):
            if record.state == "prepared" and self.maker.renumbered(record, inventory) != record:
                log.warning(
                    "ResourceClaim %s: its cards have other numbers now: its containers get them when they start",
                    record.key,
                )
                self._try(problems, partial(self._repair, records, uid, inventory))
        for problem in problems:
            log.warning("%s", problem)

    def _admit(self, members: Sequence[Record], pods: Sequence[Pod], batch: Batch, inventory: Inventory) -> str:
        """Add claims to the batch as `preparing`, or return the reason of a refusal."""
        records = dict(batch.records)
        try:
            settled = {record.key: "another pod" for record in records.values()}
            arrangement = arrange(inventory.driver, members, pods, settled, self.maker.reads)
            for record in members:
                holdings = [ClaimHolding(other.key, held) for other in records.values() for held in other.held]
                check_overcommit(record.key, record.held, holdings, inventory)
                self.maker.check_free(record)
                records[record.uid] = replace(record, held=())
                for held in record.held:
                    given = self.maker.assigned(records, held, inventory, record.key)
                    records[record.uid] = replace(records[record.uid], held=(*records[record.uid].held, given))
                seen = [arrangement.view_of[record.uid, request] for request in record.requests]
                views = {view.name: view for view in seen if view is not None}
                records[record.uid] = replace(records[record.uid], views=tuple(views.values()))
        except PrepareError as error:
            return str(error)
        batch.records = records
        batch.groups.append(Group(tuple(record.uid for record in members), arrangement))
        return ""

    # --- creating ---

    def _make(self, batch: Batch, inventory: Inventory) -> None:
        """Turn `preparing` into `prepared`, or take it back."""
        held = [held for group in batch.groups for uid in group.uids for held in batch.records[uid].held]
        if any(each.unpartitioned or each.own_partition is not None for each in held):
            try:
                self._save(batch.records)
            except PrepareError as error:
                for group in batch.groups:
                    self._fail(batch.records, group, str(error))
                return
        for group in batch.groups:
            try:
                for uid in group.uids:
                    self.maker.make_partitions(batch.records, uid)
                for record in self.maker.described(batch.records, group.uids, inventory, group.arrangement):
                    batch.records[record.uid] = record
                    self.maker.write(record, fresh=True)
            except PrepareError as error:
                self._fail(batch.records, group, str(error))
                continue
            except Exception:  # a bug over one claim must not stop those of other pods
                log.exception("claims %s", ", ".join(batch.records[uid].key for uid in group.uids))
                self._fail(batch.records, group, UNEXPECTED)
                continue
            for uid in group.uids:
                batch.records[uid] = replace(batch.records[uid], state="prepared")

    def _fail(self, records: Records, group: Group, why: str) -> None:
        """Fail a group. Claims that cannot be taken back now stay in the list as `preparing`: they
        still count, and the next call tries again.
        """
        group.why = why
        for uid in group.uids:
            record = records[uid]
            try:
                self.maker.take_back(record, records)
            except PrepareError as error:
                log.warning("ResourceClaim %s was not prepared, and cannot be taken back yet: %s", record.key, error)
                records[uid] = replace(record, state="preparing")
            else:
                del records[uid]


def _unclear(job: Prepare, records: Mapping[str, Record]) -> dict[str, str]:
    """Return by uid why the views of claims reserved for a PodGroup are unknown; empty if only one is possible."""
    known = {f"{pod.metadata.namespace}/{name}" for pod in job.pods for name in claim_names(pod)}
    unread = [uid for uid in job.unread if uid in records and records[uid].key not in known]
    asked = {(uid, held.parent) for uid in unread for held in records[uid].held}
    if len(asked) < 2:
        return {}
    return {
        uid: f"ResourceClaim {records[uid].key}: it is reserved for {job.unread[uid]}, so the driver does not know which containers use "
        f"which of its {len(asked)} requests here: let the driver list pods (manifests/optional/pod-groups.yaml), "
        "or use one claim with one request"
        for uid in unread
    }
