"""Short names for long contents: equal contents have equal digests. Pure.

Used for keys of caches and of groups, which would otherwise keep what users write, of whatever length.
"""

import hashlib

import msgspec


def digest_of_text(text: str) -> bytes:
    """Return 16 bytes. A text need not be Unicode: selectors are whatever somebody stored."""
    return _digest(text.encode(errors="surrogatepass"))


def digest_of(value: object) -> bytes:
    """Return 16 bytes for what JSON can say of a value, whatever the order of its maps."""
    return _digest(msgspec.json.encode(value, order="sorted"))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
