"""The proxy of a connection: `proxy-url` of a kubeconfig, else HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

Called by `credentials`. The rules are those of Go's httpproxy, and thus kubectl's. Raises
ConfigError, which never repeats the proxy's URL: it may contain a password.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from hami_dra.api.errors import ConfigError

_SCHEMES: Final = ("http", "https")
_VARIABLES: Final = {"https": ("HTTPS_PROXY", "https_proxy"), "http": ("HTTP_PROXY", "http_proxy")}


def checked_proxy(url: str, origin: str) -> str:
    """Return the URL of a proxy. `origin`: where it was written, for the message."""
    url = url.strip()
    if url and "://" not in url:
        url = f"http://{url}"
    scheme = url.partition("://")[0].lower()
    if scheme.startswith("socks"):
        raise ConfigError(f"{origin}: a {scheme} proxy is not supported; give an http:// or https:// proxy")
    if url and not is_web_address(url):
        raise ConfigError(f"{origin}: not the address of a proxy; write it like http://proxy.example:3128")
    return url


def is_web_address(url: str) -> bool:
    """Return whether it is http(s)://HOST[:PORT], perhaps with a path.

    >>> [is_web_address(url) for url in ("https://a:6443", "http://[::1]:80/x", "a:6443", "https://a:99999", "https:// a")]
    [True, True, False, False, False]
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in _SCHEMES
        and bool(parts.hostname)
        and port != 0
        and url.isprintable()
        and not any(char.isspace() or char in '\\<>"^`{|}' for char in parts.netloc)
    )


def proxy_from_environment(server: str, environment: Mapping[str, str]) -> str:
    """Return the proxy for a server's address; empty: none."""
    parts = urlsplit(server)
    for variable in _VARIABLES[parts.scheme]:
        if environment.get(variable):
            proxy = checked_proxy(environment[variable], variable)
            break
    else:
        return ""
    no_proxy = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    return "" if _is_exempt(parts.hostname or "", port, no_proxy) else proxy


def _is_exempt(host: str, port: int, no_proxy: str) -> bool:
    """Return whether NO_PROXY names the host; the own machine needs no naming.

    >>> [_is_exempt("api.example.com", 6443, text) for text in ("example.com", ".example.com", "api", "*", "example.com:443")]
    [True, True, False, True, False]
    >>> [_is_exempt("10.1.2.3", 6443, text) for text in ("10.0.0.0/8", "10.1.2.3:6443", "a, 10.1.2.4")]
    [True, True, False]
    """
    host = host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_names(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _names(entry: str, host: str, address: "ipaddress.IPv4Address | ipaddress.IPv6Address | None", port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry) is None:
        name, colon, number = entry.rpartition(":")
        if colon and number.isdecimal():
            if int(number) != port:
                return False
            entry = name
    if named := _address(entry.strip("[]")):
        return named == address
    domain = entry.removeprefix("*").rstrip(".")
    return host.endswith(domain) if domain.startswith(".") else host == domain or host.endswith(f".{domain}")


def _address(text: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
