"""Kubernetes' ip and cidr libraries, with the strictness of Go's net/netip (no zones, no IPv4 in IPv6)."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any, Final

from msgspec import Struct

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.formatting import go_quote
from hami_dra.cel.library.registry import cost_by_name, function, method, parses
from hami_dra.cel.values import TYPE_NAMES

_LONGEST: Final = 100  # characters; no address is longer
_PREFIX_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,2}")


class IP(Struct, frozen=True):
    address: IPv4Address | IPv6Address

    @property
    def cost_size(self) -> int:
        return self.address.max_prefixlen // 8


class CIDR(Struct, frozen=True):
    """An address and a prefix length; the bits behind the prefix are kept."""

    address: IPv4Address | IPv6Address
    bits: int

    @property
    def cost_size(self) -> int:
        return (self.bits + 7) // 8

    def contains(self, address: IPv4Address | IPv6Address) -> bool:
        rest = self.address.max_prefixlen - self.bits
        return address.version == self.address.version and int(address) >> rest == int(self.address) >> rest

    def includes(self, other: "CIDR") -> bool:
        return self.bits <= other.bits and self.contains(other.address)


TYPE_NAMES[IP] = "net.IP"
TYPE_NAMES[CIDR] = "net.CIDR"


def _contains_ip_cost(args: Any) -> int:
    return meter.scan(2 * meter.size(args[0]))


def _contains_ip_text_cost(args: Any) -> int:
    return _contains_ip_cost(args) + meter.scan(meter.size(args[1]))


def _contains_cidr_cost(args: Any) -> int:
    return meter.scan(2 * meter.size(args[0])) + meter.scan(meter.size(args[0])) + 1


def _contains_cidr_text_cost(args: Any) -> int:
    return _contains_cidr_cost(args) + meter.scan(meter.size(args[1]))


cost_by_name.update(
    dict.fromkeys(["cidr", "isIP", "isCIDR"], meter.scan_first)
    | {"ip.isCanonical": meter.scan_twice, "containsIP": _contains_ip_cost, "containsCIDR": _contains_cidr_cost}
)


def _address(text: str) -> IPv4Address | IPv6Address:
    if len(text) > _LONGEST:
        raise AddressValueError("too long")
    return IPv6Address(text) if ":" in text else IPv4Address(text)


def parse_ip(text: str) -> IPv4Address | IPv6Address:
    """Parse an address. Raises CelError."""
    try:
        address = _address(text)
    except AddressValueError as error:
        reason = "IPv4 field has octet with leading zero" if "Leading zero" in str(error) else "unable to parse IP"
        shown = go_quote(text[:_LONGEST])
        raise CelError(
            f"IP Address {shown} parse error during conversion from string: ParseAddr({shown}): {reason}"
        ) from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise CelError(f"IP address {go_quote(text)} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise CelError(f"IPv4-mapped IPv6 address {go_quote(text)} is not allowed")
    return address


def _parse_cidr(text: str) -> CIDR:
    address_text, slash, bits_text = text.rpartition("/")
    problem = "network address parse error during conversion from string: "
    if not slash:
        raise CelError(f"{problem * 2}netip.ParsePrefix({go_quote(text)}): no '/'")
    try:
        address = parse_ip(address_text)
    except CelError as error:
        raise CelError(f"{problem * 2}netip.ParsePrefix({go_quote(text)}): {error}") from None
    if not _PREFIX_LENGTH.fullmatch(bits_text) or int(bits_text) > address.max_prefixlen:
        known = bits_text.isdigit() and not bits_text.startswith("0")
        reason = "prefix length out of range" if known else f"bad bits after slash: {go_quote(bits_text)}"
        raise CelError(f"{problem * 2}netip.ParsePrefix({go_quote(text)}): {reason}")
    return CIDR(address, int(bits_text))


function("ip", "string -> IP", cost=meter.scan_first)(lambda text: IP(parse_ip(text)))
method("ip", "CIDR -> IP")(lambda value: IP(value.address))
function("isIP", "string -> bool")(parses(parse_ip, CelError))
function("ip.isCanonical", "string -> bool")(lambda text: str(parse_ip(text)) == text)
function("string", "IP -> string", conversion=True)(lambda value: str(value.address))
method("family", "IP -> int")(lambda value: value.address.version)
method("isUnspecified", "IP -> bool")(lambda value: value.address.is_unspecified)
method("isLoopback", "IP -> bool")(lambda value: value.address.is_loopback)
method("isLinkLocalUnicast", "IP -> bool")(lambda value: value.address.is_link_local)


@method("isLinkLocalMulticast", "IP -> bool")
def is_link_local_multicast(value: IP) -> bool:
    packed = value.address.packed
    if value.address.version == 4:
        return packed[:3] == b"\xe0\x00\x00"
    return packed[0] == 0xFF and packed[1] & 0x0F == 0x02


@method("isGlobalUnicast", "IP -> bool")
def is_global_unicast(value: IP) -> bool:
    at = value.address
    local = at.is_unspecified or at.is_loopback or at.is_link_local
    return not (local or at.is_multicast or at == IPv4Address("255.255.255.255"))


function("cidr", "string -> CIDR")(_parse_cidr)
function("isCIDR", "string -> bool")(parses(_parse_cidr, CelError))
function("string", "CIDR -> string", conversion=True)(lambda value: f"{value.address}/{value.bits}")
method("containsIP", "CIDR, string -> bool", cost=_contains_ip_text_cost)(
    lambda value, text: value.contains(parse_ip(text))
)
method("containsIP", "CIDR, IP -> bool")(lambda value, address: value.contains(address.address))
method("containsCIDR", "CIDR, string -> bool", cost=_contains_cidr_text_cost)(
    lambda value, text: value.includes(_parse_cidr(text))
)
method("containsCIDR", "CIDR, CIDR -> bool")(CIDR.includes)
method("prefixLength", "CIDR -> int")(lambda value: value.bits)


@method("masked", "CIDR -> CIDR")
def masked(value: CIDR) -> CIDR:
    shift = value.address.max_prefixlen - value.bits
    return CIDR(type(value.address)(int(value.address) >> shift << shift), value.bits)
