"""Digests of long values: equal values have equal digests. Pure.

Used for keys of caches and groups, which would otherwise store user input of any length.
"""

import hashlib

import msgspec


def digest_of_text(text: str) -> bytes:
    """Return 16 bytes. The text need not be valid Unicode: stored selectors may contain anything."""
    return _digest(text.encode(errors="surrogatepass"))


def digest_of(value: object) -> bytes:
    """Return 16 bytes for what JSON can say of a value, whatever the order of its maps."""
    return _digest(msgspec.json.encode(value, order="sorted"))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
