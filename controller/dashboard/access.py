"""Authorization: the cluster decides, by TokenReview and SubjectAccessReview; verdicts are cached.

Used by `guard`. In: a bearer token. Out: a `Grant`. Tokens are never logged and never stored: the
cache key is a digest of the token under a key of this process, and entries live for seconds.
Viewing requires the verb `get` on the resource `dashboards` of the group `hami.io`: cluster-wide
for everything, in a namespace for what is in that namespace. No such resource is served; it exists
for RBAC alone (ClusterRole hami-dra-viewer, bound by a ClusterRoleBinding or a RoleBinding).
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from hami_dra.api import names
from hami_dra.api.access import SUBJECT_ACCESS_REVIEW
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object, Struct
from hami_dra.kube.protocol import Cluster, ClusterError, Forbidden

VIEW_GROUP: Final = names.DOMAIN
VIEW_RESOURCE: Final = "dashboards"
VIEW_VERB: Final = "get"
LONGEST_TOKEN: Final = 16_384
"""Bytes; the API server itself accepts no longer header."""
MOST_NAMESPACES: Final = 500
"""Namespaces for which one user is reviewed, by name."""


class UserInfo(Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewStatus(Struct, frozen=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    error: str = ""


class TokenReview(Object, frozen=True):
    status: TokenReviewStatus = TokenReviewStatus()


# Not in hami_dra.api.kinds: a review request, which is never listed, stored or applied.
TOKEN_REVIEW: Final = Kind("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", False, TokenReview)


class AccessVerdict(Enum):
    ALLOWED = "allowed"
    NO_TOKEN = "no token"  # noqa: S105 (states that there is none)
    UNKNOWN = "the cluster does not know this token"
    FORBIDDEN = "no right to look"
    UNCLEAR = "the cluster did not answer"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of a token may view."""

    verdict: AccessVerdict
    namespaces: frozenset[str] | None = None
    """Of an allowed one: only what is in these; None: everything."""


EVERYTHING: Final = Grant(AccessVerdict.ALLOWED)


class Access(Protocol):
    is_open: bool
    """True: no login is required. Only where no other machine can reach the port."""

    async def grant(self, token: str) -> Grant: ...


class OpenAccess:
    """`--dashboard-auth=off`, on loopback."""

    is_open = True

    async def grant(self, token: str) -> Grant:  # noqa: ARG002 (signature of the protocol)
        return EVERYTHING


class ClusterAccess:
    """Authorization by the cluster.

    `namespaces`: returns those that hold something to view; a user who may not view everything is
    reviewed for each of them, up to MOST_NAMESPACES. `keep` and `keep_refusal`: seconds that a
    grant is cached; a refusal after many reviews is kept longer. `most`: grants in the cache;
    `at_once`: parallel reviews.
    """

    is_open = False

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Callable[[], Iterable[str]] = tuple,
        *,
        keep: float = 30.0,
        keep_refusal: float = 5.0,
        most: int = 1_000,
        at_once: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._keep, self._keep_refusal, self._most = keep, keep_refusal, most
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, Grant]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Grant]] = {}
        self._turn = asyncio.Semaphore(at_once)

    async def grant(self, token: str) -> Grant:
        """Return what the token's user may view. Concurrent calls with one token share one review."""
        if not token:
            return Grant(AccessVerdict.NO_TOKEN)
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return Grant(AccessVerdict.UNKNOWN)
        digest = hashlib.blake2b(token.encode(), key=self._key).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(digest)
        if task is None:
            task = self._asking[digest] = asyncio.ensure_future(self._ask(token, digest))
            task.add_done_callback(lambda _: self._asking.pop(digest, None))
        # a client that disconnects does not cancel the review for the others
        return await asyncio.shield(task)

    async def _ask(self, token: str, digest: bytes) -> Grant:
        try:
            grant, keep = await self._review(token)
        except ClusterError:
            return Grant(AccessVerdict.UNCLEAR)
        self._known[digest] = (self._clock() + keep, grant)
        self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return grant

    async def _review(self, token: str) -> tuple[Grant, float]:
        """Review the token. Returns the grant and the seconds that it is kept. Raises
        ClusterError.
        """
        async with self._turn:
            answer = await self._cluster.create(TOKEN_REVIEW, {"spec": {"token": token}})
        if not answer.status.authenticated:
            return Grant(AccessVerdict.UNKNOWN), self._keep_refusal
        user = answer.status.user
        if await self._may(user):
            return EVERYTHING, self._keep
        asked = sorted({*_own_namespace(user), *self._namespaces()})[:MOST_NAMESPACES]
        allowed = await asyncio.gather(*(self._may(user, namespace) for namespace in asked))
        namespaces = frozenset(namespace for namespace, may in zip(asked, allowed, strict=True) if may)
        if namespaces:
            return Grant(AccessVerdict.ALLOWED, namespaces), self._keep
        return Grant(AccessVerdict.FORBIDDEN), min(max(self._keep_refusal, len(asked) / 10), self._keep)

    async def _may(self, user: UserInfo, namespace: str = "") -> bool:
        """Return whether the user may view a namespace; empty: everything. Raises ClusterError."""
        async with self._turn:
            review = await self._cluster.create(SUBJECT_ACCESS_REVIEW, {"spec": _question(user, namespace)})
        return review.status.allowed


def _own_namespace(user: UserInfo) -> tuple[str, ...]:
    """Return the namespace of a ServiceAccount: `system:serviceaccount:NAMESPACE:NAME`."""
    kind, _, rest = user.username.partition(":serviceaccount:")
    return (rest.partition(":")[0],) if kind == "system" and rest else ()


def _question(user: UserInfo, namespace: str) -> dict[str, Any]:
    attributes = {"verb": VIEW_VERB, "group": VIEW_GROUP, "resource": VIEW_RESOURCE}
    return {
        "user": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
        "resourceAttributes": attributes | ({"namespace": namespace} if namespace else {}),
    }


async def may_ask(cluster: Cluster) -> bool:
    """Return False if the controller's own role may not review tokens, so that every login would
    fail.
    """
    try:
        await cluster.create(TOKEN_REVIEW, {"spec": {"token": "nobody"}})
    except Forbidden:
        return False
    except ClusterError:
        return True  # undecided: perhaps later
    return True
