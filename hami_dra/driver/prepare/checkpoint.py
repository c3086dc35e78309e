"""The checkpoint: the list of prepared claims on this node, on disk.

Used by `transaction`. In and out: records by claim uid. Blocks; called from a thread. Raises
NotWritten, Unreadable.

The file is JSON: a version, the sha256 of the state's text, the state. It is written as a whole,
and synced to the disk before any caller gets an answer that depends on it. An unreadable file
(damaged, or written by a newer version) is set aside, never deleted, and the list is rebuilt from
the CDI files, each of which has the record of its claim. That is safe: a claim whose containers may
run has its CDI file, for it is written before kubelet is answered and removed after everything else
of the claim is gone. After a reboot, which empties /var/run, there are no CDI files, and no
containers either. If in turn one of the driver's CDI files cannot be read, the devices of its claim
are unknown and would be given out again. Then nothing is prepared, and the error says what to do.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from hami_dra.driver.prepare import cdi
from hami_dra.driver.prepare.errors import NotWritten, Unreadable
from hami_dra.driver.prepare.files import Files, Stamp
from hami_dra.driver.prepare.records import Record

log = logging.getLogger(__name__)

VERSION: Final = 1
Records = dict[str, Record]


class Damaged(ValueError):
    """The text is not a checkpoint that this version can read; the message says why."""


class _CheckpointFile(msgspec.Struct, frozen=True):
    version: int
    sha256: str = ""
    state: msgspec.Raw = msgspec.Raw(b"null")


class _State(msgspec.Struct, frozen=True):
    driver: str
    claims: tuple[Record, ...]


def encode(driver: str, records: Mapping[str, Record]) -> bytes:
    state = msgspec.json.encode(_State(driver, tuple(records.values())), order="deterministic")
    return msgspec.json.encode(_CheckpointFile(VERSION, _checksum(state), msgspec.Raw(state)))


def decode(driver: str, text: bytes) -> Records:
    """Decode a checkpoint. Raises Damaged."""
    try:
        found = msgspec.json.decode(text, type=_CheckpointFile)
        if found.version != VERSION:
            raise Damaged(f"it has version {found.version}, and this driver reads {VERSION}")
        if _checksum(bytes(found.state)) != found.sha256:
            raise Damaged("its checksum does not match its content")
        state = msgspec.json.decode(found.state, type=_State)
    except msgspec.DecodeError as error:
        raise Damaged(f"it is not complete or not JSON: {error}") from error
    if state.driver != driver:
        raise Damaged(f"it is of driver {state.driver}, not of {driver}")
    return {record.uid: record for record in state.claims}


class Checkpoint:
    """The checkpoint file. `path`: the file; `cdi_folder`: the CDI files to rebuild the list from."""

    def __init__(self, driver: str, path: Path, cdi_folder: Path, files: Files) -> None:
        self._driver = driver
        self._path = path
        self._cdi_folder = cdi_folder
        self._files = files
        self._stamp: Stamp | None = None
        self._written: Records | None = None
        self._text: bytes | None = None

    def load(self) -> Records:
        """Return the list on the disk; another instance may have written since. Raises Unreadable, NotWritten."""
        try:
            stamp = self._files.stamp(self._path)
            if self._written is not None and stamp is not None and stamp == self._stamp:
                return dict(self._written)
            text = self._files.read(self._path)
        except OSError as error:
            raise Unreadable(
                f"checkpoint {self._path} cannot be read: {error.strerror}: repair the disk or fix its permissions"
            ) from error
        if text is None:
            return self._first_or_lost()
        try:
            records = decode(self._driver, text)
        except Damaged as error:
            return self._made_again(str(error))
        self._written, self._stamp, self._text = records, stamp, text
        return dict(records)

    def save(self, records: Mapping[str, Record]) -> None:
        """Write the list. Raises NotWritten; then the file is unchanged."""
        text = encode(self._driver, records)
        if text == self._text and self._stamp is not None and self._files.stamp(self._path) == self._stamp:
            return
        # after a failure below, the file is read again before its content is used
        self._stamp = None
        try:
            self._files.write(self._path, text)
            self._stamp = self._files.stamp(self._path)
        except OSError as error:
            raise NotWritten(
                f"checkpoint {self._path} cannot be written: {error.strerror}: free space on this disk, or make it writable"
            ) from error
        self._written, self._text = dict(records), text

    def tidy(self) -> None:
        """Remove files of interrupted writes. Call under the lock, so that none is being written."""
        try:
            for path in self._files.leftovers(self._path.parent, self._path.name):
                self._files.remove(path)
        except OSError as error:
            raise NotWritten(f"{self._path.parent} cannot be tidied: {error.strerror}: make it writable") from error

    # --- without a file ---

    def _first_or_lost(self) -> Records:
        """Return the list without a file: nothing was ever prepared, or the file was removed while containers run."""
        records = self._from_cdi(why="is not there")
        if records:
            log.error("checkpoint %s is missing, but CDI files exist: rebuilt from them", self._path)
        self.save(records)
        return records

    def _made_again(self, why: str) -> Records:
        records = self._from_cdi(why=f"cannot be used ({why})")
        aside = self._free_name()
        try:
            self._files.rename(self._path, aside)
        except OSError as error:
            raise NotWritten(
                f"checkpoint {self._path} cannot be used ({why}), nor be set aside: {error.strerror}: make its folder writable"
            ) from error
        log.error("checkpoint %s cannot be used (%s): set aside as %s, rebuilt from CDI files", self._path, why, aside)
        self.save(records)
        return records

    def _from_cdi(self, why: str) -> Records:
        records: Records = {}
        path = self._cdi_folder
        try:
            for name in self._files.names(self._cdi_folder):
                uid = cdi.claim_of(self._driver, name)
                if uid is not None:
                    path = self._cdi_folder / name
                    records[uid] = cdi.record_of(self._driver, uid, self._files.read(path) or b"")
        except cdi.NotOurs as error:
            raise Unreadable(
                f"checkpoint {self._path} {why}, and {path} cannot replace it: {error}. Nothing is prepared, since the devices "
                "in use are unknown: drain the node, remove both files, and restart the driver"
            ) from error
        except OSError as error:
            raise Unreadable(
                f"checkpoint {self._path} {why}, and {path} cannot be read: {error.strerror}: fix its permissions"
            ) from error
        return records

    def _free_name(self) -> Path:
        number = 1
        while self._files.stamp(aside := self._path.with_name(f"{self._path.name}.damaged-{number}")) is not None:
            number += 1
        return aside


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
