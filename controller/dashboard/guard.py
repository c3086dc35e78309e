"""Checks that every request passes: authorization, host, and headers of the answer.

`guard(access)` and `safe_headers` are aiohttp middlewares. Browsers without access are redirected
to the login, programs get a status. Must not let a token into a URL, an answer or the log.
"""

from typing import Final
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller.dashboard.access import Access, AccessVerdict, Grant

COOKIE: Final = "hami_dra_token"
LOGIN: Final = "/login"
OPEN_PATHS: Final = frozenset({LOGIN, "/logout", "/settings", "/healthz"})
_STATIC: Final = "/static/"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
verdict_key: Final = web.RequestKey("verdict", AccessVerdict)
grant_key: Final = web.RequestKey("grant", Grant)
"""Of an allowed user."""


def guard(access: Access) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if access.is_open and hostname(request.host) not in _LOOPBACK_NAMES:
            # Another site's name that was pointed here (DNS rebinding) must not read pages that
            # need no token.
            raise web.HTTPMisdirectedRequest(text="use localhost or 127.0.0.1: access control is off\n")
        if request.path in OPEN_PATHS or request.path.startswith(_STATIC):
            return await handler(request)
        grant = await access.grant(token_of(request))
        verdict = grant.verdict
        if verdict is AccessVerdict.ALLOWED:
            request[grant_key] = grant
            return await handler(request)
        if request.path.startswith(("/api/", "/events")):
            return _refusal(verdict)
        request[verdict_key] = verdict
        if verdict in (AccessVerdict.NO_TOKEN, AccessVerdict.UNKNOWN):
            raise web.HTTPSeeOther(f"{LOGIN}?next={quote(request.path_qs, safe='')}")
        response: web.StreamResponse = await request.app[refused_key](request)
        return response

    return guarded


refused_key: Final[web.AppKey[Handler]] = web.AppKey("refused")
"""Renders the page for known users that are not allowed to view."""


def _refusal(verdict: AccessVerdict) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else {}
    return web.json_response({"error": verdict.words}, status=verdict.status, headers=headers)


def token_of(request: web.Request) -> str:
    """Return the token from the Authorization header, else from the cookie; empty: none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.cookies.get(COOKIE, "")


def hostname(host: str) -> str:
    """Return the host without its port: `[::1]:80` → `[::1]`."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower()


def is_same_origin(request: web.Request) -> bool:
    """Return whether a form is from our own pages: browsers state it; programs that state nothing are allowed."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2].lower() == request.host.lower()


def is_own_path(path: str) -> bool:
    """Return whether this is a path of this site, and nothing that a browser would read as another host."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isascii() and path.isprintable()


@web.middleware
async def safe_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as answer:
        _put_headers(request, answer)
        raise
    if not response.prepared:
        _put_headers(request, response)
    return response


def _put_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
    if request.secure:
        response.headers["Strict-Transport-Security"] = "max-age=31536000"
