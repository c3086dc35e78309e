"""Who may look: the cluster decides, by TokenReview and SubjectAccessReview; verdicts are kept for seconds.

Used by `guard`. In: a bearer token. Out: a `Verdict`. Tokens are never logged, never kept: a verdict is found by a digest of the
token under a key of this process. Viewing is the verb `get` on the resource `dashboards` of the group `hami.io`, cluster-wide: no
such resource is served, it exists for RBAC alone (ClusterRole hami-dra-viewer).
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
from hami_dra.cluster.protocol import Cluster, ClusterError, Forbidden

VIEW_GROUP: Final = names.DOMAIN
VIEW_RESOURCE: Final = "dashboards"
VIEW_VERB: Final = "get"
LONGEST_TOKEN: Final = 16_384
"""Bytes; the API server itself takes no longer header."""


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


# not in hami_dra.api.kinds: a question, and nothing that is listed, kept or applied
TOKEN_REVIEW: Final = Kind("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", False, TokenReview)


class Verdict(Enum):
    ALLOWED = "allowed"
    NO_TOKEN = "no token"  # noqa: S105 (says that there is none)
    UNKNOWN = "the cluster does not know this token"
    FORBIDDEN = "no right to look"
    UNCLEAR = "the cluster could not be asked"


class Access(Protocol):
    is_open: bool
    """True: everybody may look. Only where nobody but this machine can reach the port."""

    async def verdict(self, token: str) -> Verdict: ...


class OpenAccess:
    """`--dashboard-auth=off`, on loopback."""

    is_open = True

    async def verdict(self, token: str) -> Verdict:  # noqa: ARG002 (as the protocol has it)
        return Verdict.ALLOWED


class ClusterAccess:
    """Asks the cluster. `keep` and `keep_refusal`: seconds that a verdict holds; `most`: verdicts kept; `at_once`: questions."""

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
        self._known: OrderedDict[bytes, tuple[float, Verdict]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Verdict]] = {}
        self._turn = asyncio.Semaphore(at_once)

    async def verdict(self, token: str) -> Verdict:
        """The same token asked about by many at once is one question."""
        if not token:
            return Verdict.NO_TOKEN
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return Verdict.UNKNOWN
        digest = hashlib.blake2b(token.encode(), key=self._key).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(digest)
        if task is None:
            task = self._asking[digest] = asyncio.ensure_future(self._ask(token, digest))
            task.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(task)  # one who goes away does not take the answer from the others

    async def _ask(self, token: str, digest: bytes) -> Verdict:
        async with self._turn:
            try:
                verdict = await self._review(token)
            except ClusterError:
                return Verdict.UNCLEAR
        keep = self._keep if verdict is Verdict.ALLOWED else self._keep_refusal
        self._known[digest] = (self._clock() + keep, verdict)
        self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return verdict

    async def _review(self, token: str) -> Verdict:
        """Raises ClusterError."""
        answer = await self._cluster.create(TOKEN_REVIEW, {"spec": {"token": token}})
        if not answer.status.authenticated:
            return Verdict.UNKNOWN
        user = answer.status.user
        review = await self._cluster.create(SUBJECT_ACCESS_REVIEW, {"spec": _question(user)})
        return Verdict.ALLOWED if review.status.allowed else Verdict.FORBIDDEN


def _question(user: UserInfo) -> dict[str, Any]:
    return {
        "user": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
        "resourceAttributes": {"verb": VIEW_VERB, "group": VIEW_GROUP, "resource": VIEW_RESOURCE},
    }


async def may_ask(cluster: Cluster) -> bool:
    """False: the controller's own role lacks the right to review tokens, so nobody could ever log in."""
    try:
        await cluster.create(TOKEN_REVIEW, {"spec": {"token": "nobody"}})
    except Forbidden:
        return False
    except ClusterError:
        return True  # not now; later perhaps
    return True
