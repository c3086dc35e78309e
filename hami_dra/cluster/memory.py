"""A Kubernetes API server in memory: the `Cluster` of the demo, of `simulate` and of most tests.

It keeps raw JSON objects and answers as the real one does where this project depends on it: optimistic concurrency,
no-op patches, finalizers, owner garbage collection, the status subresource, watches with a bounded history, selectors,
the rules of claim status. Content rules are in `rules`, patches in `patches`, watch history in `history`.
What it leaves out: authorisation, field ownership (server-side apply is a deep merge), graceful deletion of pods
(they go at once unless a finalizer holds them), and namespaces need not exist.

Tests steer it with `fail_next`, `hooks`, `pause_watches`, `close_watches`, `forget_history`, `send_bookmarks` and read `requests`.
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import msgspec

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.cluster import patches, rules
from hami_dra.cluster.history import Change, Record, Table
from hami_dra.cluster.protocol import (
    APPLY,
    JSON,
    MERGE,
    AlreadyExists,
    Body,
    Broken,
    ClusterError,
    Conflict,
    Invalid,
    Listing,
    NotFound,
    PatchType,
    ServerVersion,
    Unavailable,
    WatchEvent,
)
from hami_dra.cluster.selectors import InvalidSelector, Predicate, field_predicate, label_predicate

T = TypeVar("T", bound=Object)
Raw = dict[str, Any]

DEFAULT_VERSION: Final = ServerVersion(1, 37, "v1.37.1")
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own: no vowels, no words


@dataclass(frozen=True, slots=True)
class Request:
    """One call, as hooks see it. `verb` is get, list, watch, create, patch, delete or bind."""

    verb: str
    kind: Kind[Any]
    namespace: str
    name: str
    subresource: str = ""
    body: Any = None

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "patch", "delete", "bind")

    @property
    def label(self) -> str:
        return f"{self.verb} {self.kind.plural}" + (f"/{self.subresource}" if self.subresource else "")


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admission callable gets: the object about to be created. `dry_run`: it must have no side effects."""

    kind: Kind[Any]
    namespace: str
    object: Raw
    dry_run: bool


@dataclass(slots=True)
class _Fault:
    error: ClusterError
    matches: Callable[[Request], bool]
    applied: bool
    times: int


def default_kinds(version: ServerVersion) -> tuple[Kind[Object], ...]:
    """What an API server of that version serves without extra feature gates: DeviceTaintRule came on by default in 1.37."""
    off = {kinds.DEVICE_TAINT_RULE_V1BETA2} | (set() if version.at_least(1, 37) else {kinds.DEVICE_TAINT_RULE})
    return tuple(kind for kind in kinds.ALL if kind not in off)


class MemoryCluster:
    """`served`: the kinds on offer (default: by version). `history`: changes per resource that a watch may resume from."""

    def __init__(
        self,
        version: ServerVersion = DEFAULT_VERSION,
        served: Iterable[Kind[Any]] | None = None,
        *,
        history: int = 10_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seed: int = 0,
    ) -> None:
        self.requests: Counter[str] = Counter()
        """Calls so far, by `Request.label`: `patch resourceclaims/status`."""
        self.hooks: list[Callable[[Request], Awaitable[None]]] = []
        """Awaited before each request is carried out: the place to delay it or to let somebody else write first."""
        self.admission: list[Callable[[Admission], Awaitable[Raw]]] = []
        """Mutating admission, in order: each returns the object to go on with, or raises a ClusterError to refuse it."""
        self._version = version
        self._served = frozenset(default_kinds(version) if served is None else served)
        self._uids: set[str] = set()
        self._dependents: dict[str, dict[tuple[Kind[Any], str], None]] = {}
        self._tables: dict[tuple[str, str], Table] = {}
        self._history = history
        self._now = now
        self._random = random.Random(seed)  # noqa: S311 (names and uids of a simulation, repeatable on purpose)
        self._newest = 1  # no real server is ever at version 0, which means something else to a watch
        self._faults: list[_Fault] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._closed = False

    # --- for tests ---------------------------------------------------------------------------------------------------

    def fail_next(
        self,
        error: ClusterError,
        *,
        verb: str = "",
        kind: Kind[Any] | None = None,
        name: str = "",
        subresource: str | None = None,
        applied: bool = False,
        times: int = 1,
    ) -> None:
        """Raise `error` on the next matching request (any write, if no verb is named); `applied`: after it took effect."""

        def matches(request: Request) -> bool:
            return (
                (request.verb == verb if verb else request.is_write)
                and (kind is None or request.kind == kind)
                and (not name or request.name == name)
                and (subresource is None or request.subresource == subresource)
            )

        self._faults.append(_Fault(error, matches, applied, times))

    def pause_watches(self) -> None:
        """Events pile up until `resume_watches`."""
        self._flowing.clear()

    def resume_watches(self) -> None:
        self._flowing.set()

    def close_watches(self, error: ClusterError | None = None) -> None:
        """End every watch after what is already queued, as a server time-out does; or make them raise `error`."""
        for table in self._tables.values():
            for watcher in table.watchers:
                watcher.finish(error or True)

    def forget_history(self) -> None:
        """As etcd's compaction: a watch that starts from an older resourceVersion is Gone."""
        for table in self._tables.values():
            table.forget(self._newest)

    def send_bookmarks(self) -> None:
        bookmark = Record({"metadata": {"resourceVersion": str(self._newest)}}, self._newest)
        for table in self._tables.values():
            for watcher in table.watchers:
                watcher.pending.append(("BOOKMARK", bookmark))
                watcher.wake.set()

    def put_raw(self, kind: Kind[Any], raw: Body) -> None:
        """Store an object unchecked, as an older or newer API server may have left it."""
        meta = raw["metadata"]
        key = _key(str(meta.get("namespace", "")), str(meta["name"]))
        before = self._table(kind).objects.get(key)
        stored = rules.without_nulls(raw)
        stored["metadata"].setdefault("uid", self._new_uid())
        self._commit(kind, key, before, stored)

    @property
    def has_undelivered_events(self) -> bool:
        """Whether a watcher has not taken yet what was written."""
        return any(watcher.pending for table in self._tables.values() for watcher in table.watchers)

    def knows(self, uid: str) -> bool:
        """Whether an object with that uid is stored."""
        return uid in self._uids

    # --- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> ServerVersion:
        return self._version

    async def serves(self, kind: Kind[T]) -> bool:
        return kind in self._served

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        record = await self._get(kind, name, namespace)
        return self._read(kind, record)

    async def get_raw(self, kind: Kind[T], name: str, namespace: str = "") -> Raw:
        record = await self._get(kind, name, namespace)
        return cast("Raw", msgspec.json.decode(record.encoded(kind)))

    async def _get(self, kind: Kind[T], name: str, namespace: str) -> Record:
        fault = await self._begin(Request("get", kind, namespace, name))
        record = self._existing(kind, name, namespace)
        _finish(fault)
        return record

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        fault = await self._begin(Request("list", kind, namespace, ""))
        predicate = _predicate(kind, namespace, label_selector, field_selector)
        items: list[T] = []
        broken: list[Broken] = []
        for _, record in sorted(self._table(kind).objects.items()):
            if not predicate(record.raw):
                continue
            try:
                # items of a list carry no apiVersion and kind of their own, as on the real server
                items.append(msgspec.structs.replace(record.read(kind), api_version="", kind=""))
            except msgspec.ValidationError as error:
                broken.append(Broken("ADDED", record.metadata_only(kind), str(error)))
        _finish(fault)
        return Listing(tuple(items), str(self._newest), tuple(broken))

    async def watch(
        self,
        kind: Kind[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[WatchEvent[T] | Broken]:
        fault = await self._begin(Request("watch", kind, namespace, ""))
        predicate = _predicate(kind, namespace, label_selector, field_selector)
        table = self._table(kind)
        if resource_version in ("", "0"):
            watcher = table.watcher(self._newest, self._newest, predicate)
            watcher.pending.extend(("ADDED", record) for record in table.objects.values() if predicate(record.raw))
        else:
            watcher = table.watcher(int(resource_version), self._newest, predicate)
        try:
            _finish(fault)
            while True:
                await self._flowing.wait()
                while watcher.pending and self._flowing.is_set():
                    event, record = watcher.pending.popleft()
                    yield _event(kind, event, record)
                if watcher.pending:
                    continue
                if isinstance(watcher.end, Exception):
                    raise watcher.end
                if watcher.end:
                    return
                watcher.wake.clear()
                await watcher.wake.wait()
        finally:
            table.watchers.remove(watcher)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], body: Body, *, namespace: str = "", dry_run: bool = False) -> T:
        raw = rules.without_nulls(body)
        meta = raw.setdefault("metadata", {})
        space = self._target_namespace(kind, meta, namespace)
        fault = await self._begin(Request("create", kind, space, str(meta.get("name", "")), body=raw))
        if meta.get("resourceVersion"):
            raise Invalid(f"create {kind.name}: resourceVersion should not be set on objects to be created")
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise Invalid(f"create {kind.name}: metadata.name or metadata.generateName is required")
            meta["name"] = meta["generateName"] + "".join(self._random.choices(_SUFFIX_LETTERS, k=5))
        for admit in self.admission:
            raw = await admit(Admission(kind, space, raw, dry_run))
        raw = rules.created(cast("Kind[Object]", kind), raw)
        if kind.plural == "pods":
            self._set_priority(raw)
        raw["metadata"] = {key: value for key, value in raw["metadata"].items() if key != "deletionTimestamp"} | {
            "uid": self._new_uid(),
            "creationTimestamp": self.timestamp(),
            "generation": 1,
        }
        key = _key(space, raw["metadata"]["name"])
        if key in self._table(kind).objects:
            raise AlreadyExists(f'create {kind.name}: {kind.plural} "{key}" already exists')
        if dry_run:
            record = Record(raw, 0)
            result = self._read(kind, record)
        else:
            record = self._commit(kind, key, None, raw, check=True)
            result = self._read(kind, record)
        _finish(fault)
        return result

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Body | Sequence[Body],
        *,
        namespace: str = "",
        subresource: str = "",
        patch_type: PatchType = MERGE,
        field_manager: str = "hami-dra",  # noqa: ARG002 (fields have no owners here)
        force: bool = False,  # noqa: ARG002 (as above)
    ) -> T:
        fault = await self._begin(Request("patch", kind, namespace, name, subresource, patch))
        if subresource and not (subresource == "status" and rules.has_status(cast("Kind[Object]", kind))):
            raise NotFound(f"patch {kind.plural}/{subresource}: the server could not find the requested resource")
        key = _key(namespace, name)
        before = self._table(kind).objects.get(key)
        if before is None and patch_type == APPLY and not subresource:
            return await self._create_by_apply(kind, name, namespace, patch, fault)
        if before is None:
            raise NotFound(f'patch {kind.name}: {kind.plural} "{key}" not found')
        merged = _patched(kind, before.raw, patch, patch_type)
        meta = merged["metadata"]
        if str(meta.get("resourceVersion") or before.version) != str(before.version):
            raise Conflict(
                f'patch {kind.name}: Operation cannot be fulfilled on {kind.plural} "{key}": the object has been '
                "modified; please apply your changes to the latest version and try again"
            )
        if meta.get("uid") != before.raw["metadata"]["uid"]:
            raise Conflict(
                f'patch {kind.name} "{key}": Precondition failed: UID in precondition: {meta.get("uid")}, '
                f"UID in object meta: {before.raw['metadata']['uid']}"
            )
        result = self._store_update(
            kind, key, before, rules.updated(cast("Kind[Object]", kind), before.raw, merged, subresource)
        )
        _finish(fault)
        return result

    async def _create_by_apply(
        self, kind: Kind[T], name: str, namespace: str, patch: Body | Sequence[Body], fault: _Fault | None
    ) -> T:
        if not isinstance(patch, Mapping):
            raise Invalid(f"apply {kind.name} {name}: the body must be an object")
        if (patch.get("metadata") or {}).get("uid"):
            raise Conflict(f'apply {kind.name}: {kind.plural} "{name}" with that uid is gone')
        body = patches.merge_patch(patch, {"metadata": {"name": name}})
        result = await self.create(kind, body, namespace=namespace)
        _finish(fault)
        return result

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,  # noqa: ARG002 (nothing here ends gracefully)
    ) -> None:
        fault = await self._begin(Request("delete", kind, namespace, name))
        record = self._existing(kind, name, namespace)
        meta = record.raw["metadata"]
        if uid and uid != meta["uid"]:
            raise Conflict(
                f"delete {kind.name} {name}: Precondition failed: UID in precondition: {uid}, is {meta['uid']}"
            )
        if resource_version and resource_version != str(record.version):
            raise Conflict(
                f"delete {kind.name} {name}: Precondition failed: ResourceVersion in precondition: {resource_version}, "
                f"is {record.version}"
            )
        self._delete(kind, _key(namespace, name), record)
        _finish(fault)

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """POST pods/<name>/binding: what a scheduler does. Refused for bound, gated and deleted pods."""
        fault = await self._begin(Request("bind", kinds.POD, namespace, name, "binding", node))
        record = self._existing(kinds.POD, name, namespace)
        spec = record.raw["spec"]
        if spec.get("nodeName"):
            raise Conflict(f"bind pod {namespace}/{name}: pod is already assigned to node {spec['nodeName']}")
        if spec.get("schedulingGates"):
            raise Conflict(f"bind pod {namespace}/{name}: pod has non-empty .spec.schedulingGates")
        if "deletionTimestamp" in record.raw["metadata"]:
            raise Conflict(f"bind pod {namespace}/{name}: pod is being deleted, cannot be assigned to a host")
        status = record.raw.get("status") or {}
        others = [condition for condition in status.get("conditions") or () if condition["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.timestamp()}
        bound = {
            **record.raw,
            "spec": {**spec, "nodeName": node},
            "status": {**status, "conditions": [*others, scheduled]},
        }
        self._commit(kinds.POD, _key(namespace, name), record, bound)
        _finish(fault)

    async def close(self) -> None:
        self._closed = True
        self.close_watches()

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _begin(self, request: Request) -> _Fault | None:
        """Counts, yields to other tasks as a real request does, and raises a planned fault, or returns one for `_finish`."""
        self.requests[request.label] += 1
        await asyncio.sleep(0)
        if self._closed:
            raise Unavailable(f"{request.label}: the cluster is closed")
        if request.kind not in self._served:
            raise NotFound(f"{request.label}: the server could not find the requested resource")
        if request.kind.namespaced and not request.namespace and (request.is_write or request.verb == "get"):
            raise Invalid(f"{request.label} {request.name}: a {request.kind.name} lives in a namespace; none was given")
        for hook in self.hooks:
            await hook(request)
        for fault in self._faults:
            if fault.matches(request):
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                if fault.applied:
                    return fault
                raise fault.error
        return None

    def _table(self, kind: Kind[Any]) -> Table:
        return self._tables.setdefault((kind.group, kind.plural), Table(self._history))

    def _existing(self, kind: Kind[Any], name: str, namespace: str) -> Record:
        record = self._table(kind).objects.get(_key(namespace, name))
        if record is None:
            raise NotFound(f'{kind.plural} "{_key(namespace, name)}" not found')
        return record

    def _target_namespace(self, kind: Kind[Any], meta: Raw, namespace: str) -> str:
        if not kind.namespaced:
            meta.pop("namespace", None)
            return ""
        space = namespace or str(meta.get("namespace", ""))
        if meta.setdefault("namespace", space) != space:
            raise Invalid(
                f"create {kind.name}: the namespace of the object ({meta['namespace']}) does not match the namespace on "
                f"the request ({space})"
            )
        return space

    def _read(self, kind: Kind[T], record: Record) -> T:
        try:
            return record.read(kind)
        except msgspec.ValidationError as error:
            raise Invalid(f"{kind.name} {record.raw['metadata']['name']}: {error}") from None

    def _store_update(self, kind: Kind[T], key: str, before: Record, raw: Raw) -> T:
        if raw == before.raw:
            return self._read(kind, before)
        if "deletionTimestamp" in raw["metadata"] and not raw["metadata"].get("finalizers"):
            return self._read(kind, self._remove(kind, key, before, raw))
        return self._read(kind, self._commit(kind, key, before, raw, check=True))

    def _commit(self, kind: Kind[Any], key: str, before: Record | None, raw: Raw, *, check: bool = False) -> Record:
        record = Record(_with_version(raw, self._newest + 1), self._newest + 1)
        if check:
            self._read(kind, record)
        self._newest += 1
        self._uids.add(raw["metadata"]["uid"])
        for owner in _owners(raw):
            self._dependents.setdefault(owner, {})[kind, key] = None
        self._table(kind).apply(key, Change(self._newest, before, record))
        return record

    def _delete(self, kind: Kind[Any], key: str, record: Record) -> None:
        meta = record.raw["metadata"]
        if not meta.get("finalizers"):
            self._remove(kind, key, record, record.raw)
        elif "deletionTimestamp" not in meta:
            marked = {**meta, "deletionTimestamp": self.timestamp(), "deletionGracePeriodSeconds": 0}
            self._commit(kind, key, record, {**record.raw, "metadata": marked})

    def _remove(self, kind: Kind[Any], key: str, before: Record, raw: Raw) -> Record:
        self._newest += 1
        last = Record(_with_version(raw, self._newest), self._newest)
        self._table(kind).apply(key, Change(self._newest, before, last, removed=True))
        self._uids.discard(raw["metadata"]["uid"])
        self._collect_dependents(raw["metadata"]["uid"])
        return last

    def _collect_dependents(self, gone: str) -> None:
        """What the garbage collector does in the background: an object goes with the last of its owners."""
        for kind, key in self._dependents.pop(gone, {}):
            record = self._table(kind).objects.get(key)
            if record is None:
                continue
            owners = _owners(record.raw)
            if gone in owners and not any(owner in self._uids for owner in owners):
                self._delete(kind, key, record)

    def _set_priority(self, raw: Raw) -> None:
        """The Priority admission plugin: `spec.priority` from the named class, else the global default, else 0."""
        spec = raw["spec"]
        classes = [record.raw for record in self._table(kinds.PRIORITY_CLASS).objects.values()]
        wanted = spec.get("priorityClassName")
        for priority_class in classes:
            if priority_class["metadata"]["name"] == wanted if wanted else priority_class.get("globalDefault"):
                spec["priorityClassName"] = priority_class["metadata"]["name"]
                spec["priority"] = int(priority_class.get("value", 0))
                return
        if wanted:
            raise Invalid(f"create Pod {raw['metadata']['name']}: no PriorityClass with name {wanted} was found")
        spec.setdefault("priority", 0)

    def timestamp(self) -> str:
        """Now, as objects carry it."""
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


def _key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _owners(raw: Raw) -> list[str]:
    return [str(owner.get("uid")) for owner in raw["metadata"].get("ownerReferences") or ()]


def _with_version(raw: Raw, version: int) -> Raw:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}


def _finish(fault: _Fault | None) -> None:
    if fault is not None:
        raise fault.error


def _predicate(kind: Kind[Any], namespace: str, label_selector: str, field_selector: str) -> Predicate:
    try:
        labels, fields = label_predicate(label_selector), field_predicate(field_selector, kind.plural)
    except InvalidSelector as error:
        raise Invalid(f"list {kind.plural}: {error}") from None

    def matches(raw: Mapping[str, Any]) -> bool:
        inside = not namespace or raw["metadata"].get("namespace") == namespace
        return inside and labels(raw) and fields(raw)

    return matches


def _event(kind: Kind[T], event: Any, record: Record) -> WatchEvent[T] | Broken:
    if event == "BOOKMARK":
        version = str(record.version)
        bookmark = msgspec.convert({"metadata": {"resourceVersion": version}}, Object)
        return WatchEvent("BOOKMARK", cast("T", bookmark))
    try:
        return WatchEvent(event, record.read(kind))
    except msgspec.ValidationError as error:
        return Broken(event, record.metadata_only(kind), str(error))


def _patched(kind: Kind[Any], raw: Raw, patch: Body | Sequence[Body], patch_type: PatchType) -> Raw:
    if patch_type == JSON:
        if isinstance(patch, Mapping):
            raise Invalid(f"patch {kind.name}: a JSON patch is a list of operations")
        try:
            result = patches.json_patch(raw, patch)
        except patches.PatchError as error:
            raise Invalid(f"patch {kind.name} {raw['metadata']['name']}: {error}") from None
    elif isinstance(patch, Mapping):
        result = patches.apply_patch(raw, patch) if patch_type == APPLY else patches.merge_patch(raw, patch)
    else:
        raise Invalid(f"patch {kind.name}: a {patch_type} patch is an object")
    if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
        raise Invalid(f"patch {kind.name} {raw['metadata']['name']}: metadata is required")
    return result
