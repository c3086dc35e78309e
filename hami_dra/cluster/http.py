"""A real API server over HTTP: aiohttp for transport, raw bytes into Structs by msgspec.

Called by whoever runs against Kubernetes; `connect` picks the configuration. One HttpCluster belongs to one event loop.
Reads are repeated when the server is busy or away. A write is sent once (again only after a 429, which says it was not
carried out, or after renewed credentials) and is over, one way or the other, within `write_timeout` seconds: leader election counts on that bound.

Why not the official client's transport: its typed models cost 15 times more, and its watch cannot carry ResourceClaims
(docs/libraries.md).
"""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.cluster import credentials
from hami_dra.cluster.answers import (
    Page,
    Status,
    error_of,
    read_event,
    read_object,
    read_page,
    read_status,
    split_lines,
)
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.credentials import Access
from hami_dra.cluster.protocol import (
    APPLY,
    JSON,
    MERGE,
    Body,
    Broken,
    ConfigError,
    Gone,
    Invalid,
    Listing,
    NotFound,
    PatchType,
    ServerVersion,
    Unavailable,
    WatchEvent,
)

T = TypeVar("T", bound=Object)

PAGE: Final = 500
MOST_WRITE_SECONDS: Final = 5.0
_CONTENT_TYPES: Final[Mapping[PatchType, str]] = {
    MERGE: "application/merge-patch+json",
    JSON: "application/json-patch+json",
    APPLY: "application/apply-patch+yaml",  # JSON is YAML
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `watch_silence`: bookmarks come about once a minute, so a longer silence is a dead connection."""

    connect: float = 5.0
    read: float = 60.0
    write: float = MOST_WRITE_SECONDS
    watch: float = 300.0
    watch_silence: float = 150.0
    attempts: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.write <= MOST_WRITE_SECONDS:
            raise ConfigError(f"write timeout {self.write} s: it must be above 0 and at most {MOST_WRITE_SECONDS} s")


def connect(kubeconfig: str | None = None, context: str | None = None) -> "HttpCluster":
    """The named kubeconfig; else the pod's own service account; else $KUBECONFIG or ~/.kube/config. Raises ConfigError."""
    if kubeconfig is None and context is None and credentials.is_in_cluster():
        return HttpCluster.in_cluster()
    return HttpCluster.from_kubeconfig(kubeconfig, context)


class HttpCluster:
    """The `Cluster` protocol over HTTP. Close it when done."""

    def __init__(self, access: Access, *, timeouts: Timeouts | None = None, user_agent: str = "hami-dra") -> None:
        self.namespace = access.namespace
        """Of the service account or the kubeconfig's context."""
        self.write_timeout = (timeouts or Timeouts()).write
        self._access = access
        self._timeouts = timeouts or Timeouts()
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_kubeconfig(
        cls, path: str | None = None, context: str | None = None, *, timeouts: Timeouts | None = None
    ) -> "HttpCluster":
        return cls(credentials.from_kubeconfig(path, context), timeouts=timeouts)

    @classmethod
    def in_cluster(cls, *, timeouts: Timeouts | None = None) -> "HttpCluster":
        return cls(credentials.in_cluster(), timeouts=timeouts)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> ServerVersion:
        answer = _json(await self._read("get version", "/version", {}), "get version")
        try:
            # managed clusters write "37+"
            major, minor = (int(re.match(r"\d+", str(answer[part])).group()) for part in ("major", "minor"))  # type: ignore[union-attr]
        except (KeyError, AttributeError, TypeError):
            raise Unavailable("get version: the answer names no major and minor version") from None
        return ServerVersion(major, minor, str(answer.get("gitVersion", "")))

    async def serves(self, kind: Kind[T]) -> bool:
        path = kind.path().rpartition("/")[0]
        try:
            answer = _json(await self._read(f"get {path}", path, {}), f"get {path}")
        except NotFound:
            return False
        return any(resource.get("name") == kind.plural for resource in answer.get("resources") or ())

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        what, path = _target("get", kind, namespace, name)
        return _object(kind, await self._read(what, path, {}), what)

    async def get_raw(self, kind: Kind[T], name: str, namespace: str = "") -> dict[str, Any]:
        what, path = _target("get", kind, namespace, name)
        return _json(await self._read(what, path, {}), what)

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        query = _selectors(label_selector, field_selector)
        try:
            return await self._pages(kind, namespace, {**query, "limit": str(PAGE)})
        except Gone:
            # the snapshot that the pages came from is compacted away: once more, in one piece
            return await self._pages(kind, namespace, query)

    async def _pages(self, kind: Kind[T], namespace: str, query: dict[str, str]) -> Listing[T]:
        what = f"list {kind.plural}"
        items: list[T] = []
        broken: list[Broken] = []
        token = ""
        while True:
            body = await self._read(what, kind.path(namespace), {**query, "continue": token} if token else query)
            try:
                page: Page[T] = read_page(kind, body)
            except msgspec.DecodeError as error:
                raise Unavailable(f"{what}: the answer is no list: {error}") from None
            items.extend(page.items or ())
            broken.extend(page.broken)
            token = page.metadata.continue_
            if not token:
                return Listing(tuple(items), page.metadata.resource_version, tuple(broken))

    async def watch(
        self,
        kind: Kind[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[WatchEvent[T] | Broken]:
        what = f"watch {kind.plural}"
        seconds = self._timeouts.watch * (1 + random.random())  # noqa: S311 (spreads the reconnects of many clients)
        query = _selectors(label_selector, field_selector) | {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect, sock_read=self._timeouts.watch_silence
        )
        pending = bytearray()
        async with self._response("GET", what, kind.path(namespace), query, timeout=timeout) as response:
            if response.status != 200:
                body = await response.read()
                raise error_of(response.status, read_status(body), what)
            async for chunk in response.content.iter_any():
                for line in split_lines(pending, chunk):
                    yield read_event(kind, line)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], body: Body, *, namespace: str = "", dry_run: bool = False) -> T:
        meta = body.get("metadata") or {}
        what = f"create {kind.name} {meta.get('name') or meta.get('generateName', '')}"
        _, path = _target("create", kind, namespace or str(meta.get("namespace", "")), "")
        document = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = await self._write("POST", what, path, {"dryRun": "All"} if dry_run else {}, document)
        return _object(kind, answer, what)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Body | Sequence[Body],
        *,
        namespace: str = "",
        subresource: str = "",
        patch_type: PatchType = MERGE,
        field_manager: str = "hami-dra",
        force: bool = False,
    ) -> T:
        what, path = _target("patch", kind, namespace, name, subresource)
        document: Any = patch
        if patch_type == APPLY and isinstance(patch, Mapping):
            document = {"apiVersion": kind.api_version, "kind": kind.name, **patch}
        query = {"fieldManager": field_manager} | ({"force": "true"} if force else {})
        answer = await self._write("PATCH", what, path, query, document, content_type=_CONTENT_TYPES[patch_type])
        return _object(kind, answer, what)

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
        await self._write("DELETE", what, path, {}, options)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- transport ---------------------------------------------------------------------------------------------------

    async def _read(self, what: str, path: str, query: Mapping[str, str]) -> bytes:
        """GET, repeated while the server is busy or away."""
        backoff = Backoff(first=0.1, most=2.0)
        timeout = aiohttp.ClientTimeout(total=self._timeouts.read, sock_connect=self._timeouts.connect)
        while True:
            try:
                code, body, wait = await self._once("GET", what, path, query, timeout=timeout)
                if code < 300:
                    return body
                error = error_of(code, read_status(body), what)
                if not isinstance(error, Unavailable):
                    raise error
            except Unavailable as unavailable:
                error, wait = unavailable, 0.0
            if backoff.failures + 1 >= self._timeouts.attempts:
                raise error
            await asyncio.sleep(max(wait, backoff.next()))

    async def _write(
        self,
        method: str,
        what: str,
        path: str,
        query: Mapping[str, str],
        document: Any,
        *,
        content_type: str = "application/json",
    ) -> bytes:
        data = msgspec.json.encode(document)
        backoff = Backoff(first=0.1, most=2.0)
        try:
            # one deadline over all attempts: after it nothing of this write is under way any more
            async with asyncio.timeout(self._timeouts.write):
                while True:
                    code, body, wait = await self._once(method, what, path, query, data=data, content_type=content_type)
                    if code < 300:
                        return body
                    if code != 429:
                        raise error_of(code, read_status(body), what)
                    await asyncio.sleep(max(wait, backoff.next()))
        except TimeoutError:
            raise Unavailable(f"{what}: no answer within {self._timeouts.write} s") from None

    async def _once(
        self,
        method: str,
        what: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 (aiohttp's own)
        data: bytes | None = None,
        content_type: str = "",
    ) -> tuple[int, bytes, float]:
        """Status code, body, and how many seconds the server asks to wait. Raises Unavailable."""
        async with self._response(
            method, what, path, query, timeout=timeout, data=data, content_type=content_type
        ) as response:
            body = await response.read()
            return response.status, body, _retry_after(response, body)

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        what: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 (aiohttp's own)
        data: bytes | None = None,
        content_type: str = "",
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """One response; after a 401 the second, with renewed credentials. Transport errors become Unavailable."""
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        if content_type:
            headers["Content-Type"] = content_type
        options: dict[str, Any] = {"params": query, "data": data, "allow_redirects": False}
        if timeout is not None:
            options["timeout"] = timeout
        if self._access.server_name:
            options["server_hostname"] = self._access.server_name
        if self._access.proxy:
            options["proxy"] = self._access.proxy
        try:
            for renew in (False, True):
                if authorization := await self._access.identity.header(renew=renew):
                    headers["Authorization"] = authorization
                async with self._open_session().request(
                    method, self._access.server + path, headers=headers, **options
                ) as response:
                    if response.status == 401 and not renew:
                        continue
                    yield response
                    return
        except TimeoutError:
            raise Unavailable(f"{what}: no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            # only the type and system error: aiohttp's texts repeat the proxy with its password
            reason = getattr(error, "strerror", None) or ""
            raise Unavailable(f"{what}: {type(error).__name__} {reason}".rstrip()) from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # watches hold theirs for minutes; whoever calls bounds its own concurrency
                    ssl=self._access.tls if self._access.tls is not None else True,
                    keepalive_timeout=75.0,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect),
                auto_decompress=True,
                trust_env=False,
                read_bufsize=2**18,
            )
        return self._session


def _target(verb: str, kind: Kind[Any], namespace: str, name: str, subresource: str = "") -> tuple[str, str]:
    """What to call the request in errors, and its path."""
    what = f"{verb} {kind.name} {f'{namespace}/' if namespace else ''}{name}" + (
        f" {subresource}" if subresource else ""
    )
    if kind.namespaced and not namespace:
        raise Invalid(f"{what}: a {kind.name} lives in a namespace; none was given")
    return what, kind.path(namespace, name, subresource)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    both = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in both.items() if value}


def _object(kind: Kind[T], body: bytes, what: str) -> T:
    try:
        return read_object(kind, body)
    except msgspec.ValidationError as error:
        raise Invalid(f"{what}: done, but the answer is not a {kind.name} that can be read: {error}") from None
    except msgspec.DecodeError:
        raise Unavailable(f"{what}: the answer is no JSON") from None


def _json(body: bytes, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise Unavailable(f"{what}: the answer is no JSON object") from None


def _retry_after(response: aiohttp.ClientResponse, body: bytes) -> float:
    text = response.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    status = read_status(body) if response.status in (429, 503) else Status()
    return float(status.details.retry_after_seconds) if status.details else 0.0
