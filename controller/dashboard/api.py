"""Stored decisions as JSON, for `hami-dra explain --controller` and other programs.

The access control is that of the pages.

    GET /api/v1/explanations?limit=N                          newest first
    GET /api/v1/explanations/pods/{namespace}/{name}
    GET /api/v1/explanations/claims/{namespace}/{name}        of the latest pod that uses the claim
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from controller.dashboard.source import Decisions
from controller.views.explanation import Explanation, to_json

DEFAULT_LIMIT: Final = 50
MOST: Final = 1_000
ROOT: Final = "/api/v1/explanations"


def add_routes(router: web.UrlDispatcher, decisions_of: Callable[[web.Request], Decisions]) -> None:
    """Add the routes. `decisions_of`: returns those that the user of a request may read."""

    async def latest(request: web.Request) -> web.Response:
        limit = request.query.get("limit", str(DEFAULT_LIMIT))
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 6 and 1 <= int(limit) <= MOST):
            return _problem(400, f"limit: a number from 1 to {MOST}")
        return _answer(decisions_of(request).latest(int(limit)))

    async def of_pod(request: web.Request) -> web.Response:
        return _one(decisions_of(request).of_pod(_key(request)), f"no decision on pod {_key(request)} is kept here")

    async def of_claim(request: web.Request) -> web.Response:
        missing = f"no decision on a pod of claim {_key(request)} is kept here"
        return _one(decisions_of(request).of_claim(_key(request)), missing)

    router.add_get(ROOT, latest)
    router.add_get(ROOT + "/pods/{namespace}/{name}", of_pod)
    router.add_get(ROOT + "/claims/{namespace}/{name}", of_claim)


def _key(request: web.Request) -> str:
    return f"{request.match_info['namespace']}/{request.match_info['name']}"


def _one(found: Explanation | None, missing: str) -> web.Response:
    return _problem(404, missing) if found is None else _answer(found)


def _answer(what: Explanation | list[Explanation]) -> web.Response:
    return web.Response(body=to_json(what), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
