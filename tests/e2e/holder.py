"""Stops a program at an exact point: the API server asks an admission webhook here, which keeps writes waiting.

While a write is held, the program that sent it can be killed between two of its steps. Then `drop()` sees to it that the
write never lands; the API server gives a request up when its sender is gone, but who knows when it notices.
"""

import base64
import json
import secrets
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTROLLER = "system:serviceaccount:hami-dra-system:hami-dra-controller"
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_EVICTION = "pods/eviction"


class Holder:
    """`with Holder(plane, "resourceclaims/status") as holder:`, then `arm()`, `wait_caught()`, and `let_go()`, or kill and `drop()`.

    Held are updates of a resource, or creations of "pods/eviction".
    """

    def __init__(self, plane, resource, *, user=CONTROLLER):
        self._plane = plane
        self._group, self._resource = ("" if resource.startswith("pods") else "resource.k8s.io", resource)
        self._user = user
        self._name = f"holder-{secrets.token_hex(4)}.example.com"
        self._lock = threading.Lock()
        self._armed = False
        self._to_pass = 0
        self._asked = 0
        self.caught = threading.Event()
        self._released = threading.Event()
        self._dropped = False

    def arm(self, *, after=0):
        """Hold the next write, or the one after so many others, and all that follow it."""
        with self._lock:
            self._armed, self._to_pass = True, after

    def wait_caught(self):
        assert self.caught.wait(60), f"no write to {self._resource} came"

    def let_go(self):
        """Held writes go on, and nothing is held any more."""
        self._released.set()

    def drop(self):
        """Held writes are refused: whoever sent them is dead. Nothing is held any more."""
        self._dropped = True
        self._released.set()

    def asked(self):
        """How many writes came so far."""
        return self._asked

    # -- server ----------------------------------------------------------------------------------------------------

    def __enter__(self):
        pair = self._plane._authority.server(self._name, ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._plane.api.create(_PATH, self._configuration())
        self._wait_asked()
        return self

    def __exit__(self, *_):
        self._plane.api.delete(f"{_PATH}/{self._name}")
        self._armed = False
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def review(self, body):
        with self._lock:
            self._asked += 1
            hold = self._armed and self._to_pass == 0
            # several writes may be under way side by side: once one is held, all that follow are
            self._to_pass = max(self._to_pass - 1, 0) if self._armed else 0
        allowed = True
        if hold:
            self.caught.set()
            # its sender has given up long before the time is over; it must not land when nobody counts on it any more
            allowed = self._released.wait(25) and not self._dropped
        response = {"uid": body["request"]["uid"], "allowed": allowed}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _configuration(self):
        rule = {
            "apiGroups": [self._group],
            "apiVersions": ["*"],
            "operations": ["CREATE" if self._resource == _EVICTION else "UPDATE"],
            "resources": [self._resource],
        }
        webhook = {
            "name": self._name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "rules": [rule],
            "matchConditions": [{"name": "who", "expression": f"request.userInfo.username == {self._user!r}"}],
            "clientConfig": {
                "url": f"https://127.0.0.1:{self._server.server_address[1]}/",
                "caBundle": base64.b64encode(self._plane.ca_file.read_bytes()).decode(),
            },
        }
        return {"metadata": {"name": self._name}, "webhooks": [webhook]}

    def _wait_asked(self):
        """A new configuration takes a moment to be in force: dry runs as that user show when."""
        account = self._plane.token_for_service_account("hami-dra-system", "hami-dra-controller")
        user, admin = self._plane.api_as(account), self._plane.api
        scratch = {"metadata": {"generateName": "scratch-"}}
        if not self._group:
            folder = "/api/v1/namespaces/default/pods"
            scratch["spec"] = {
                "containers": [{"name": "main", "image": "none"}],
                "schedulingGates": [{"name": "a.b/c"}],
            }
        else:
            folder = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
            scratch["spec"] = {}
        name = admin.create(folder, scratch)["metadata"]["name"]
        made = f"{folder}/{name}"
        target = f"{made}/status" if self._resource.endswith("/status") else made
        try:

            def asked():
                # changes nothing, and is admitted as any other
                if self._resource == _EVICTION:
                    user.create(f"{made}/eviction", {"metadata": {"name": name}}, dryRun="All")
                else:
                    user.patch(target, {}, dryRun="All")
                return self._asked

            admin.wait_for("the holder to be asked", asked)
        finally:
            admin.delete(made, gracePeriodSeconds=0)
            user.close()


def _handler(holder):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(holder.review(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    return Handler
