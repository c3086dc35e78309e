"""The verbs of the memory cluster: checks, changes and answers of each request. See the package."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, Unpack, cast

import msgspec

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.embedded.api_server import eviction, rules
from hami_dra.kube.embedded.api_server.history import Record
from hami_dra.kube.embedded.api_server.requests import Admission, Request, default_kinds
from hami_dra.kube.embedded.api_server.state import MemoryState, object_key
from hami_dra.kube.protocol import (
    AlreadyExists,
    Body,
    Broken,
    Conflict,
    Invalid,
    Listing,
    NotFound,
    Scope,
    ServerVersion,
    Unavailable,
    WatchEvent,
)
from hami_dra.kube.selectors import InvalidSelector, Predicate, field_predicate, label_predicate

T = TypeVar("T", bound=Object)
Raw = dict[str, Any]

DEFAULT_VERSION: Final = ServerVersion(1, 37, "v1.37.1")


class MemoryCluster:
    """An API server in memory.

    `served`: the kinds offered (default: by version). `history`: changes per resource that a watch
    may resume from. `graceful`: a deleted pod of a node stays until its kubelet deletes it
    without grace.
    """

    def __init__(
        self,
        version: ServerVersion = DEFAULT_VERSION,
        served: Iterable[Kind[Any]] | None = None,
        *,
        history: int = 10_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seed: int = 0,
        graceful: bool = False,
    ) -> None:
        self._state = MemoryState(history, now, seed, graceful=graceful)
        self.admission: list[Callable[[Admission], Awaitable[Raw]]] = []
        """Mutating admission, in order: each returns the object to continue with, or raises a
        ClusterError to refuse it.
        """
        self._version = version
        self._served = frozenset(kind.path() for kind in (default_kinds(version) if served is None else served))
        self._closed = False

    # --- reading ----------------------------------------------------------------------------------

    async def version(self) -> ServerVersion:
        return self._version

    async def serves(self, kind: Kind[T]) -> bool:
        return kind.path() in self._served

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        record = await self._get(kind, name, namespace)
        return _read(kind, record)

    async def get_raw(self, kind: Kind[T], name: str, namespace: str = "") -> Raw:
        record = await self._get(kind, name, namespace)
        return cast("Raw", msgspec.json.decode(record.encoded(kind)))

    async def _get(self, kind: Kind[T], name: str, namespace: str) -> Record:
        await self._begin(Request("get", kind, namespace, name))
        return self._state.existing(kind, object_key(namespace, name))

    async def list(self, kind: Kind[T], **scope: Unpack[Scope]) -> Listing[T]:
        predicate = await self._selected("list", kind, scope)
        items: list[T] = []
        broken: list[Broken] = []
        for _, record in sorted(self._state.table(kind).objects.items()):
            if not predicate(record.raw):
                continue
            found, known, problem = record.shown(kind)
            if found is not None:
                # Items of a list carry no apiVersion and kind, as on the real server.
                items.append(msgspec.structs.replace(found, api_version="", kind=""))
            if problem:
                broken.append(Broken("ADDED", known, problem))
        return Listing(tuple(items), str(self._state.newest), tuple(broken))

    async def resource_version(self, kind: Kind[T], **scope: Unpack[Scope]) -> str:
        await self._selected("list", kind, scope)
        return str(self._state.newest)

    async def watch(
        self, kind: Kind[T], *, resource_version: str, **scope: Unpack[Scope]
    ) -> AsyncGenerator[WatchEvent[T] | Broken]:
        predicate = await self._selected("watch", kind, scope)
        table = self._state.table(kind)
        if resource_version in ("", "0"):
            watcher = table.watcher(self._state.newest, self._state.newest, predicate)
            watcher.pending.extend(("ADDED", record) for record in table.objects.values() if predicate(record.raw))
        else:
            watcher = table.watcher(int(resource_version), self._state.newest, predicate)
        try:
            while True:
                while watcher.pending:
                    event, record = watcher.pending.popleft()
                    yield _event(kind, event, record)
                if isinstance(watcher.end, Exception):
                    raise watcher.end
                if watcher.end:
                    return
                watcher.wake.clear()
                await watcher.wake.wait()
        finally:
            table.watchers.remove(watcher)

    async def _selected(self, verb: str, kind: Kind[Any], scope: Scope) -> Predicate:
        """Begin a request about several objects, and return which. Raises ClusterError."""
        namespace = scope.get("namespace", "")
        await self._begin(Request(verb, kind, namespace, ""))
        try:
            labels = label_predicate(scope.get("label_selector", ""))
            fields = field_predicate(scope.get("field_selector", ""), kind.plural)
        except InvalidSelector as error:
            raise Invalid(f"list {kind.plural}: {error}") from None

        def matches(raw: Mapping[str, Any]) -> bool:
            inside = not namespace or raw["metadata"].get("namespace") == namespace
            return inside and labels(raw) and fields(raw)

        return matches

    # --- writing ----------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], body: Body, *, namespace: str = "", dry_run: bool = False) -> T:
        raw = rules.without_nulls(body)
        meta = raw.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise Invalid(f"create {kind.name}: metadata is not an object")
        space = self._target_namespace(kind, meta, namespace)
        await self._begin(Request("create", kind, space, str(meta.get("name", "")), body=raw))
        if meta.get("resourceVersion"):
            raise Invalid(f"create {kind.name}: resourceVersion should not be set on objects to be created")
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise Invalid(f"create {kind.name}: metadata.name or metadata.generateName is required")
            meta["name"] = meta["generateName"] + self._state.new_suffix()
        for admit in self.admission:
            raw = await admit(Admission(kind, space, raw, dry_run))
        _check_shape(kind, raw)
        raw = rules.created(kind, raw)
        if kind.plural == "pods":
            self._set_priority(raw)
        raw["metadata"] = {key: value for key, value in raw["metadata"].items() if key != "deletionTimestamp"} | {
            "uid": self._state.new_uid(),
            "creationTimestamp": self.timestamp(),
            "generation": 1,
        }
        key = object_key(space, raw["metadata"]["name"])
        if key in self._state.table(kind).objects:
            raise AlreadyExists(f'create {kind.name}: {kind.plural} "{key}" already exists')
        return _read(kind, Record(raw, 0)) if dry_run else self._commit(kind, key, None, raw)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Body,
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = "",
    ) -> T:
        await self._begin(Request("patch", kind, namespace, name, subresource, patch))
        if subresource and not (subresource == "status" and rules.has_status(kind)):
            raise NotFound(f"patch {kind.plural}/{subresource}: the server could not find the requested resource")
        key = object_key(namespace, name)
        before = self._state.table(kind).objects.get(key)
        if before is None and manager and not subresource:
            return await self._create_by_apply(kind, name, namespace, patch)
        if before is None:
            raise NotFound(f'patch {kind.name}: {kind.plural} "{key}" not found')
        merge = rules.apply_patch if manager else rules.merge_patch
        merged = merge(before.raw, patch)
        meta = merged.get("metadata")
        if not isinstance(meta, dict):
            raise Invalid(f"patch {kind.name} {name}: metadata is required")
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
        _check_shape(kind, merged)
        return self._store_update(kind, key, before, rules.updated(kind, before.raw, merged, subresource))

    async def _create_by_apply(self, kind: Kind[T], name: str, namespace: str, patch: Body) -> T:
        if (patch.get("metadata") or {}).get("uid"):
            raise Conflict(f'apply {kind.name}: {kind.plural} "{name}" with that uid is gone')
        body = rules.merge_patch(patch, {"metadata": {"name": name}})
        return await self.create(kind, body, namespace=namespace)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        await self._begin(Request("delete", kind, namespace, name))
        record = self._state.existing(kind, object_key(namespace, name))
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
        self._state.delete(kind, object_key(namespace, name), record, grace_period_seconds)

    async def evict(self, name: str, namespace: str, *, uid: str = "", grace_period_seconds: int | None = None) -> None:
        await self._begin(Request("evict", kinds.POD, namespace, name, "eviction"))
        key = object_key(namespace, name)
        pod = self._state.existing(kinds.POD, key)
        budgets = self._state.table(kinds.POD_DISRUPTION_BUDGET).objects
        now = self.timestamp()
        if budget := eviction.deciding_budget(pod.raw, [record.raw for record in budgets.values()]):
            # As upstream, before the UID is compared.
            protecting = object_key(namespace, budget["metadata"]["name"])
            charged = eviction.charged(budget, pod.raw, now)
            self._commit(kinds.POD_DISRUPTION_BUDGET, protecting, budgets[protecting], charged)
        if uid and uid != pod.raw["metadata"]["uid"]:
            raise Conflict(
                f"evict Pod {key}: the UID in the precondition ({uid}) does not match the UID in record "
                f"({pod.raw['metadata']['uid']}). The object might have been deleted and then recreated"
            )
        self._store_update(kinds.POD, key, pod, eviction.condemned(pod.raw, now))
        if condemned := self._state.find(kinds.POD, key):
            self._state.delete(kinds.POD, key, condemned, grace_period_seconds)

    async def bind(self, name: str, namespace: str, node: str, *, uid: str = "") -> None:
        """Bind a pod as a scheduler does: POST pods/<name>/binding.

        Raises Conflict for bound, gated and deleted pods and for another UID.
        """
        await self._begin(Request("bind", kinds.POD, namespace, name, "binding", node))
        record = self._state.existing(kinds.POD, object_key(namespace, name))
        spec = record.raw["spec"]
        if uid and uid != record.raw["metadata"]["uid"]:
            raise Conflict(f"bind pod {namespace}/{name}: Precondition failed: UID in precondition: {uid}")
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
        bound["status"].pop("nominatedNodeName", None)  # ClearingNominatedNodeNameAfterBinding
        self._commit(kinds.POD, object_key(namespace, name), record, bound)

    async def close(self) -> None:
        self._closed = True
        for table in self._state.tables():
            for watcher in table.watchers:
                watcher.finish(True)

    # --- beyond the verbs --------------------------------------------------------------------------------------------

    @property
    def has_undelivered_events(self) -> bool:
        """Whether a watcher has not taken yet what was written."""
        return any(watcher.pending for table in self._state.tables() for watcher in table.watchers)

    def knows(self, uid: str) -> bool:
        return self._state.knows(uid)

    def timestamp(self) -> str:
        """Now, by the cluster's clock, as objects carry it."""
        return self._state.timestamp()

    # --- internals --------------------------------------------------------------------------------

    async def _begin(self, request: Request) -> None:
        """Yield to other tasks, as a real request does, and check what holds for every request."""
        await asyncio.sleep(0)
        if self._closed:
            raise Unavailable(f"{request.label}: the cluster is closed")
        if request.kind.path() not in self._served:
            raise NotFound(f"{request.label}: the server could not find the requested resource")
        if request.kind.namespaced and not request.namespace and (request.is_write or request.verb == "get"):
            raise Invalid(f"{request.label} {request.name}: a {request.kind.name} lives in a namespace; none was given")

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

    def _store_update(self, kind: Kind[T], key: str, before: Record, raw: Raw) -> T:
        if raw == before.raw:
            return _read(kind, before)
        meta = raw["metadata"]
        if "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return _read(kind, self._state.remove(kind, key, before, raw))
        return self._commit(kind, key, before, raw)

    def _commit(self, kind: Kind[T], key: str, before: Record | None, raw: Raw) -> T:
        """Store the object and return its Struct. Raises Invalid, without storing, if it does not fit."""
        record = self._state.next_record(raw)
        result = _read(kind, record)
        self._state.store(kind, key, before, record)
        return result

    def _set_priority(self, raw: Raw) -> None:
        """Apply the Priority admission plugin.

        Sets `spec.priority` from the named class, else the global default, else 0.
        """
        spec = raw["spec"]
        classes = [record.raw for record in self._state.table(kinds.PRIORITY_CLASS).objects.values()]
        wanted = spec.get("priorityClassName")
        for priority_class in classes:
            if priority_class["metadata"]["name"] == wanted if wanted else priority_class.get("globalDefault"):
                spec["priorityClassName"] = priority_class["metadata"]["name"]
                spec["priority"] = int(priority_class.get("value", 0))
                return
        if wanted:
            raise Invalid(f"create Pod {raw['metadata']['name']}: no PriorityClass with name {wanted} was found")
        spec.setdefault("priority", 0)


def _check_shape(kind: Kind[Any], raw: Raw) -> None:
    """Check the structure that rules and defaults rely on. The real server also decodes before it validates."""
    _read(kind, Record(raw, 0))


def _read(kind: Kind[T], record: Record) -> T:
    try:
        return record.read(kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"{kind.name} {record.raw['metadata']['name']}: {error}") from None


def _event(kind: Kind[T], event: Any, record: Record) -> WatchEvent[T] | Broken:
    if event == "BOOKMARK":
        version = str(record.version)
        bookmark = msgspec.convert({"metadata": {"resourceVersion": version}}, Object)
        return WatchEvent("BOOKMARK", cast("T", bookmark))
    found, known, problem = record.shown(kind)
    return Broken(event, known, problem) if found is None else WatchEvent(event, found, problem)
