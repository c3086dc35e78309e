"""Names of objects, read with Python's own HTTP client: for shell completion.

Called by `controller.cli.completion_values`. A shell waits for each answer, and importing aiohttp
would take longer than all else; every other reader uses `http.HttpCluster`. One request, no
retries.
"""

import asyncio
import json
from base64 import b64encode
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from hami_dra.api.kinds import Kind
from hami_dra.kube.credentials import Access
from hami_dra.kube.protocol import METADATA_LIST, Unavailable

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def object_names(access: Access, kind: Kind[Any], namespace: str, *, seconds: float, limit: int = 500) -> list[str]:
    """Return the names of up to `limit` objects; the server sends their metadata only.

    `seconds`: how long each step (connect, send, receive) may take. Raises Unavailable for every
    failure and refusal, and ConfigError for credentials that cannot be read.
    """
    what = f"list {kind.plural}"
    headers = [("Accept", METADATA_LIST), ("Accept-Encoding", "identity"), ("User-Agent", "hami-dra")]
    headers += access.impersonation
    if authorization := asyncio.run(access.identity.header()):
        headers.append(("Authorization", authorization))
    try:
        with closing(_connected(access, seconds)) as connection:
            path = urlsplit(access.server).path + kind.path(namespace)
            connection.putrequest("GET", f"{path}?limit={limit}", skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value.encode())
            connection.endheaders()
            answer = connection.getresponse()
            if answer.status != 200:
                raise Unavailable(f"{what}: HTTP {answer.status}")
            return [each["metadata"]["name"] for each in json.loads(answer.read())["items"] or ()]
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"{what}: {error}") from None


def _connected(access: Access, seconds: float) -> HTTPConnection:
    """Connect to the API server, through the proxy if there is one. Raises OSError."""
    server = urlsplit(access.server)
    host, port = server.hostname or "", server.port or _DEFAULT_PORTS.get(server.scheme)
    if access.proxy:
        proxy = urlsplit(access.proxy)
        connection = HTTPConnection(proxy.hostname or "", proxy.port, timeout=seconds)
        connection.set_tunnel(host, port, _proxy_authorization(proxy))
    else:
        connection = HTTPConnection(host, port, timeout=seconds)
    connection.connect()
    if access.tls is not None:
        connection.sock = access.tls.wrap_socket(connection.sock, server_hostname=access.server_name or host)
    return connection


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
