"""An API server that is only read, on loopback, in a thread: for commands that read a cluster by themselves."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import yaml

from hami_dra.api import kinds
from hami_dra.kube.selectors import field_predicate, label_predicate

_ASKED = re.compile(
    r"(?P<root>/api/v1/|/apis/[^/]+/[^/]+/)(namespaces/(?P<namespace>[^/]+)/)?(?P<plural>[^/]+)(/(?P<name>[^/]+))?"
)


class Served:
    """`objects`: JSON with kind and apiVersion. `forbidden`, `absent`: plurals that may not be read, or are not served.

    `version`: of Kubernetes, as major.minor. `message`: what is said of each that is forbidden.
    """

    def __init__(self, objects, *, forbidden=(), absent=(), page=500, version="1.37", message=""):
        self.objects, self.forbidden, self.absent, self.page = list(objects), set(forbidden), set(absent), page
        self.version, self.message = version, message
        self.seen = []
        """(path, Authorization header)"""
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                parts = urlsplit(self.path)
                served.seen.append((parts.path, self.headers.get("Authorization", "")))
                self.answer(*served.answer(parts.path, parse_qs(parts.query)))

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.answer(403, {"kind": "Status", "code": 403, "message": "may only read"})

            def answer(self, code, body):
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, folder, token="t0ken"):
        path = folder / "kubeconfig"
        config = {
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def answer(self, path, query):
        if path == "/version":
            return 200, dict(zip(("major", "minor"), self.version.split("."), strict=True))
        if resources := [each.plural for each in kinds.ALL if each.path().rpartition("/")[0] == path]:
            return 200, {"resources": [{"name": each} for each in resources if each not in self.absent]}
        asked = _ASKED.fullmatch(path)
        kind = next((each for each in kinds.ALL if asked and each.path() == asked["root"] + asked["plural"]), None)
        if kind is None or kind.plural in self.absent:
            return 404, {"kind": "Status", "code": 404, "message": "the server could not find the requested resource"}
        if kind.plural in self.forbidden:
            return 403, {
                "kind": "Status",
                "code": 403,
                "message": self.message or f'cannot list resource "{kind.plural}"',
            }
        labelled = label_predicate(query.get("labelSelector", [""])[0])
        chosen = field_predicate(query.get("fieldSelector", [""])[0], kind.plural)
        found = [
            {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
            for each in self.objects
            if (each["kind"], each["apiVersion"]) == (kind.name, kind.api_version)
            and asked["namespace"] in (None, each["metadata"].get("namespace", "default"))
            and asked["name"] in (None, each["metadata"]["name"])
            and labelled(each)
            and chosen(each)
        ]
        if asked["name"]:
            return (200, found[0]) if found else (404, {"kind": "Status", "code": 404, "message": f"{path} not found"})
        start = int(query.get("continue", ["0"])[0])
        size = min(self.page, int(query.get("limit", ["100000"])[0]))
        left = len(found) - start - size
        metadata = {"resourceVersion": "7"}
        if left > 0:
            metadata |= {"continue": str(start + size), "remainingItemCount": left}
        return 200, {"kind": f"{kind.name}List", "metadata": metadata, "items": found[start : start + size]}
