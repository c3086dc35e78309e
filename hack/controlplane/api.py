"""A tiny blocking Kubernetes client for the hands of an administrator: tests, fake nodes, `make
cluster`.

In: paths (`/api/v1/nodes`) or whole objects, plain dicts. Out: plain dicts, or `ApiError` with the
API server's status. Thread-safe; connections are kept and reused. It is deliberately independent of
the product's own client, so that a test does not judge that client by itself. Must not hide an
error or retry one (except a kept connection that went stale).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Object = dict[str, Any]
Texts = list[str]

_JSON: Final = "application/json"
_CONTENT_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_MOST_LEVELS: Final = 100
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|[^"{}\[\]]+')
_NETWORK_ERRORS: Final = (OSError, http.client.HTTPException)
_STALE: Final = (ConnectionError, ssl.SSLEOFError, http.client.RemoteDisconnected, http.client.CannotSendRequest)
"""What a connection says that the server closed while nobody used it."""


class ApiError(Exception):
    """An answer of the API server that is not a success; `status` is the HTTP code, `body` the Status object."""

    def __init__(self, method: str, path: str, status: int, body: Object) -> None:
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.message = str(body.get("message", ""))
        self.body = body
        super().__init__(f"{method} {path}: {status} {self.reason}: {self.message}")


class NotReached(Exception):
    """No answer: the API server is down or not listening yet."""


class Api:
    """Requests to one API server as one user (a bearer token)."""

    def __init__(
        self, url: str, ca_file: Path, token: str, *, timeout: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url, self._ca_file, self._token = url, ca_file, token
        address = urllib.parse.urlsplit(url)
        self._host, self._port = str(address.hostname), address.port
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", **(headers or {})}
        self._timeout = timeout
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()
        self._resources: dict[str, dict[str, tuple[str, bool]]] = {}

    def as_user(self, name: str, group: str = "", *, node: str = "") -> Api:
        """Return a client that impersonates a user; the caller, an administrator, closes it.

        `node`: where a ServiceAccount's token says that its pod runs.
        """
        headers = {"Impersonate-User": name}
        if group:
            headers["Impersonate-Group"] = group
        if node:
            key = urllib.parse.quote("authentication.kubernetes.io/node-name", safe="")
            headers[f"Impersonate-Extra-{key}"] = node
        return Api(self._url, self._ca_file, self._token, timeout=self._timeout, headers=headers)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- by path ---------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: str) -> Object:
        return self._request("GET", _with(path, query))

    def list(self, path: str, **query: str) -> list[Object]:
        """The items of a collection. Query keys as in the API: labelSelector, fieldSelector, resourceVersion."""
        items: list[Object] = self.get(path, **query)["items"]
        return items

    def create(self, path: str, body: Object, **query: str) -> Object:
        return self._request("POST", _with(path, query), body)

    def replace(self, path: str, body: Object, **query: str) -> Object:
        return self._request("PUT", _with(path, query), body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Object:
        """`kind` is merge, strategic, json (a list of operations) or apply (needs the query fieldManager)."""
        return self._request("PATCH", _with(path, query), body, _CONTENT_TYPES[kind])

    def delete(self, path: str, *, missing_ok: bool = True, **options: Any) -> Object:
        """Deletes an object or, with the path of a collection, all of it. `options` are those of DeleteOptions."""
        try:
            return self._request("DELETE", path, options or None)
        except ApiError as error:
            if error.status == 404 and missing_ok:
                return {}
            raise

    def text(self, path: str) -> str:
        """A page that is not JSON: /readyz, /metrics."""
        return self._raw("GET", path, None, "").decode()

    def watch(self, path: str, *, seconds: int = 300, **query: str) -> Iterator[Object]:
        """Events ({"type", "object"}) until the server ends the watch, at the latest after `seconds`."""
        connection = self._connect(timeout=seconds + 10)
        try:
            query = {"watch": "1", "timeoutSeconds": str(seconds), **query}
            connection.request("GET", _with(path, query), headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ApiError("WATCH", path, answer.status, _parse(answer.read()))
            for line in answer:
                yield _loads(line)
        except _NETWORK_ERRORS as error:
            raise NotReached(f"WATCH {path}: {error!r}") from error
        finally:
            connection.close()

    def wait_for(self, what: str, condition: Callable[[], Any], *, seconds: float = 60.0, every: float = 0.05) -> Any:
        """Polls until `condition()` is true and returns its value; a missing object counts as not yet."""
        deadline = time.monotonic() + seconds
        last = ""
        while time.monotonic() < deadline:
            try:
                if value := condition():
                    return value
            except ApiError as error:
                if error.status != 404:
                    raise
                last = f" ({error})"
            time.sleep(every)
        raise TimeoutError(f"not within {seconds:g} s: {what}{last}")

    # -- by object -------------------------------------------------------------------------------------------------

    def path_of(self, item: Object, *, collection: bool = False) -> str:
        """The path of an object from its apiVersion, kind, metadata.name and namespace (default: `default`)."""
        plural, namespaced = self._resource(item)
        root, metadata = _root(item), item["metadata"]
        folder = f"{root}/namespaces/{metadata.get('namespace', 'default')}" if namespaced else root
        return f"{folder}/{plural}" if collection else f"{folder}/{plural}/{metadata['name']}"

    def is_namespaced(self, item: Object) -> bool:
        return self._resource(item)[1]

    def _resource(self, item: Object) -> tuple[str, bool]:
        """The plural of an object's kind and whether it lives in namespaces, from discovery."""
        version, kind = item["apiVersion"], item["kind"]
        if kind not in self._resources.get(version, {}):
            self._resources[version] = {
                found["kind"]: (found["name"], found["namespaced"])
                for found in self.get(_root(item))["resources"]
                if "/" not in found["name"]
            }
        if kind not in self._resources[version]:
            raise ApiError("GET", _root(item), 404, {"reason": "NotFound", "message": f"{version} has no kind {kind}"})
        return self._resources[version][kind]

    def add(self, item: Object) -> Object:
        """Creates an object; metadata.generateName works too."""
        return self.create(self.path_of(item, collection=True), item)

    def add_heard(self, item: Object) -> tuple[Object, Texts]:
        """Creates an object; returns it with the warnings that kubectl would print."""
        path = self.path_of(item, collection=True)
        warnings: Texts = []
        content = self._raw("POST", path, _encoded(item), _JSON, warnings)
        return _parse(content), warnings

    def add_spaced(self, item: Object) -> Object:
        """Creates it with spaces between the tokens and `<` as it is, as Python's json.dumps writes: see `_encoded`."""
        content = self._raw("POST", self.path_of(item, collection=True), json.dumps(item).encode(), _JSON)
        return _parse(content)

    def apply(self, item: Object, *, manager: str = "hack-controlplane") -> Object:
        """Server-side apply, taking over fields that somebody else owns."""
        return self.patch(self.path_of(item), item, "apply", fieldManager=manager, force="true")

    def read(self, item: Object) -> Object:
        """The object as it is now."""
        return self.get(self.path_of(item))

    def remove(self, item: Object, **options: Any) -> Object:
        return self.delete(self.path_of(item), **options)

    # -- transport -------------------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, body: Any = None, content_type: str = _JSON) -> Object:
        return _parse(self._raw(method, path, None if body is None else _encoded(body), content_type))

    def _raw(
        self, method: str, path: str, data: bytes | None, content_type: str, warnings: Texts | None = None
    ) -> bytes:
        """`warnings`: gets those of the answer."""
        headers = self._headers if data is None else {**self._headers, "Content-Type": content_type}
        try:
            status, content, heard = self._exchange(method, path, data, headers)
        except _NETWORK_ERRORS as error:
            raise NotReached(f"{method} {path} on {self._host}:{self._port}: {error!r}") from error
        if status >= 400:
            raise ApiError(method, path, status, _parse(content))
        if warnings is not None:
            warnings.extend(text for each in heard for text in _warnings_in(each))
        return content

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, Texts]:
        """Returns status, content and the headers `Warning`."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        kept = connection is not None
        connection = connection or self._connect(self._timeout)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            status, content, heard = answer.status, answer.read(), answer.headers.get_all("Warning", [])
        except _STALE:
            connection.close()
            if not kept:
                raise
            self.close()  # the server closed it while it was idle, and the other idle ones with it
            return self._exchange(method, path, data, headers)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return status, content, heard

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)


def _encoded(body: Any) -> bytes:
    """Compact, as kubectl sends it: the API server keeps opaque parameters byte by byte, but
    patches them re-encoded, and then calls the spec of a claim changed.
    """
    return json.dumps(body, separators=(",", ":")).encode()


def _warnings_in(header: str) -> list[str]:
    """The texts of a header `Warning` (RFC 9111): `299 - "text", 299 - "text"`."""
    return [re.sub(r"\\(.)", r"\1", quoted) for quoted in _WARNING.findall(header)]


def _root(item: Object) -> str:
    version = item["apiVersion"]
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _loads(content: bytes) -> Any:
    """Also of what the hostile tests store: nesting that Python's parser refuses is cut, bytes that
    are no text are replaced.
    """
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text))


def _shallow(text: str) -> str:
    """Without what is nested below `_MOST_LEVELS`."""
    depth, kept = 0, []
    for token in _TOKEN.findall(text):
        depth += token in "{["
        if depth <= _MOST_LEVELS:
            kept.append(token)
        elif depth == _MOST_LEVELS + 1 and token in "{[":
            kept.append("null")
        depth -= token in "}]"
    return "".join(kept)


def _with(path: str, query: dict[str, str]) -> str:
    if not query:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode(query)}"


def _parse(content: bytes) -> Object:
    """The JSON object of an answer; what is not one (a proxy's page, a panic) becomes the message of a Status."""
    with contextlib.suppress(ValueError):
        value = _loads(content)
        if isinstance(value, dict):
            return value
    return {"message": content.decode(errors="replace")[:2000]}
