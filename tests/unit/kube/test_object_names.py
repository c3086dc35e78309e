"""Names for shell completion: the request, TLS with another name in the certificate, a proxy, failures."""

import json
import socket
import ssl
import threading
from contextlib import contextmanager

import pytest

from hami_dra.api import kinds
from hami_dra.kube.credentials import Access, FixedIdentity
from hami_dra.kube.object_names import object_names
from hami_dra.kube.protocol import Unavailable
from tests.support.certificates import serving_tls

ANSWER = json.dumps({"items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "a"}}]}).encode()


@contextmanager
def answering(*answers, tls=None):
    """A server that takes one connection and gives these answers in turn; yields its port and the heads it was sent."""
    heads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            with connection:
                for answer in answers:
                    heads.append(connection.recv(65536).decode())
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], heads
        thread.join()


def ok(body=ANSWER):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_only_metadata_is_asked_for_with_the_credentials_of_the_user():
    with answering(ok()) as (port, heads):
        access = Access(f"http://127.0.0.1:{port}/k8s/clusters/c-1", FixedIdentity("Bearer t0ken"))
        assert object_names(access, kinds.POD, "team", seconds=5) == ["b", "a"]
    first, *headers = heads[0].split("\r\n")
    assert first == "GET /k8s/clusters/c-1/api/v1/namespaces/team/pods?limit=500 HTTP/1.1"
    assert "Authorization: Bearer t0ken" in headers
    assert any(each.startswith("Accept: application/json;as=PartialObjectMetadataList") for each in headers)


def test_the_certificate_is_checked_against_the_server_name_of_the_kubeconfig(tmp_path):
    serving, authorities = serving_tls(tmp_path, "api.internal")
    trust = ssl.create_default_context(cadata=authorities)
    with answering(ok(), tls=serving) as (port, _):
        access = Access(f"https://127.0.0.1:{port}", tls=trust, server_name="api.internal")
        assert object_names(access, kinds.NODE, "", seconds=5) == ["b", "a"]


def test_a_proxy_is_asked_for_a_tunnel_with_its_password():
    with answering(b"HTTP/1.1 200 Connection established\r\n\r\n", ok()) as (port, heads):
        access = Access("http://api.example.com:6443", proxy=f"http://me:p%40ss@127.0.0.1:{port}")
        assert object_names(access, kinds.NODE, "", seconds=5) == ["b", "a"]
    assert heads[0].startswith("CONNECT api.example.com:6443 ")
    assert "Proxy-Authorization: Basic bWU6cEBzcw==" in heads[0]
    assert heads[1].startswith("GET /api/v1/nodes?limit=500 ")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", ok(b"<html>"), ok(b"[]"), b""]
)
def test_any_other_answer_is_one_kind_of_error(answer):
    with answering(answer) as (port, _), pytest.raises(Unavailable, match="list nodes"):
        object_names(Access(f"http://127.0.0.1:{port}"), kinds.NODE, "", seconds=5)
