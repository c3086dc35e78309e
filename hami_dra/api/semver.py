"""Semantic versions (semver.org 2.0.0), as DRA's version attributes and CEL's semver() read them.

Used by the selector language and by code that publishes version attributes. In: text. Out: an
immutable, ordered `SemVer`. Semantics are those of github.com/blang/semver/v4: strict, numbers
below 2^64, build metadata kept but ignored in comparisons.
"""

import re
from typing import Final

import msgspec

from hami_dra.api.short_texts import cached_if_short

_UINT64_MAX: Final = 2**64 - 1
_NUMBER: Final = r"(0|[1-9][0-9]*)"
_PRERELEASE_PART: Final = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_PRERELEASE_PART}(?:\.{_PRERELEASE_PART})*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


class InvalidVersion(ValueError):
    """The text is not a semantic version; the message says what was expected."""


class SemVer(msgspec.Struct, frozen=True, eq=False):
    """A version. Equal, ordered and hashed by precedence: 1.0.0-rc.1 < 1.0.0 == 1.0.0+build."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str, *, normalize: bool = False) -> "SemVer":
        """Parse a version. Raises InvalidVersion.

        `normalize` is CEL's semver(text, true): a leading "v" is dropped, missing minor and patch
        numbers become 0, and leading zeros are removed.
        """
        if not isinstance(text, str):
            raise InvalidVersion(f"a version is a string, not {type(text).__name__}: {text!r}")
        return _parse(_normalized(text) if normalize else text)

    @property
    def precedence(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int | str], ...]]:
        """Return the sort key: a release after its prereleases.

        Numeric identifiers come before others; a shorter list before a longer one.
        """
        return (
            self.major,
            self.minor,
            self.patch,
            not self.prerelease,
            tuple((isinstance(part, str), part) for part in self.prerelease),
        )

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(str(part) for part in self.prerelease)
        if self.build:
            text += "+" + ".".join(self.build)
        return text

    def __repr__(self) -> str:
        return f"SemVer({str(self)!r})"

    def __hash__(self) -> int:
        return hash(self.precedence)

    def __eq__(self, other: object) -> bool:
        return self.precedence == other.precedence if isinstance(other, SemVer) else NotImplemented

    def __lt__(self, other: "SemVer") -> bool:
        return self.precedence < other.precedence if isinstance(other, SemVer) else NotImplemented

    def __le__(self, other: "SemVer") -> bool:
        return self.precedence <= other.precedence if isinstance(other, SemVer) else NotImplemented

    def __gt__(self, other: "SemVer") -> bool:
        return self.precedence > other.precedence if isinstance(other, SemVer) else NotImplemented

    def __ge__(self, other: "SemVer") -> bool:
        return self.precedence >= other.precedence if isinstance(other, SemVer) else NotImplemented


@cached_if_short(4_096)
def _parse(text: str) -> SemVer:
    match = _VERSION.fullmatch(text) if len(text) <= 1_000 else None
    if match is None:
        shown = text if len(text) <= 64 else text[:61] + "..."
        raise InvalidVersion(
            f"{shown!r} is not a semantic version: MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD] was expected"
        )
    major, minor, patch, prerelease, build = match.groups()
    parts = tuple(int(part) if part.isdigit() else part for part in prerelease.split(".")) if prerelease else ()
    version = SemVer(int(major), int(minor), int(patch), parts, tuple(build.split(".")) if build else ())
    numbers = [version.major, version.minor, version.patch, *(part for part in parts if isinstance(part, int))]
    if max(numbers) > _UINT64_MAX:
        raise InvalidVersion(f"{text!r} is not a semantic version: a number is beyond 2^64-1")
    return version


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    if len(parts) < 3 and re.search(r"[+-]", parts[-1]):
        raise InvalidVersion(f"{text!r}: a version without a patch number cannot have a prerelease or build part")
    parts = [_without_leading_zeros(part) for part in parts]
    return ".".join(parts + ["0"] * (3 - len(parts)))


def _without_leading_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1] in set("0123456789") else "0" + stripped
