"""Why a connection to an API server failed, in words, and what to check.

Called by `transport`. The texts of aiohttp are never repeated: they contain the URL of a proxy with
its password.
"""

import errno
import re
import ssl
from typing import Final

import aiohttp

_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_CAUSES: Final = {
    errno.ECONNREFUSED: "connection refused: {server}: is the API server up, and is the context the right one?",
    errno.EHOSTUNREACH: "no route to {server}: is the network up, or a VPN needed?",
    errno.ENETUNREACH: "no route to {server}: is the network up, or a VPN needed?",
    errno.ETIMEDOUT: "no answer from {server} in time: is the network up, or a VPN needed?",
    errno.ECONNRESET: "{server} closed the connection",
    errno.EPIPE: "{server} closed the connection",
}


def why_not_connected(error: Exception, server: str) -> str:
    """Return one sentence for an error of aiohttp or of the operating system.

    >>> why_not_connected(ConnectionRefusedError(111, "Connection refused"), "https://10.0.0.1:6443")
    'connection refused: https://10.0.0.1:6443: is the API server up, and is the context the right one?'
    >>> why_not_connected(aiohttp.ServerDisconnectedError(), "https://10.0.0.1:6443")
    'https://10.0.0.1:6443 closed the connection'
    """
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        return f"the proxy for {server} cannot be reached: see proxy-url in the kubeconfig, else HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name in {server} cannot be resolved: is the address in the kubeconfig right?"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {server} is not trusted{_certificate_problem(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return f"{server} does not speak TLS as expected: is it https, and the client certificate valid?"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return f"{server} closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return f"the answer of {server} ended early"
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return f"{server} is not a valid address: see server in the kubeconfig"
    known = _CAUSES.get(_errno(error))
    return known.format(server=server) if known else f"the connection to {server} failed{_system_error(error)}"


def _certificate_problem(error: Exception) -> str:
    text = getattr(error, "verify_message", "")
    return f": {text}; is its certificate authority that of the kubeconfig?" if text else ""


def _errno(error: Exception) -> int:
    """Return the system's error number; 0 if there is none. Where several addresses were tried, the first one's."""
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None)
    if isinstance(number, int):
        return number
    found = _ERRNO.search(str(cause))
    return int(found[1]) if found else 0


def _system_error(error: Exception) -> str:
    number = _errno(error)
    return f": {errno.errorcode[number]}" if number in errno.errorcode else ""
