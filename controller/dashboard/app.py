"""The web application: routes and handlers. Others need only `dashboard_app(source, access)`.

Called by `serving` and by tests. Every request is a GET, except login and logout, which change
nothing but a cookie.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

from aiohttp import web

from controller.dashboard import api, render, whatif_runs
from controller.dashboard.access import Access, AccessVerdict
from controller.dashboard.cardpages import NoSuchThing
from controller.dashboard.fleet import node_rows
from controller.dashboard.guard import (
    COOKIE,
    HEADERS,
    grant_key,
    guard,
    is_own_path,
    is_same_origin,
    refused_key,
    safe_headers,
    token_of,
    verdict_key,
)
from controller.dashboard.history import INTERVAL, History
from controller.dashboard.pages import Page, site
from controller.dashboard.pending import pending_count
from controller.dashboard.preferences import LANGUAGE_COOKIE, LANGUAGES, THEME_COOKIE, THEMES, Preferences, preferences
from controller.dashboard.readings import Meters, Readings
from controller.dashboard.source import Decisions, Source
from controller.dashboard.stream import headers_key
from controller.dashboard.tables import FORMATS, exported
from controller.dashboard.user_views import UserView, UserViews
from controller.views.overview import CardTable, packing
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.waiting import running

LONGEST_COOKIE: Final = 4_000
"""Bytes of a token; browsers store no longer cookie."""
_NAMESPACES_NAMED: Final = 6
"""Of those that a user may view."""
_ROWS_AT_ONCE: Final = 100
"""Rows of an export that are sent together."""
_YEAR: Final = int(timedelta(days=365).total_seconds())


def dashboard_app(
    source: Source,
    access: Access,
    *,
    interval: float = 1.0,
    meters: Meters | None = None,
    history: History | None = None,
    grafana: str = "",
) -> web.Application:
    """Return the application.

    `interval`: least number of seconds between two fragments for one page. `meters`: source of the
    cards' readings; None: no readings. `history`: what is known already; None: nothing. `grafana`:
    address to link to.
    """
    history = history or History()
    app = web.Application(middlewares=[safe_headers, guard(access)], client_max_size=64 << 10)
    handlers = _Site(source, access, history, interval=interval, meters=meters, grafana=grafana)
    app[refused_key] = handlers.refused
    app[headers_key] = {**HEADERS, "Cache-Control": "no-store"}
    app.cleanup_ctx.append(handlers.running)
    for page in handlers.pages.values():
        app.router.add_get(page.path, handlers.page)
    app.router.add_get("/export/{name:[a-z]+}.{form:[a-z]+}", handlers.export)
    app.router.add_get("/whatif", handlers.whatif)
    app.router.add_get("/events", handlers.events, allow_head=False)
    app.router.add_get("/login", handlers.login_form)
    app.router.add_post("/login", handlers.login)
    app.router.add_post("/logout", handlers.logout)
    app.router.add_post("/settings", handlers.settings)
    app.router.add_get("/static/{name:[a-z0-9./_-]+}", static)
    api.add_routes(app.router, handlers.decisions)
    app.router.add_get("/{path:.*}", handlers.missing)
    return app


async def static(request: web.Request) -> web.StreamResponse:
    """Serve a shipped file by its name, cacheable permanently because its address changes with its content."""
    name = request.match_info["name"]
    if name not in _ASSETS:
        raise web.HTTPNotFound(text="no such file\n")
    return web.FileResponse(render.STATIC / name, headers={"Cache-Control": "public, max-age=31536000, immutable"})


_ASSETS: Final = frozenset(
    str(path.relative_to(render.STATIC)) for path in render.STATIC.rglob("*") if path.suffix in (".js", ".css", ".svg")
)


class _Site:
    def __init__(
        self, source: Source, access: Access, history: History, *, interval: float, meters: Meters | None, grafana: str
    ) -> None:
        self._source = source
        self._access = access
        self._history = history
        self._grafana = grafana
        self._readings = Readings(meters, self._changed)
        self._views = UserViews(source, lambda each: site(each, history, self._readings), interval)
        self.pages = self._views.of(None).site.pages
        self._whatif_runs = whatif_runs.WhatIfRuns(source)
        self._table = CardTable(source.inventory)
        self._guard = LoopGuard("dashboard")

    async def running(self, _app: web.Application) -> AsyncIterator[None]:
        ends = (self._source.on_change(self._changed), self._source.on_claim(self._history.claim_changed))
        try:
            async with running(self._sample(), self._readings.run()):
                yield
        finally:
            for end in ends:
                end()

    def _changed(self) -> None:
        self._views.changed()

    async def _sample(self) -> None:
        while True:
            with self._guard.each("packing"):
                self._history.sample(packing(self._table), pending_count(self._source)[0])
            await asyncio.sleep(INTERVAL)

    # --- pages ------------------------------------------------------------------------------------

    async def page(self, request: web.Request) -> web.Response:
        page, wants = self.pages[request.path], _preferences(request)
        if page.reads_cards:
            self._readings.wanted()  # also if the fragment was rendered before
        try:
            body, _ = await self._view(request).broker.make(request.path_qs, wants.language)
        except NoSuchThing as error:
            return self._nothing(request, page, str(error))
        return self._answer(request, page, body)

    async def missing(self, request: web.Request) -> web.Response:
        if request.path.startswith("/api/"):
            return web.json_response({"error": f"there is nothing at {request.path}"}, status=404)
        return self._nothing(request, Page("", "nothing.html", "Not found", "", lambda _: {}), request.path)

    def _nothing(self, request: web.Request, page: Page, what: str) -> web.Response:
        context = {"what": what, "path": page.path, "section": page.section}
        body = render.fragment("nothing.html", context, _preferences(request).language)
        return self._answer(request, page, body, live=False, status=404)

    async def export(self, request: web.Request) -> web.StreamResponse:
        name, form = request.match_info["name"], request.match_info["form"]
        rows = self._view(request).site.exports.get(name)
        if rows is None or form not in FORMATS:
            raise web.HTTPNotFound(text="no such table\n")
        response = web.StreamResponse(headers=request.app[headers_key])
        response.content_type, response.charset = FORMATS[form], "utf-8"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}.{form}"'
        waiting: list[str] = []
        async for text in exported(rows(request.query), form):
            waiting.append(text)
            if len(waiting) >= _ROWS_AT_ONCE or not response.prepared:
                await response.prepare(request)
                await response.write("".join(waiting).encode())
                waiting.clear()
        await response.prepare(request)
        await response.write_eof("".join(waiting).encode())
        return response

    async def whatif(self, request: web.Request) -> web.Response:
        page = Page("/whatif", "whatif.html", "What if", "/whatif", lambda _: {})
        wants, query, status = _preferences(request), dict(request.query), 200
        if request[grant_key].namespaces is not None:
            body = render.fragment("whatif_refused.html", {}, wants.language)
            return self._answer(request, page, body, live=False, status=403)
        context: dict[str, object] = {
            "asked": query,
            "node_choices": whatif_runs.NODE_CHOICES,
            "device_choices": whatif_runs.DEVICE_CHOICES,
            "present": self._source.scheduling.policies,
            "found": None,
            "unplaced": [],
            "refused": "",
            "busy": False,
            "some_node": "" if "run" in query else self._some_node(),
        }
        if "run" in query:
            if not is_same_origin(request):
                raise web.HTTPForbidden(text="a simulation must be started from the dashboard itself\n")
            try:
                found = context["found"] = await self._whatif_runs.run(query)
                context["unplaced"] = whatif_runs.by_reason(found.unplaced)
            except whatif_runs.Busy:
                context["busy"], status = True, 429
            except whatif_runs.Refused as error:
                context["refused"], status = str(error), 400
        body = render.fragment("whatif.html", context, wants.language)
        return self._answer(request, page, body, live=False, status=status)

    def _some_node(self) -> str:
        """Return a node with pods, as an example; empty: there is none."""
        self._table.refresh()
        return next((row.name for row in node_rows(self._table) if row.ready and row.held_cards), "")

    def _answer(
        self, request: web.Request, page: Page, body: str, *, live: bool = True, status: int = 200
    ) -> web.Response:
        notices: list[tuple[str, dict[str, str]]] = []
        if self._source.problems():
            notices.append(
                ("The data may be outdated: the API server does not answer the controller at the moment.", {})
            )
        view = self._view(request)
        if view.namespaces is not None:
            mine = ", ".join(sorted(view.namespaces)[:_NAMESPACES_NAMED])
            mine += ", ..." if len(view.namespaces) > _NAMESPACES_NAMED else ""
            notices.append(
                ("You see the workloads of {namespaces} only; what others hold is gray.", {"namespaces": mine})
            )
        if not self._source.state.is_leader:
            notices.append(("This replica is on standby; the leader makes and stores decisions.", {}))
        frame = render.Frame(
            page,
            here=request.path_qs,
            state=self._source.state,
            pending=view.broker.pending(),
            sees_all=view.namespaces is None,
            grafana=self._grafana,
            is_open=self._access.is_open,
            notices=notices,
        )
        return _html(render.whole(frame, body, _preferences(request), live=live), status)

    async def events(self, request: web.Request) -> web.StreamResponse:
        view, language = request.query.get("view", "/"), request.query.get("lang", "en")
        if not is_own_path(view) or language not in LANGUAGES:
            raise web.HTTPBadRequest(text="view must be a path of this site, lang one of its languages\n")
        token, mine = token_of(request), request[grant_key].namespaces

        async def may_look() -> bool:
            grant = await self._access.grant(token)
            if grant.verdict in (AccessVerdict.UNCLEAR, AccessVerdict.BUSY):
                return True
            return grant.verdict is AccessVerdict.ALLOWED and grant.namespaces == mine

        return await self._view(request).broker.follow(request, view, language, request.query.get("seen", ""), may_look)

    def _view(self, request: web.Request) -> UserView:
        return self._views.of(request[grant_key].namespaces)

    def decisions(self, request: web.Request) -> Decisions:
        return self._view(request).source.decisions

    # --- login and logout -------------------------------------------------------------------------

    async def refused(self, request: web.Request) -> web.Response:
        verdict = request[verdict_key]
        context = {"verdict": verdict.name, "here": request.path_qs}
        return _html(render.alone("refused.html", context, _preferences(request)), verdict.status)

    async def login_form(self, request: web.Request) -> web.Response:
        token = token_of(request)
        is_unknown = token and (await self._access.grant(token)).verdict is AccessVerdict.UNKNOWN
        problem = AccessVerdict.UNKNOWN.name if is_unknown else ""  # a session that has expired
        return self._login_page(request, request.query.get("next", "/"), problem)

    def _login_page(self, request: web.Request, onward: str, problem: str, status: int = 200) -> web.Response:
        context = {"next": onward if is_own_path(onward) else "/", "problem": problem, "here": request.path_qs}
        return _html(render.alone("login.html", context, _preferences(request)), status)

    async def login(self, request: web.Request) -> web.Response:
        if not is_same_origin(request):
            raise web.HTTPForbidden(text="log in on the dashboard itself\n")
        form = await request.post()
        token, onward = str(form.get("token", "")).strip(), str(form.get("next", "/"))
        verdict = (await self._access.grant(token)).verdict
        if verdict is not AccessVerdict.ALLOWED:
            return self._login_page(request, onward, verdict.name, verdict.status)
        if len(token) > LONGEST_COOKIE:
            return self._login_page(request, onward, "TOO_LONG", 413)
        response = _onward(onward)
        response.set_cookie(
            COOKIE, token, httponly=True, samesite="Strict", secure=_is_https(request), path="/", max_age=None
        )
        return response

    async def logout(self, request: web.Request) -> web.Response:
        if not is_same_origin(request):
            raise web.HTTPForbidden(text="log out on the dashboard itself\n")
        response = _onward("/login")
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
        return response

    async def settings(self, request: web.Request) -> web.Response:
        if not is_same_origin(request):
            raise web.HTTPForbidden(text="choose on the dashboard itself\n")
        form = await request.post()
        onward = str(form.get("next", "/"))
        response = _onward(onward)
        for name, cookie, choices in (("lang", LANGUAGE_COOKIE, LANGUAGES), ("theme", THEME_COOKIE, THEMES)):
            value = str(form.get(name, ""))
            if value in choices:
                response.set_cookie(
                    cookie, value, httponly=True, samesite="Strict", secure=_is_https(request), max_age=_YEAR, path="/"
                )
        return response


def _preferences(request: web.Request) -> Preferences:
    return preferences(request.cookies, request.headers.get("Accept-Language", ""))


def _is_https(request: web.Request) -> bool:
    """Return whether the connection is HTTPS, here or at a proxy. Forging its header harms only the client."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _onward(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path if is_own_path(path) else "/"})


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)
