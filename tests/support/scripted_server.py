"""An API server on loopback that answers by a script."""

import asyncio
import json

from aiohttp import web
from aiohttp.test_utils import TestServer


class Server:
    """Answers in the order given; the last answer repeats. `seen` keeps the requests."""

    def __init__(self):
        self.answers = []
        self.seen = []
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.server = TestServer(app)

    async def handle(self, request):
        body = (await request.read()).decode(errors="replace")
        self.seen.append((request.method, request.path, dict(request.query), request.headers.copy(), body))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return await answer(request) if callable(answer) else answer.clone()

    def will(self, *answers):
        self.answers = list(answers)

    @property
    def url(self):
        return str(self.server.make_url("")).rstrip("/")


class Answer:
    def __init__(self, body, status=200, **headers):
        self.body, self.status, self.headers = body, status, headers

    def clone(self):
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        headers = {name.replace("_", "-"): value for name, value in self.headers.items()}
        return web.Response(text=text, status=self.status, headers=headers, content_type="application/json")


def status(code, reason="", message="the server says why", **details):
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return Answer(body, code)


def stream(*chunks, then=None):
    """A watch that sends these chunks and ends, or does `then` first."""

    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if then is not None:
            await then()
        return response

    return answer


def event(kind, name, version, **more):
    item = {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)}, **more}
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"
