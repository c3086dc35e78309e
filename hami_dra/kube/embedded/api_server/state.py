"""The stored objects of a memory cluster: versions, UIDs, deletion, and garbage collection by owner.

Called by `cluster.MemoryCluster` only, which has checked the request; from here on nothing is
refused.
"""

import random
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hami_dra.api.kinds import Kind
from hami_dra.kube.embedded.api_server.history import Record, RecordedChange, Table
from hami_dra.kube.protocol import NotFound

Raw = dict[str, Any]

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own: no vowels, so no words


def object_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


class MemoryState:
    def __init__(self, history: int, now: Callable[[], datetime], seed: int, *, graceful: bool) -> None:
        # real servers never have version 0, which has a special meaning for a watch
        self.newest = 1
        self._history = history
        self._now = now
        self._graceful = graceful
        self._random = random.Random(seed)  # noqa: S311 (names and UIDs of a simulation, deliberately repeatable)
        self._tables: dict[tuple[str, str], Table] = {}
        self._uids: set[str] = set()
        self._dependents: dict[str, dict[tuple[Kind[Any], str], None]] = {}

    def tables(self) -> Iterable[Table]:
        return self._tables.values()

    def table(self, kind: Kind[Any]) -> Table:
        """Return the table of a kind; all versions of a group share one."""
        return self._tables.setdefault((kind.group, kind.plural), Table(self._history))

    def find(self, kind: Kind[Any], key: str) -> Record | None:
        return self.table(kind).objects.get(key)

    def existing(self, kind: Kind[Any], key: str) -> Record:
        record = self.find(kind, key)
        if record is None:
            raise NotFound(f'{kind.plural} "{key}" not found')
        return record

    def knows(self, uid: str) -> bool:
        return uid in self._uids

    def next_record(self, raw: Raw) -> Record:
        """Return the record that `store` would keep; nothing is stored yet."""
        version = self.newest + 1
        return Record({**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}, version)

    def store(self, kind: Kind[Any], key: str, before: Record | None, record: Record) -> None:
        """Store a record from `next_record`."""
        self.newest = record.version
        self._uids.add(record.raw["metadata"]["uid"])
        for owner in _owners(record.raw):
            self._dependents.setdefault(owner, {})[kind, key] = None
        self.table(kind).apply(key, RecordedChange(self.newest, before, record))

    def delete(self, kind: Kind[Any], key: str, record: Record, asked: int | None = None) -> None:
        """Delete the object immediately, or mark it as being deleted while it has finalizers or time left.

        `asked`: seconds of grace, for a pod.
        """
        meta = record.raw["metadata"]
        grace = _grace(record.raw, asked) if self._graceful and kind.plural == "pods" else 0
        if not grace and not meta.get("finalizers"):
            self.remove(kind, key, record, record.raw)
            return
        begun, generation = self._now(), meta.get("generation", 0) + 1
        if "deletionTimestamp" in meta:
            before, generation = meta["deletionGracePeriodSeconds"], meta["generation"]
            if grace >= before:
                return
            begun = datetime.strptime(meta["deletionTimestamp"], _TIME).replace(tzinfo=UTC) - timedelta(seconds=before)
        end = (begun + timedelta(seconds=grace)).strftime(_TIME)
        marked = {**meta, "deletionTimestamp": end, "deletionGracePeriodSeconds": grace, "generation": generation}
        self.store(kind, key, record, self.next_record({**record.raw, "metadata": marked}))

    def remove(self, kind: Kind[Any], key: str, before: Record, raw: Raw) -> Record:
        """Remove the object and everything that only it owned.

        `raw` is its last state. On a real cluster the garbage collector does this in the
        background.
        """
        last = self.next_record(raw)
        self.newest = last.version
        self.table(kind).apply(key, RecordedChange(self.newest, before, last, removed=True))
        uid = raw["metadata"]["uid"]
        self._uids.discard(uid)
        self._forget_dependent(kind, key, raw)
        for owned_kind, owned_key in self._dependents.pop(uid, {}):
            record = self.find(owned_kind, owned_key)
            if record is None:
                continue
            owners = _owners(record.raw)
            if uid in owners and not any(self.knows(owner) for owner in owners):
                self.delete(owned_kind, owned_key, record)
        return last

    def _forget_dependent(self, kind: Kind[Any], key: str, raw: Raw) -> None:
        for owner in _owners(raw):
            if (owned := self._dependents.get(owner)) is not None:
                owned.pop((kind, key), None)
                if not owned:
                    del self._dependents[owner]

    def timestamp(self) -> str:
        return self._now().strftime(_TIME)

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def new_suffix(self) -> str:
        return "".join(self._random.choices(_SUFFIX_LETTERS, k=5))


def _grace(pod: Raw, asked: int | None) -> int:
    """Return the seconds that a pod has to end (pkg/registry/core/pod/strategy.go, CheckGracefulDelete).

    A second deletion only shortens the time, and only if it asks for one.
    """
    spec, meta = pod["spec"], pod["metadata"]
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is None:
        asked = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
    return asked if asked >= 0 else 1


def _owners(raw: Raw) -> list[str]:
    return [str(owner.get("uid")) for owner in raw["metadata"].get("ownerReferences") or ()]
