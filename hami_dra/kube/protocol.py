"""The operations of a cluster, and the errors they may raise.

Two adapters implement it: `hami_dra.kube.http` (a real API server) and `hami_dra.kube.embedded.api_server`
(the embedded default: same optimistic concurrency, watch events, finalizers). Callers never know
which one they have.

Errors, each with what to do next::

    ClusterError
    ├── NotFound        the object is gone: drop what was planned for it
    ├── Conflict        another client was faster: read again, decide again
    │   └── AlreadyExists
    ├── Gone            the watch's resourceVersion is too old: list again
    ├── Interrupted     the server ended a watch early: it may be stopping
    ├── Invalid         the API server refuses the content: never retry it unchanged
    ├── Forbidden       a right is missing: name it to the operator
    ├── Protected       a disruption budget allows no eviction now: evict another pod, or wait
    └── Unavailable     no clear answer: the write may have happened or not; only a read can tell
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

from msgspec import Struct

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object

T = TypeVar("T", bound=Object)
Body = Mapping[str, Any]
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to accept of a list of which only the metadata of the objects matter."""


class ClusterError(Exception):
    """Base; the message names the verb, the object and the server's own words."""


class NotFound(ClusterError):
    pass


class Conflict(ClusterError):
    pass


class AlreadyExists(Conflict):
    pass


class Gone(ClusterError):
    pass


class Interrupted(ClusterError):
    pass


class Invalid(ClusterError):
    pass


class Forbidden(ClusterError):
    pass


class Protected(ClusterError):
    pass


class Unavailable(ClusterError):
    pass


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class WatchEvent(Struct, Generic[T], frozen=True):
    """One event of a watch. `problem`: what of the object could not be read.

    For BOOKMARK only `object.metadata.resource_version` has a meaning.
    """

    type: EventType
    object: T
    problem: str = ""


class Broken(Struct, frozen=True):
    """An object that could not be read completely, with its known part: at least the metadata.

    In a watch it takes the place of the event: nothing else of the object is known.
    """

    type: EventType
    object: Object
    problem: str


class Listing(Struct, Generic[T], frozen=True):
    """Result of a list. `broken` lists unreadable objects; partly readable ones are in `items`, too."""

    items: tuple[T, ...]
    resource_version: str
    broken: tuple[Broken, ...] = ()


class ServerVersion(Struct, frozen=True):
    major: int
    minor: int
    git_version: str

    def at_least(self, major: int, minor: int) -> bool:
        return (self.major, self.minor) >= (major, minor)


class Scope(TypedDict, total=False):
    """The objects of a kind that are meant; by default all."""

    namespace: str
    label_selector: str
    field_selector: str


class Cluster(Protocol):
    """Operations of a cluster. Reads return Structs; writes take JSON objects and return the result.

    To guard a write, put `metadata.resourceVersion` (and `metadata.uid`) into the patch: the server
    answers `Conflict` if it is not the newest.
    """

    async def version(self) -> ServerVersion: ...

    async def serves(self, kind: Kind[T]) -> bool:
        """Return whether the server offers this group, version and plural at all."""

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T: ...

    async def get_raw(self, kind: Kind[T], name: str, namespace: str = "") -> dict[str, Any]:
        """Return the whole object as JSON, for callers that need fields without a Struct."""

    async def list(self, kind: Kind[T], **scope: Unpack[Scope]) -> Listing[T]:
        """Return all objects by a quorum read (no resourceVersion), paged internally."""

    async def resource_version(self, kind: Kind[T], **scope: Unpack[Scope]) -> str:
        """Return the `resource_version` that `list` would return now, without reading the objects."""

    def watch(
        self, kind: Kind[T], *, resource_version: str, **scope: Unpack[Scope]
    ) -> AsyncGenerator[WatchEvent[T] | Broken]:
        """Yield events after `resource_version`, including bookmarks.

        Ends after the time that the client asked for; raises `Interrupted` if the server ends it
        sooner, and `Gone` on 410.
        """

    async def create(self, kind: Kind[T], body: Body, *, namespace: str = "", dry_run: bool = False) -> T:
        """Create an object. `namespace` defaults to `body.metadata.namespace`."""

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Body,
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = "",
    ) -> T:
        """Send a merge patch; with the name of a field `manager`, apply the fields, also those that others own."""

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Delete an object. `uid` and `resource_version` are preconditions: `Conflict` if they do not hold."""

    async def evict(self, name: str, namespace: str, *, uid: str = "", grace_period_seconds: int | None = None) -> None:
        """Ask for the end of a pod: POST pods/<name>/eviction.

        Raises `Protected` while its disruption budget allows none, `Invalid` for a pod under two
        budgets, and `Conflict` if the pod is not the one of this UID.
        """

    async def close(self) -> None: ...
