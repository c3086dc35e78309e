"""Calls to the memory cluster as its hooks see them, and the kinds that it serves."""

from typing import Any

from msgspec import Struct

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.protocol import ServerVersion

Raw = dict[str, Any]


class Admission(Struct, frozen=True):
    """Argument of an admission callable: the object to be created. `dry_run`: no side effects allowed."""

    kind: Kind[Any]
    namespace: str
    object: Raw
    dry_run: bool


class Request(Struct, frozen=True):
    """One call. `verb` is get, list, watch, create, patch, delete, bind or evict."""

    verb: str
    kind: Kind[Any]
    namespace: str
    name: str
    subresource: str = ""
    body: Any = None

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "patch", "delete", "bind", "evict")

    @property
    def label(self) -> str:
        return f"{self.verb} {self.kind.plural}" + (f"/{self.subresource}" if self.subresource else "")


def default_kinds(version: ServerVersion) -> tuple[Kind[Object], ...]:
    """Return the kinds that an API server of this version serves without extra feature gates.

    DeviceTaintRule is served by default since 1.37.
    """
    off = {kinds.DEVICE_TAINT_RULE_V1BETA2} | (set() if version.at_least(1, 37) else {kinds.DEVICE_TAINT_RULE})
    return tuple(kind for kind in kinds.ALL if kind not in off)
