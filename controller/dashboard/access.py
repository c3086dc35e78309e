"""Authorization: the cluster decides, by TokenReview and SubjectAccessReview; verdicts are cached.

Used by `guard`. In: a bearer token. Out: a `AccessVerdict`. Tokens are never logged and never
stored: the cache key is a digest of the token under a key of this process, and entries live for
seconds. Viewing requires the verb `get` on the resource `dashboards` of the group `hami.io`,
cluster-wide. No such resource is served; it exists for RBAC alone (ClusterRole hami-dra-viewer).
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
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


class Access(Protocol):
    is_open: bool
    """True: no login is required. Only where no other machine can reach the port."""

    async def verdict(self, token: str) -> AccessVerdict: ...


class OpenAccess:
    """`--dashboard-auth=off`, on loopback."""

    is_open = True

    async def verdict(self, token: str) -> AccessVerdict:  # noqa: ARG002 (signature of the protocol)
        return AccessVerdict.ALLOWED


class ClusterAccess:
    """Authorization by the cluster.

    `keep` and `keep_refusal`: seconds that a verdict is cached; `most`: verdicts in the cache;
    `at_once`: parallel reviews.
    """

    is_open = False

    def __init__(
        self,
        cluster: Cluster,
        *,
        keep: float = 30.0,
        keep_refusal: float = 5.0,
        most: int = 1_000,
        at_once: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._keep, self._keep_refusal, self._most = keep, keep_refusal, most
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, AccessVerdict]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[AccessVerdict]] = {}
        self._turn = asyncio.Semaphore(at_once)

    async def verdict(self, token: str) -> AccessVerdict:
        """Return the verdict on a token. Concurrent calls with one token share one review."""
        if not token:
            return AccessVerdict.NO_TOKEN
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return AccessVerdict.UNKNOWN
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

    async def _ask(self, token: str, digest: bytes) -> AccessVerdict:
        async with self._turn:
            try:
                verdict = await self._review(token)
            except ClusterError:
                return AccessVerdict.UNCLEAR
        keep = self._keep if verdict is AccessVerdict.ALLOWED else self._keep_refusal
        self._known[digest] = (self._clock() + keep, verdict)
        self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return verdict

    async def _review(self, token: str) -> AccessVerdict:
        """Review the token. Raises ClusterError."""
        answer = await self._cluster.create(TOKEN_REVIEW, {"spec": {"token": token}})
        if not answer.status.authenticated:
            return AccessVerdict.UNKNOWN
        user = answer.status.user
        review = await self._cluster.create(SUBJECT_ACCESS_REVIEW, {"spec": _question(user)})
        return AccessVerdict.ALLOWED if review.status.allowed else AccessVerdict.FORBIDDEN


def _question(user: UserInfo) -> dict[str, Any]:
    return {
        "user": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
        "resourceAttributes": {"verb": VIEW_VERB, "group": VIEW_GROUP, "resource": VIEW_RESOURCE},
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
