"""Kubernetes' url library: a transcription of the parts of Go's net/url (1.26) that it uses.

As in Go, texts are handled as bytes, and decoded at the end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.formatting import go_quote
from hami_dra.cel.library.registry import cost_by_name, function, method, parses, wants_meter
from hami_dra.cel.values import TYPE_NAMES

cost_by_name["url"] = meter.scan_first
wants_meter.add("getQuery")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_PORT: Final = re.compile(rb"(?::[0-9]*)?")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})?")
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
_PATH: Final = _PLAIN | frozenset(b"$&+,/:;=@")
_FRAGMENT: Final = _PATH | frozenset(b"?!()*")
_HOST: Final = _PLAIN | frozenset(b"!$&'()*+,;=:[]<>\"")
_USER: Final = _PLAIN | frozenset(b"$&+,;=")
_USER_ALLOWED: Final = _PLAIN | frozenset(b":!$&'()*+,;=%@")
_VALID_EXTRA: Final = frozenset(b"!$&'()*+,;=:@[]%")  # need no escape in an encoded path


class BadURL(ValueError):
    """Go's url.Error, without the operation."""


@dataclass(slots=True, eq=False)
class URL:
    """The parts of an absolute URL, or of a path that starts with a slash; decoded unless said otherwise."""

    scheme: bytes = b""
    opaque: bytes = b""  # encoded
    user: tuple[bytes, bytes | None] | None = None
    host: bytes = b""
    path: bytes = b""  # encoded, see _encoded
    query: bytes = b""  # encoded
    fragment: bytes = b""  # encoded
    force_query: bool = False
    omit_host: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, URL) and self.text() == other.text()

    def __hash__(self) -> int:
        return hash(self.text())

    def text(self) -> bytes:
        """Return the result of Go's String()."""
        out = self.scheme + b":" if self.scheme else b""
        if self.opaque:
            out += self.opaque
        else:
            if (self.scheme or self.host or self.user) and not (self.omit_host and not self.host and not self.user):
                if self.host or self.path or self.user:
                    out += b"//"
                if self.user:
                    name, password = self.user
                    out += _escape(name, _USER) + (b"" if password is None else b":" + _escape(password, _USER)) + b"@"
                out += _escape(self.host, _HOST)
            if self.path and not self.path.startswith(b"/") and self.host:
                out += b"/"
            out += self.path
        if self.force_query or self.query:
            out += b"?" + self.query
        return out + (b"#" + self.fragment if self.fragment else b"")


TYPE_NAMES[URL] = "kubernetes.URL"


def parse_request(text: str) -> URL:
    """Parse like Go's url.ParseRequestURI. Raises BadURL."""
    return _parse(text.encode(), request=True)


def parse(text: str) -> URL:
    """Parse like stringToUrl in Kubernetes. Raises BadURL.

    The text must be a request URI; the fragment is split off afterwards.
    """
    parse_request(text)
    before, _, fragment = text.encode().partition(b"#")
    url = _parse(before, request=False)
    url.fragment = _encoded(fragment, _FRAGMENT)
    return url


def _parse(raw: bytes, *, request: bool) -> URL:  # noqa: C901 (structured like Go's)
    if _CONTROL.search(raw):
        raise BadURL("net/url: invalid control character in URL")
    if not raw and request:
        raise BadURL("empty url")
    url = URL()
    if raw == b"*":
        url.path = b"*"
        return url
    scheme = _SCHEME.match(raw)
    if scheme is None and raw.startswith(b":"):
        raise BadURL("missing protocol scheme")
    if scheme:
        url.scheme, raw = scheme.group()[:-1].lower(), raw[scheme.end() :]
    rest, mark, url.query = raw.partition(b"?")
    url.force_query = bool(mark) and not url.query
    if not rest.startswith(b"/"):
        if url.scheme:
            url.opaque = rest
            return url
        if request:
            raise BadURL("invalid URI for request")
        if b":" in rest.partition(b"/")[0]:
            raise BadURL("first path segment in URL cannot contain colon")
    if (url.scheme or (not request and not rest.startswith(b"///"))) and rest.startswith(b"//"):
        authority, slash, path = rest[2:].partition(b"/")
        rest = slash + path
        _set_authority(url, authority)
    elif url.scheme and rest.startswith(b"/"):
        url.omit_host = True
    url.path = _encoded(rest, _PATH)
    return url


def _set_authority(url: URL, authority: bytes) -> None:
    user, at, host = authority.rpartition(b"@")
    url.host = _parse_host(url.scheme, host)
    if at:
        if user.translate(None, bytes(_USER_ALLOWED)):
            raise BadURL("net/url: invalid userinfo")
        name, colon, password = user.partition(b":")
        url.user = (_unescape(name), _unescape(password) if colon else None)


def _parse_host(scheme: bytes, host: bytes) -> bytes:
    bracket = host.rfind(b"[")
    if bracket > 0:
        raise BadURL("invalid IP-literal")
    if bracket == 0:
        return _parse_literal_host(host)
    first, last = host.find(b":"), host.rfind(b":")
    if first != -1:
        port = host[first if scheme in {b"http", b"https"} else last :]
        _require_port(port)
    return _unescape_host(host, zone=False)


def _parse_literal_host(host: bytes) -> bytes:
    close = host.rfind(b"]")
    if close < 0:
        raise BadURL("missing ']' in host")
    port = host[close + 1 :]
    _require_port(port)
    name = host[1:close]
    zone_at = name.find(b"%25")
    if zone_at >= 0:
        name = _unescape_host(name[:zone_at], zone=False) + _unescape_host(name[zone_at:], zone=True)
    else:
        name = _unescape_host(name, zone=False)
    address, percent, zone = name.partition(b"%")
    try:
        IPv6Address(address.decode())
    except (AddressValueError, UnicodeDecodeError):
        raise BadURL(f"invalid host: ParseAddr({go_quote(_text(name))}): unable to parse IP") from None
    if percent and not zone:
        raise BadURL(f"invalid host: ParseAddr({go_quote(_text(name))}): zone must be a non-empty string")
    return b"[" + name + b"]" + _unescape_host(port, zone=False)


def _require_port(port: bytes) -> None:
    if not _PORT.fullmatch(port):
        raise BadURL(f"invalid port {go_quote(_text(port))} after host")


def _bad_escape(raw: bytes) -> BadURL:
    return BadURL(f"invalid URL escape {go_quote(_text(raw[:3]))}")


def _unescape(raw: bytes) -> bytes:
    """Replace %XX."""

    def decoded(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise _bad_escape(raw[match.start() :])
        return bytes([int(match[1], 16)])

    return _ESCAPE.sub(decoded, raw)


def _unescape_host(raw: bytes, *, zone: bool) -> bytes:
    """Replace %XX in a host.

    Outside a zone only bytes beyond ASCII may be escaped, in a zone only bytes that could appear
    unescaped.
    """
    for index, byte in enumerate(raw):
        if byte == ord("%"):
            escape = raw[index : index + 3]
            if not re.fullmatch(rb"%[0-9A-Fa-f]{2}", escape):
                raise _bad_escape(escape)
            value = int(escape[1:], 16)
            if escape != b"%25" and (value != 0x20 and value not in _HOST if zone else value < 0x80):
                raise _bad_escape(escape)
        elif byte < 0x80 and byte not in _HOST:
            raise BadURL(f"invalid character {go_quote(chr(byte))} in host name")
    return _unescape(raw)


def _escape(raw: bytes, plain: frozenset[int]) -> bytes:
    return b"".join(bytes([byte]) if byte in plain else b"%%%02X" % byte for byte in raw)


def _encoded(raw: bytes, plain: frozenset[int]) -> bytes:
    """Return `raw` if it is a valid encoding, else the standard encoding of its meaning.

    This is Go's EscapedPath. Raises BadURL.
    """
    meaning = _unescape(raw)
    if not raw.translate(None, bytes(plain | _VALID_EXTRA)):
        return raw
    return b"*" if meaning == b"*" else _escape(meaning, plain)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


@function("url", "string -> URL")
def url_(text: str) -> URL:
    try:
        return parse(text)
    except BadURL as error:
        raise CelError(f"URL parse error during conversion from string: parse {go_quote(text)}: {error}") from None


function("isURL", "string -> bool")(parses(parse_request, BadURL))


def _split_host(host: bytes) -> tuple[bytes, bytes]:
    colon = host.rfind(b":")
    port = b""
    if colon != -1 and _PORT.fullmatch(host[colon:]):
        host, port = host[:colon], host[colon + 1 :]
    if host.startswith(b"[") and host.endswith(b"]"):
        host = host[1:-1]
    return host, port


def _reader(read: Callable[[URL], bytes]) -> Callable[[URL], str]:
    return lambda url: _text(read(url))


method("getScheme", "URL -> string")(_reader(lambda url: url.scheme))
method("getHost", "URL -> string")(_reader(lambda url: url.host))
method("getHostname", "URL -> string")(_reader(lambda url: _split_host(url.host)[0]))
method("getPort", "URL -> string")(_reader(lambda url: _split_host(url.host)[1]))
method("getEscapedPath", "URL -> string")(_reader(lambda url: url.path))


@method("getQuery", "URL -> map(string, list(string))")
def get_query(counter: meter.Meter | None, url: URL) -> dict[str, list[str]]:
    """Return the query's parameters. As in Go, unreadable ones are left out."""
    values: dict[str, list[str]] = {}
    if counter is not None:
        counter.work(len(url.query))
    for part in url.query.split(b"&"):
        if not part or b";" in part:
            continue
        key, _, value = part.replace(b"+", b" ").partition(b"=")
        try:
            values.setdefault(_text(_unescape(key)), []).append(_text(_unescape(value)))
        except BadURL:
            continue
    return {key: found for key, found in values.items() if found}
