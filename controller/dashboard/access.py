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
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from controller.dashboard.review_queue import Busy, ReviewQueue
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
_TOKENS_AT_ONCE: Final = 4
_TOKENS_WAITING: Final = 256
"""Tokens that were never seen; more are refused for the moment."""
K = TypeVar("K")
V = TypeVar("V")


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
    """In words, and as a status of HTTP."""

    ALLOWED = "allowed", 200
    NO_TOKEN = "no token", 401
    UNKNOWN = "the cluster does not know this token", 401
    FORBIDDEN = "no right to look", 403
    UNCLEAR = "the cluster did not answer", 503
    BUSY = "too many logins at once, try again in a minute", 429

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def status(self) -> int:
        return self.value[1]


class Grant(Struct, frozen=True):
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
    grant is cached; a refusal after many reviews is kept longer. `most`: tokens and users in the
    cache. Tokens of one user share one grant.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._keep, self._keep_refusal, self._most = keep, keep_refusal, most
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._users: _Shared[bytes, UserInfo | None] = _Shared(most, clock)
        """By digest of a token. None: the cluster does not know it."""
        self._grants: _Shared[bytes, Grant] = _Shared(most, clock)
        """By the user in JSON."""
        self._reviews = ReviewQueue(clock)
        self._tokens = asyncio.Semaphore(_TOKENS_AT_ONCE)

    async def grant(self, token: str) -> Grant:
        """Return what the token's user may view. Concurrent calls with one token share one review."""
        if not token:
            return Grant(AccessVerdict.NO_TOKEN)
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return Grant(AccessVerdict.UNKNOWN)
        digest = hashlib.blake2b(token.encode(), key=self._key).digest()
        try:
            user = await self._users.get(digest, lambda: self._user(token))
            if user is None:
                return Grant(AccessVerdict.UNKNOWN)
            return await self._grants.get(msgspec.json.encode(user), lambda: self._review(user))
        except ClusterError:
            return Grant(AccessVerdict.UNCLEAR)
        except Busy:
            return Grant(AccessVerdict.BUSY)

    async def _user(self, token: str) -> tuple[UserInfo | None, float]:
        """Return the token's user, and the seconds to cache that. Raises ClusterError and Busy."""
        if self._users.in_flight > _TOKENS_WAITING:
            raise Busy
        async with self._tokens:
            answer = await self._cluster.create(TOKEN_REVIEW, {"spec": {"token": token}})
        return (answer.status.user, self._keep) if answer.status.authenticated else (None, self._keep_refusal)

    async def _review(self, user: UserInfo) -> tuple[Grant, float]:
        """Return what the user may view, and the seconds to cache that. Raises ClusterError and Busy."""
        own = _own_namespace(user)
        asked = sorted({*own, *self._namespaces()})[:MOST_NAMESPACES]
        account = own[0] if own else user.username
        async with self._reviews.user(account, 1 + len(asked)):
            if await self._may(user, account):
                return EVERYTHING, self._keep
            allowed = await asyncio.gather(*(self._may(user, account, namespace) for namespace in asked))
        namespaces = frozenset(namespace for namespace, may in zip(asked, allowed, strict=True) if may)
        if namespaces:
            return Grant(AccessVerdict.ALLOWED, namespaces), self._keep
        return Grant(AccessVerdict.FORBIDDEN), min(max(self._keep_refusal, len(asked) / 10), self._keep)

    async def _may(self, user: UserInfo, account: str, namespace: str = "") -> bool:
        """Return whether the user may view a namespace; empty: everything. Raises ClusterError."""
        async with self._reviews.turn(account):
            review = await self._cluster.create(SUBJECT_ACCESS_REVIEW, {"spec": _question(user, namespace)})
        return review.status.allowed


class _Shared(Generic[K, V]):
    """Answers by key, each asked for once by all who want it at a time, and cached for a while."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    @property
    def in_flight(self) -> int:
        return len(self._asking)

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, tuple[V, float]]]) -> V:
        """Return the cached answer, or what `ask` says. `ask` returns seconds to cache it, too."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask()))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # a client that disconnects does not cancel the question for the others
        return await asyncio.shield(task)

    async def _ask(self, key: K, question: Coroutine[Any, Any, tuple[V, float]]) -> V:
        answer, keep = await question
        self._known[key] = (self._clock() + keep, answer)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return answer


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
    """Return False if the controller's own role may not review tokens, so that every login would fail."""
    try:
        await cluster.create(TOKEN_REVIEW, {"spec": {"token": "nobody"}})
    except Forbidden:
        return False
    except ClusterError:
        return True  # undecided: perhaps later
    return True
