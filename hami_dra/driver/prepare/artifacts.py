"""Create and remove a prepared claim's artifacts on the host: partitions, its CDI file, folders.

Called by `transaction`, under its lock and in its thread. In: records. Out: records as they are
afterwards. Blocks. Raises PrepareError; artifacts created before the error stay, and `take_back`
removes them.

Order of creation: cards put out of MIG mode, partitions, CDI file, folders. Order of removal:
partitions, cards restored, folders, CDI file. The CDI file records the claim and its folders, so
after an interruption at any point either the checkpoint or the CDI file still lists what has to be
removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hami_dra.api.config import read_device_config
from hami_dra.api.containers import MARKER, ContainerPlace, ContainerVendor, Edits, Host, Tenancy, Unpreparable
from hami_dra.driver.kubelet.protocol import PreparedDevice
from hami_dra.driver.prepare import cdi
from hami_dra.driver.prepare.checkpoint import Records
from hami_dra.driver.prepare.container_views import ViewArrangement, answer_order
from hami_dra.driver.prepare.errors import NotWritten, Refused
from hami_dra.driver.prepare.files import Files
from hami_dra.driver.prepare.inventory import Inventory
from hami_dra.driver.prepare.partitions import Partitions
from hami_dra.driver.prepare.records import ContainerView, GrantedDevice, HostFolder, Record

_CDI_MODE = 0o600
_READ = 0o755


class ArtifactWriter:
    """Write artifacts. `cdi_folder`: the folder that containerd reads (`/var/run/cdi`); created if it is missing."""

    def __init__(
        self, vendor: ContainerVendor, host: Host, partitions: Partitions, cdi_folder: Path, files: Files
    ) -> None:
        self.reads = vendor.reads
        self._vendor = vendor
        self._host = host
        self._partitions = partitions
        self._folder = cdi_folder
        self._files = files

    # --- creating ---

    def assigned(
        self, records: Mapping[str, Record], held: GrantedDevice, inventory: Inventory, claim: str
    ) -> GrantedDevice:
        """Return the device with the vendor's assignment, beyond amounts; `records`: all else that is prepared."""
        if held.admin:
            return held
        others = [
            other.assigned
            for record in records.values()
            for other in record.held
            if other.card == held.card and not other.admin and other.assigned
        ]
        try:
            given = self._vendor.assign(self._tenancy(held, claim, inventory, records), others)
        except Unpreparable as error:
            raise Refused(f"ResourceClaim {claim}: {error}") from error
        return replace(held, assigned=dict(given))

    def check_free(self, record: Record) -> None:
        for held in record.held:
            self._partitions.check_free(record.key, held)

    def make_partitions(self, records: Records, uid: str) -> None:
        """Create the record's partitions that have no id, and put cards that it holds as one out of MIG mode.

        The record must be on the disk; each partition is stored in `records` as soon as it exists.
        """
        self.unpartition(records[uid])
        for index in range(len(records[uid].held)):
            record = records[uid]
            made = self._partitions.made(record.key, record.held[index])
            records[uid] = replace(record, held=(*record.held[:index], made, *record.held[index + 1 :]))

    def unpartition(self, record: Record) -> None:
        """Put cards that the record holds as one out of MIG mode, until the last record is taken back."""
        for held in record.held:
            self._partitions.unpartition(record.key, held)

    def described(
        self,
        records: Mapping[str, Record],
        uids: Sequence[str],
        inventory: Inventory,
        arrangement: ViewArrangement | None,
    ) -> list[Record]:
        """Return the records of `uids` with CDI documents, folders, answers.

        `arrangement`: None if only the documents are rewritten. `records` has all claims of their
        views, with partitions created.
        """
        edits: dict[str, Edits] = {}
        for uid in uids:
            for view in records[uid].views:
                if view.name not in edits:
                    edits[view.name] = self._edits(view, records, inventory)
        for smaller, larger in arrangement.nested if arrangement is not None else ():
            left = cdi.undone(edits[smaller], edits[larger])
            if left:
                shown = ", ".join(sorted(records[uid].key for uid in uids))
                raise Refused(
                    f"ResourceClaim {shown}: containers use some of the same requests, and what one of them is given ({left}) would stay "
                    "in another that uses more of them: give each container its own requests"
                )
        return [self._described(records[uid], edits, arrangement, inventory) for uid in uids]

    def write(self, record: Record, *, fresh: bool) -> None:
        """Write the CDI file and the folders of a described record. `fresh`: empty the folders of a view first."""
        path = self._folder / cdi.file_name(self._vendor.driver, record.uid)
        try:
            if record.spec is not None:
                content = cdi.encoded(record.spec)
                if self._files.read(path) != content:
                    self._files.make_folder(self._folder, _READ)
                    self._files.write(path, content, _CDI_MODE)
            for folder in record.folders:
                if folder.per_view and fresh:
                    self._files.remove_folder(Path(folder.path))
                self._files.make_folder(Path(folder.path), folder.mode)
                self._files.label_for_containers(Path(folder.path))
                if folder.per_view:
                    self._files.touch(Path(folder.path + MARKER))
        except OSError as error:
            raise self._not_written(record, error) from error

    # --- repairing ---

    def without_lost(self, record: Record) -> Record:
        """Return the record without the ids of lost partitions (a reboot), so that they are created
        again. Raises Refused if another program has created one in their place.
        """
        held = list(record.held)
        for index, each in enumerate(held):
            if each.partition is not None and self._partitions.is_lost(record.key, each):
                self._partitions.check_free(record.key, each)
                held[index] = replace(each, partition=replace(each.partition, id=None, uuid="", compute_id=None))
        return replace(record, held=tuple(held))

    def renumbered(self, record: Record, inventory: Inventory) -> Record:
        """Return the record with the current numbers of its cards. With other numbers it must be described again."""
        held = []
        for each in record.held:
            device = inventory.of(each)
            known = device is not None and device.card.present and each.numbers is not None
            held.append(replace(each, numbers=device.numbers) if device is not None and known else each)
        return replace(record, held=tuple(held))

    def remake(self, records: Records, uid: str, inventory: Inventory) -> None:
        """Create partitions without an id, and describe again every claim whose containers see them."""
        self.make_partitions(records, uid)
        seeing = [other.uid for other in records.values() if any(uid in dict(view.asked) for view in other.views)]
        for changed in self.described(records, seeing, inventory, None):
            records[changed.uid] = changed
            self.write(changed, fresh=False)

    # --- removing ---

    def take_back(self, record: Record, others: Mapping[str, Record]) -> None:
        """Remove a record's artifacts; missing ones are no error. Folders of `others`, which stay, are left alone."""
        for held in record.held:
            self._partitions.remove(record.key, held)
        self._recut(record, others)
        kept = {folder.path for other in others.values() if other.uid != record.uid for folder in other.folders}
        path = self._folder / cdi.file_name(self._vendor.driver, record.uid)
        try:
            for folder in record.folders or self._remembered(path, record).folders:
                if folder.per_view and folder.path not in kept:
                    for made in (folder.path, folder.path + MARKER):
                        self._files.remove_folder(Path(made))
            self._files.remove(path)
        except OSError as error:
            raise self._not_written(record, error) from error

    def _recut(self, record: Record, others: Mapping[str, Record]) -> None:
        staying = _unpartitioned_cards(other for other in others.values() if other.uid != record.uid)
        for held in record.held:
            if held.card not in staying:
                self._partitions.repartition(record.key, held)

    def recut_unheld(self, records: Mapping[str, Record]) -> None:
        """Restore cards that were put out of MIG mode for claims without a record."""
        self._partitions.recut_all_but(_unpartitioned_cards(records.values()))

    def _remembered(self, path: Path, record: Record) -> Record:
        """Return the record from the CDI file of an interrupted claim: the checkpoint has only the intent."""
        if record.state == "prepared":
            return record
        try:
            return cdi.record_of(self._vendor.driver, record.uid, self._files.read(path) or b"")
        except cdi.NotOurs:
            return record

    def leftovers(self, records: Mapping[str, Record]) -> list[Record]:
        """Return the records in CDI files of claims that are not prepared; files without a record are removed."""
        found = []
        try:
            for path in self._files.leftovers(self._folder, f"{self._vendor.driver}-"):
                self._files.remove(path)
            for name in self._files.names(self._folder):
                uid = cdi.claim_of(self._vendor.driver, name)
                if uid is None or uid in records:
                    continue
                try:
                    found.append(cdi.record_of(self._vendor.driver, uid, self._files.read(self._folder / name) or b""))
                except cdi.NotOurs:
                    self._files.remove(self._folder / name)
        except OSError as error:
            raise NotWritten(
                f"CDI folder {self._folder}: {error.strerror}: files of claims that are gone cannot be removed; make it writable"
            ) from error
        return found

    # --- parts ---

    def _described(
        self, record: Record, edits: Mapping[str, Edits], arrangement: ViewArrangement | None, inventory: Inventory
    ) -> Record:
        own = [edits[view.name] for view in record.views]
        folders = {
            folder.path: folder for folder in record.folders
        }  # of an earlier description, still to be removed some day
        folders |= {
            folder.path: HostFolder(folder.path, folder.mode, folder.per_view)
            for each in own
            for folder in each.folders
        }
        record = replace(
            record,
            folders=tuple(folders.values()),
            notes=tuple(dict.fromkeys(note for each in own for note in each.notes)),
        )
        if arrangement is not None:
            record = replace(record, answers=_answers(inventory.driver, record, arrangement, edits))
        return replace(record, spec=cdi.document(inventory.driver, record, edits))

    def _edits(self, view: ContainerView, records: Mapping[str, Record], inventory: Inventory) -> Edits:
        # after a crash one claim of a view may be gone, and with it the container: the others are
        # still described
        there = [(uid, request) for uid, request in view.asked if uid in records]
        first = records[there[0][0]]
        place = ContainerPlace(
            claim_namespace=first.namespace,
            claim_name=first.name,
            claim_uid=first.uid,
            view=view.name,
            pod_uids=view.pods,
            containers=view.containers,
            at_once=view.at_once or len(view.users),
            container_env=dict(view.env),
            runtime_classes=frozenset(view.runtime_classes),
            joinable={records[uid].owner_pod for uid, _ in there} != set(view.pods),
        )
        tenancies = [
            self._tenancy(held, records[uid].key, inventory, records)
            for uid, request in there
            for held in records[uid].held
            if held.parent == request
        ]
        try:
            return self._vendor.edits(tenancies, place, self._host)
        except Unpreparable as error:
            raise Refused(f"ResourceClaim {first.key}: {error}") from error

    def _tenancy(self, held: GrantedDevice, claim: str, inventory: Inventory, records: Mapping[str, Record]) -> Tenancy:
        device = inventory.of(held)
        if device is None or not device.card.present:
            raise Refused(
                f"ResourceClaim {claim}: device {held.device} (card {held.card}) is not on this node any more: delete the pod and the "
                "claim, so that another device is allocated"
            )
        parameters = read_device_config(msgspec.json.encode(held.parameters))
        if isinstance(parameters, str):
            raise Refused(
                f"ResourceClaim {claim}: its parameters were read by another version of the driver, and this one cannot: {parameters}: "
                "delete the pod and the claim, and create them again"
            )
        return Tenancy(
            card=device.card,
            device=held.device,
            request=held.request,
            share_id=held.share_id,
            consumed=held.consumed,
            whole=held.whole,
            admin=held.admin,
            parameters=parameters,
            partition=self._partitions.instance(claim, _looked_at(held, claim, records)),
            profile=held.partition.profile if held.partition is not None else "",
            assigned=held.assigned,
        )

    def _not_written(self, record: Record, error: OSError) -> NotWritten:
        return NotWritten(
            f"ResourceClaim {record.key}: {error.filename or self._folder}: {error.strerror}: free space on this disk, or make it "
            "writable for the driver"
        )


def _unpartitioned_cards(records: Iterable[Record]) -> set[str]:
    return {held.card for record in records for held in record.held if held.unpartitioned}


def _looked_at(held: GrantedDevice, claim: str, records: Mapping[str, Record]) -> GrantedDevice:
    """Return the device with the partition of its holder, if it is an admin access to a part of a card."""
    if not held.admin or held.partition is None or held.partition.by_runtime:
        return held
    for record in records.values():
        for other in record.held:
            if other.partition is not None and other.device == held.device and not other.admin:
                return other
    raise Refused(
        f"ResourceClaim {claim}: request {held.request} requests adminAccess to {held.device}, a part of a card that exists only while "
        "another claim holds it, and none does: request the whole card instead"
    )


def _answers(
    driver: str, record: Record, arrangement: ViewArrangement, edits: Mapping[str, Edits]
) -> tuple[PreparedDevice, ...]:
    rank = {name: place for place, name in enumerate(answer_order(record.requests, record.uid, arrangement.view_of))}
    return tuple(
        PreparedDevice(
            requests=(held.parent,),
            pool=held.pool,
            device=held.device,
            share_id=held.share_id,
            cdi_ids=_ids(driver, record.uid, arrangement.view_of[record.uid, held.parent], edits),
        )
        for held in sorted(record.held, key=lambda held: rank[held.parent])
    )


def _ids(driver: str, uid: str, view: ContainerView | None, edits: Mapping[str, Edits]) -> tuple[str, ...]:
    """Return the CDI ids of a view. Devices of other programs come first: ours override their settings."""
    if view is None:
        return ()
    own = (cdi.device_id(driver, uid, view.name),) if cdi.container_edits(edits[view.name]) else ()
    return (*edits[view.name].cdi_devices, *own)
