"""Object metadata and selectors, shared by all kinds.

The Structs of `hami_dra.api` hold the fields this project reads and nothing else. They are never
written back: every write is a patch of the fields we own, so unknown fields survive. All are
frozen, lists are tuples.
"""

from sys import intern
from typing import Final

import msgspec

NO_ANNOTATIONS: Final[dict[str, str]] = {}
"""Shared by all objects decoded without annotations; never changed."""
UNREADABLE: Final = "hami.io/unreadable"
"""Key under which a decoder states why it could not read an object, or a part of it. API servers never send it."""
LOCAL_VOLUME: Final = "hami.io/local-volume"
"""Key under which a decoder names a volume whose data stays on the node. API servers never send it."""

_OF_NODES: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of controllers whose pods belong to a node."""


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False, kw_only=True, omit_defaults=True):
    """Base of all API objects: camelCase on the wire, unknown fields ignored on reading."""


class OwnerReference(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    """When its grace ends."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Object(Struct, frozen=True):
    """The fields of every kind.

    `api_version` and `kind` are empty on items of a list, as the API server sends them.
    """

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """Return `namespace/name`, or `name` if cluster-scoped: the key of stores, queues and
        messages.

        Interned, because a dozen tables have it as a key.
        """
        meta = self.metadata
        return intern(f"{meta.namespace}/{meta.name}") if meta.namespace else meta.name


def controller_of(item: Object) -> str:
    """Return the UID of the managing owner, or empty."""
    return next((owner.uid for owner in item.metadata.owner_references if owner.controller), "")


def belongs_to_node(pod: Object) -> bool:
    """Return whether its controller creates it again on the same node, and nowhere else."""
    return any(owner.controller and owner.kind in _OF_NODES for owner in pod.metadata.owner_references)


class LabelSelectorRequirement(Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Struct, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Condition(Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int = 0
