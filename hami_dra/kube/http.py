"""A real API server over HTTP: aiohttp for transport, msgspec to decode bytes into Structs.

Used by every program that runs against Kubernetes; `connect` selects the configuration. One
HttpCluster belongs to one event loop. `transport` has the deadlines, `decoding` the decoding and
the errors, `credentials` our identity.

Why not the official client's transport: its typed models cost 15 times more, and its watch cannot
carry ResourceClaims (docs/design/libraries.md).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack

import msgspec
from msgspec import Struct

from hami_dra.api.kinds import POD, Kind
from hami_dra.api.meta import Object
from hami_dra.kube import credentials, metadata_put, protocol
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.credentials import Access
from hami_dra.kube.decoding import Page, SpecChanged, read_json, read_json_page, read_object, read_page
from hami_dra.kube.http_watch import Watches
from hami_dra.kube.own_writes import OwnWrites
from hami_dra.kube.transport import Timeouts, Transport

FIRST: Final = 25
MOST: Final = 500
"""The page size of kubectl and client-go."""
PAGE_BYTES: Final = 2 << 20


class PageSize(Struct):
    """The size of the next page; call `learn` after each page. A tenant can create a pod of a megabyte,
    and five hundred of them in one answer exceed the controller's memory limit.
    """

    limit: int = FIRST

    def learn(self, count: int, size: int) -> None:
        """`count` objects came in a body of `size` bytes. The next page is at most twice as long as this one was to be.

        >>> pages = PageSize()
        >>> pages.learn(25, 100_000)
        >>> pages.limit
        50
        >>> pages.learn(50, 12_500_000)
        >>> pages.limit
        8
        """
        if count:
            self.limit = max(1, min(MOST, 2 * self.limit, PAGE_BYTES * count // max(size, 1)))


T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

_MERGE_PATCH: Final = "application/merge-patch+json"
_APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML


def connect(
    kubeconfig: str | None = None, context: str | None = None, *, timeouts: Timeouts | None = None
) -> "HttpCluster":
    """Connect with the given kubeconfig, else the pod's service account, else the default kubeconfig.

    The default is $KUBECONFIG or ~/.kube/config. Raises ConfigError.
    """
    return HttpCluster(credentials.chosen_access(kubeconfig, context), timeouts=timeouts)


class HttpCluster:
    """The `Cluster` protocol over HTTP. Close it when done."""

    def __init__(self, access: Access, *, timeouts: Timeouts | None = None) -> None:
        self.namespace = access.namespace
        """Namespace of the service account or of the kubeconfig's context."""
        self._timeouts = timeouts or Timeouts()
        self._transport = Transport(access, self._timeouts)
        self._own_writes = OwnWrites()
        self._watches = Watches(self._transport, self._timeouts, self._own_writes)

    # --- reading ----------------------------------------------------------------------------------

    async def version(self) -> protocol.ServerVersion:
        answer = _json(await self._transport.read("get version", "/version", {}), "get version")
        try:
            # managed clusters report "37+"
            major, minor = (int(re.match(r"\d+", str(answer[part])).group()) for part in ("major", "minor"))  # type: ignore[union-attr]
        except (KeyError, AttributeError, TypeError):
            raise protocol.Unavailable("get version: the answer names no major and minor version") from None
        return protocol.ServerVersion(major, minor, str(answer.get("gitVersion", "")))

    async def serves(self, kind: Kind[T]) -> bool:
        path = kind.path().rpartition("/")[0]
        try:
            answer = _json(await self._transport.read(f"get {path}", path, {}), f"get {path}")
        except protocol.NotFound:
            return False
        return any(resource.get("name") == kind.plural for resource in answer.get("resources") or ())

    async def read_text(self, path: str) -> str:
        """Return the text at a path that is not an object, such as `/metrics`."""
        return (await self._transport.read(f"get {path}", path, {}, accept="text/plain")).decode(errors="replace")

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        what, path = _target("get", kind, namespace, name)
        return _object(kind, await self._transport.read(what, path, {}), what)[0]

    async def get_raw(self, kind: Kind[T], name: str, namespace: str = "") -> dict[str, Any]:
        what, path = _target("get", kind, namespace, name)
        return _json(await self._transport.read(what, path, {}), what)

    async def list(self, kind: Kind[T], **scope: Unpack[protocol.Scope]) -> protocol.Listing[T]:
        self._own_writes.forget(kind)
        pages = await self._pages(kind, scope, partial(read_page, kind))
        broken = [each for page in pages for each in page.broken]
        return protocol.Listing(tuple(_items(pages)), pages[-1].metadata.resource_version, tuple(broken))

    async def resource_version(self, kind: Kind[T], **scope: Unpack[protocol.Scope]) -> str:
        path, query = _scoped(kind, scope)
        what = f"list {kind.plural}"
        accept = protocol.METADATA_LIST
        page = _json(await self._transport.read(what, path, query | {"limit": "1"}, accept=accept), what)
        version = (page.get("metadata") or {}).get("resourceVersion")
        if not version:
            raise protocol.Unavailable(f"{what}: the answer has no resourceVersion")
        return str(version)

    async def list_raw(
        self,
        kind: Kind[T],
        *,
        on_page: Callable[[int, int], None] = lambda _read, _left: None,
        **scope: Unpack[protocol.Scope],
    ) -> Sequence[dict[str, Any]]:
        """Return all objects as JSON, including fields without a Struct.

        Items carry neither kind nor apiVersion. `on_page` is called after each page with the number
        of objects read and, if the server reports it, left.
        """
        return _items(await self._pages(kind, scope, read_json_page, on_page))

    async def _pages(
        self,
        kind: Kind[T],
        scope: protocol.Scope,
        read: Callable[[bytes], Page[Item]],
        on_page: Callable[[int, int], None] = lambda _read, _left: None,
    ) -> Sequence[Page[Item]]:
        what = f"list {kind.plural}"
        path, query = _scoped(kind, scope)
        limits: PageSize | None = PageSize()
        pages: list[Page[Item]] = []
        token = ""
        while True:
            limit = {} if limits is None else {"limit": str(limits.limit)}
            position = {"continue": token} if token else {}
            try:
                body = await self._transport.read(what, path, {**query, **limit, **position})
            except protocol.Gone:
                if limits is None:
                    raise
                # The snapshot of the pages was compacted: list again, without pages.
                limits, pages, token = None, [], ""
                continue
            try:
                page = read(body)
            except msgspec.DecodeError as error:
                raise protocol.Unavailable(f"{what}: the answer is not a list: {error}") from None
            if limits is not None:
                limits.learn(max(len(page.items or ()), len(page.broken)), len(body))
            pages.append(page)
            on_page(sum(len(each.items or ()) for each in pages), page.metadata.remaining_item_count or 0)
            token = page.metadata.continue_
            if not token:
                return pages

    def watch(
        self, kind: Kind[T], *, resource_version: str, **scope: Unpack[protocol.Scope]
    ) -> AsyncGenerator[protocol.WatchEvent[T] | protocol.Broken]:
        path, query = _scoped(kind, scope)
        return self._watches.events(kind, path, query | {"resourceVersion": resource_version})

    async def watch_list(
        self, kind: Kind[T], **scope: Unpack[protocol.Scope]
    ) -> tuple[protocol.Listing[T], AsyncGenerator[protocol.WatchEvent[T] | protocol.Broken]]:
        self._own_writes.forget(kind)
        return await self._watches.with_list(kind, *_scoped(kind, scope))

    # --- writing ----------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], body: protocol.Body, *, namespace: str = "", dry_run: bool = False) -> T:
        meta = body.get("metadata") or {}
        what = f"create {kind.name} {meta.get('name') or meta.get('generateName', '')}"
        _, path = _target("create", kind, namespace or str(meta.get("namespace", "")), "")
        document = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = await self._transport.write("POST", what, path, {"dryRun": "All"} if dry_run else {}, document)
        return _object(kind, answer, what)[0]

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: protocol.Body,
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = "",
    ) -> T:
        what, path = _target("patch", kind, namespace, name, subresource)
        document, query, content_type = patch, {"fieldManager": "hami-dra"}, _MERGE_PATCH
        if manager:
            document = {"apiVersion": kind.api_version, "kind": kind.name, **patch}
            query, content_type = {"fieldManager": manager, "force": "true"}, _APPLY_PATCH
        asked_at = boot_clock()
        try:
            answer = await self._transport.write("PATCH", what, path, query, document, content_type=content_type)
        except SpecChanged:
            if manager or subresource or not metadata_put.can_apply(document):
                raise
            answer = await self._patch_verbatim(what, path, query, document, asked_at)
        found, problem = _object(kind, answer, what)
        self._own_writes.keep(kind, found, problem)
        return found

    async def _patch_verbatim(
        self, what: str, path: str, query: Mapping[str, str], patch: protocol.Body, asked_at: float
    ) -> bytes:
        """Retry, once and within the deadline, a metadata patch that the server refuses as a spec change.

        The server rewrites the spec's JSON in any patch; see `metadata_put`.
        """
        try:
            async with asyncio.timeout(asked_at + self._timeouts.write - boot_clock()):
                stored = await self._transport.read(what, path, {}, accept=metadata_put.CONTENT_TYPE)
                body = metadata_put.apply(stored, patch, what)
                return await self._transport.write(
                    "PUT", what, path, query, body, content_type=metadata_put.CONTENT_TYPE, asked_at=asked_at
                )
        except TimeoutError:
            raise protocol.Unavailable(f"{what}: no answer within {self._timeouts.write} s") from None

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
        what, path = _target("delete", kind, namespace, name)
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {key: value for key, value in conditions.items() if value},
        }
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._transport.write("DELETE", what, path, {}, options)

    async def evict(self, name: str, namespace: str, *, uid: str = "", grace_period_seconds: int | None = None) -> None:
        what, path = _target("evict", POD, namespace, name, "eviction")
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._transport.write("POST", what, path, {}, eviction)

    async def close(self) -> None:
        await self._transport.close()


def _items(pages: Iterable[Page[Item]]) -> list[Item]:
    return [item for page in pages for item in page.items or ()]


def _target(verb: str, kind: Kind[Any], namespace: str, name: str, subresource: str = "") -> tuple[str, str]:
    """Return the request's name in errors, and its path."""
    what = f"{verb} {kind.name} {f'{namespace}/' if namespace else ''}{name}" + (
        f" {subresource}" if subresource else ""
    )
    if kind.namespaced and not namespace:
        raise protocol.Invalid(f"{what}: a {kind.name} lives in a namespace; none was given")
    return what, kind.path(namespace, name, subresource)


def _scoped(kind: Kind[Any], scope: protocol.Scope) -> tuple[str, dict[str, str]]:
    """Return the path of these objects, and the query that selects them."""
    both = {"labelSelector": scope.get("label_selector"), "fieldSelector": scope.get("field_selector")}
    return kind.path(scope.get("namespace", "")), {key: value for key, value in both.items() if value}


def _object(kind: Kind[T], body: bytes, what: str) -> tuple[T, str]:
    """Return the object, and what of it is unreadable: that is marked in it."""
    try:
        return read_object(kind, body)
    except msgspec.ValidationError as error:
        raise protocol.Invalid(f"{what}: done, but the answer is not a readable {kind.name}: {error}") from None
    except msgspec.DecodeError:
        raise protocol.Unavailable(f"{what}: the answer is not JSON") from None


def _json(body: bytes, what: str) -> dict[str, Any]:
    try:
        return read_json(body)
    except msgspec.DecodeError:
        raise protocol.Unavailable(f"{what}: the answer is not a JSON object") from None
