"""hack/controlplane/api.py and credentials.py against a small HTTPS server that one's own authority has signed."""

import http.client
import http.server
import json
import ssl
import threading

import pytest
import yaml

from hack.controlplane.api import Api, ApiError, NotReached
from hack.controlplane.credentials import Authority, signing_key, write_kubeconfig

PODS = {"name": "pods", "kind": "Pod", "namespaced": True}
NODES = {"name": "nodes", "kind": "Node", "namespaced": False}
STATUS_OF_PODS = {"name": "pods/status", "kind": "Pod", "namespaced": True}


class Server(http.server.ThreadingHTTPServer):
    """Answers by method and path; `seen` holds (method, path, headers, body)."""

    daemon_threads = True

    def __init__(self, authority, hosts):
        super().__init__(("127.0.0.1", 0), Handler)
        pair = authority.server("server", hosts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(authority.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answers = {}
        self.seen = []
        self.close_after_answer = False

    @property
    def url(self):
        return f"https://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that refuses the certificate is part of a test."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
        status, content = self.server.answers.get((self.command, self.path), (404, {"reason": "NotFound"}))
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        # Not announced with `Connection: close`: this is what a restart looks like to a client that keeps connections.
        self.close_connection = self.server.close_after_answer

    def log_message(self, *_):
        pass


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def server(authority):
    with Server(authority, ["127.0.0.1", "localhost"]) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.fixture
def api(server, authority):
    client = Api(server.url, authority.ca_file, "secret")
    yield client
    client.close()


def test_requests_carry_the_token_the_body_and_the_patch_type(api, server):
    server.answers["PATCH", "/api/v1/nodes/n?fieldManager=me"] = (200, {"ok": 1})
    assert api.patch("/api/v1/nodes/n", {"a": 1}, "apply", fieldManager="me") == {"ok": 1}
    [(_, _, headers, body)] = server.seen
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert body == {"a": 1}


def test_an_error_keeps_what_the_server_said(api, server):
    server.answers["POST", "/x"] = (422, {"reason": "Invalid", "message": "spec.a: Required value", "details": {}})
    with pytest.raises(ApiError, match=r"POST /x: 422 Invalid: spec\.a: Required value") as error:
        api.create("/x", {})
    assert (error.value.status, error.value.reason) == (422, "Invalid")
    assert error.value.body["details"] == {}


def test_an_error_that_is_no_json_is_shown_as_it_is(api, server):
    server.answers["GET", "/x"] = (502, b"<html>bad gateway</html>")
    with pytest.raises(ApiError, match="502 : <html>bad gateway"):
        api.get("/x")


def test_deleting_what_is_gone_is_fine_unless_asked(api):
    assert api.delete("/x", gracePeriodSeconds=0) == {}
    with pytest.raises(ApiError):
        api.delete("/x", missing_ok=False)


def test_a_kept_connection_that_the_server_dropped_is_replaced(api, server):
    server.answers["GET", "/x"] = (200, {"n": 1})
    server.close_after_answer = True
    assert [api.get("/x") for _ in range(3)] == [{"n": 1}] * 3


def test_no_server_is_not_an_api_error(authority):
    client = Api("https://127.0.0.1:1", authority.ca_file, "secret")
    with pytest.raises(NotReached, match=r"GET /x on 127\.0\.0\.1:1"):
        client.get("/x")


def test_a_server_of_another_authority_is_refused(server, tmp_path):
    (tmp_path / "other").mkdir()
    client = Api(server.url, Authority(tmp_path / "other").ca_file, "secret")
    with pytest.raises(NotReached, match="CERTIFICATE_VERIFY_FAILED"):
        client.get("/x")


def test_a_watch_yields_events_until_the_server_ends_it(api, server):
    events = [{"type": "ADDED", "object": {"n": n}} for n in range(3)]
    content = "".join(json.dumps(event) + "\n" for event in events).encode()
    server.answers["GET", "/pods?watch=1&timeoutSeconds=5&resourceVersion=7"] = (200, content)
    assert list(api.watch("/pods", seconds=5, resourceVersion="7")) == events
    with pytest.raises(ApiError, match="WATCH /nothing: 404"):
        list(api.watch("/nothing", seconds=5))


def test_paths_of_objects_come_from_discovery(api, server):
    server.answers["GET", "/api/v1"] = (200, {"resources": [STATUS_OF_PODS, PODS, NODES]})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}}
    assert api.path_of(pod) == "/api/v1/namespaces/a/pods/p"
    assert api.path_of({**pod, "metadata": {"name": "p"}}, collection=True) == "/api/v1/namespaces/default/pods"
    assert api.path_of({**pod, "kind": "Node"}) == "/api/v1/nodes/p"
    assert len(server.seen) == 1
    with pytest.raises(ApiError, match="v1 has no kind Podd"):
        api.path_of({**pod, "kind": "Podd"})


def test_waiting_treats_a_missing_object_as_not_yet_and_says_what_it_waited_for(api, server):
    calls = []

    def appears():
        calls.append(1)
        if len(calls) == 3:
            server.answers["GET", "/x"] = (200, {"n": 1})
        return api.get("/x")

    assert api.wait_for("x", appears, every=0.001) == {"n": 1}
    with pytest.raises(TimeoutError, match=r"not within 0\.01 s: the moon"):
        api.wait_for("the moon", lambda: None, seconds=0.01, every=0.001)


def test_a_client_certificate_says_user_and_groups(server, authority):
    pair = authority.user("system:node:n", ["system:nodes"])
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.load_cert_chain(pair.certificate, pair.key)
    server.answers["GET", "/x"] = (200, {})
    connection = http.client.HTTPSConnection("127.0.0.1", server.server_port, context=context)
    connection.request("GET", "/x")
    assert connection.getresponse().status == 200
    connection.close()
    text = ssl._ssl._test_decode_cert(str(pair.certificate))["subject"]
    assert text == ((("organizationName", "system:nodes"),), (("commonName", "system:node:n"),))


def test_a_kubeconfig_is_complete_and_private(authority, tmp_path):
    path = write_kubeconfig(tmp_path / "k", url="https://h:1", ca_file=authority.ca_file, token="secret", namespace="a")
    content = yaml.safe_load(path.read_text())
    assert content["users"][0]["user"] == {"token": "secret"}
    assert content["clusters"][0]["cluster"]["server"] == "https://h:1"
    assert content["contexts"][0]["context"]["namespace"] == "a"
    keys = [path, signing_key(tmp_path / "s.key"), authority.user("u").key]
    assert {one.stat().st_mode & 0o077 for one in keys} == {0}
