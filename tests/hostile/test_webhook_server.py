"""The admission server as any pod of the cluster network meets it: nothing is written or told, and nothing is a traceback (M1).

Connections without end, and slow ones: test_httpserver_limits.py.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from datetime import UTC, datetime

import pytest

from controller.settings.webhook import CertificateSettings
from controller.webhook.notices import MOST
from controller.webhook.server.certificates import renewed
from controller.webhook.server.server import Server, WebhookSettings
from hami_dra.httpserver import Limits
from tests.support.steered_cluster import SteeredCluster
from tests.unit.webhook.server.test_server import HOSTS, LOCAL, call
from tests.unit.webhook.test_admission import review

DEEP = 20_000


def deep(prefix, suffix):
    """A review in whose pod something nests deeper than any interpreter follows."""
    text = json.dumps(review())
    return text.replace(
        '"metadata": {', '"metadata": {"managedFields": ' + prefix * DEEP + suffix * DEEP + ", ", 1
    ).encode()


def with_pod(**changes):
    body = review()
    body["request"]["object"] |= changes
    return json.dumps(body).encode()


UNREADABLE = {
    "nothing": b"",
    "not UTF-8": json.dumps(review()).encode().replace(b'"web"', b'"\xff"'),
    "deep objects": deep('{"a":', "}").replace(b'{"a":}', b"{}"),
    "deep lists": deep("[", "]"),
    "a lone surrogate": json.dumps(review()).encode().replace(b'"web"', b'"\\ud800"'),
    "kind is a string": json.dumps(review(kind="Pod")).encode(),
    "a list": b"[]",
    "a number too large": json.dumps(review()).encode().replace(b'"web"', b"1e999"),
    "NUL": b"\x00" * 100,
}
ODD_PODS = {
    "spec is a list": {"spec": []},
    "metadata is a string": {"metadata": "x"},
    "annotations are a list": {"metadata": {"annotations": []}},
    "an annotation is a number": {"metadata": {"annotations": {"nvidia.com/use-gputype": 7}}},
    "a label is an object": {"metadata": {"labels": {"hami.io/webhook": {}}}},
    "containers are strings": {"spec": {"containers": ["a"]}},
    "limits are a list": {"spec": {"containers": [{"name": "a", "resources": {"limits": ["nvidia.com/gpu"]}}]}},
    "a limit is an object": {"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": {}}}}]}},
    "gates are strings": {
        "metadata": {"labels": {"hami.io/dra": "true"}},
        "spec": {"schedulingGates": ["a"], "resourceClaims": [{"name": "a"}], "containers": []},
    },
}


@pytest.fixture
def authority(tmp_path):
    material = renewed(None, ("127.0.0.1",), datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(material.authorities)
    (tmp_path / "ca.key").write_bytes(material.authority_key)
    return tmp_path


@pytest.fixture
async def serve(authority):
    """`serve(**settings)`: a ready server and the PEM that its clients trust."""
    servers = []

    async def start(**settings):
        cluster = SteeredCluster()
        certificates = CertificateSettings(hosts=HOSTS, authority_folder=authority)
        server = Server(cluster, WebhookSettings(**LOCAL | {"certificates": certificates} | settings))
        servers.append(server)
        await server.__aenter__()
        await server.ready()
        server.cluster = cluster
        return server, (authority / "ca.crt").read_text()

    yield start
    for server in servers:
        await server.__aexit__(None, None, None)


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_cannot_be_read_is_a_bad_request_and_one_line_of_the_log(serve, data, caplog):
    server, trusted = await serve()
    with caplog.at_level(logging.INFO):
        status, _ = await call(server, trusted, "/mutate", data=data)
    assert status == 400
    reported = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(reported) == 1
    assert "\n" not in reported[0].getMessage()
    assert not any(record.exc_info for record in reported)


@pytest.mark.parametrize("changes", ODD_PODS.values(), ids=ODD_PODS)
async def test_a_pod_of_any_shape_is_an_answer(serve, changes, caplog):
    server, trusted = await serve()
    status, _ = await call(server, trusted, "/mutate", data=with_pod(**changes))
    assert status in (200, 400)
    assert "Traceback" not in caplog.text


ODD_WORKLOADS = {
    "no spec": {"spec": None},
    "a template that is a list": {"spec": {"template": []}},
    "metadata is a list": {"metadata": [], "spec": {"template": {"spec": {}}}},
    "annotations are numbers": {"metadata": {"annotations": 7}, "spec": {"template": {"metadata": 7, "spec": 7}}},
    "20,000 unknown keys": {
        "metadata": {"annotations": {f"hami.io/{n}": "" for n in range(20_000)}},
        "spec": {"template": {"spec": {}}},
    },
    "20,000 resources": {
        "spec": {
            "template": {
                "spec": {"containers": [{"resources": {"limits": {f"nvidia.com/x{n}": 1 for n in range(20_000)}}}]}
            }
        }
    },
}


@pytest.mark.parametrize("path", ["/advise", "/advise-unconverted"])
@pytest.mark.parametrize("changes", ODD_WORKLOADS.values(), ids=ODD_WORKLOADS)
async def test_advice_about_a_workload_of_any_shape_is_allowed_or_unreadable(serve, changes, path, caplog):
    """The configuration ignores a webhook that answers with an error: nothing is refused either way."""
    server, trusted = await serve()
    body = review({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}} | changes)
    status, text = await call(server, trusted, path, body)
    assert status == 200
    response = json.loads(text)["response"]
    assert response["allowed"]
    assert response.keys() <= {"uid", "allowed", "warnings"}
    assert len(response.get("warnings", ())) <= MOST
    assert "Traceback" not in caplog.text
    assert not server.cluster.requests


@pytest.mark.parametrize("path", ["/advise", "/advise-unconverted"])
@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
async def test_unreadable_requests_for_advice_are_bad_requests(serve, data, path):
    server, trusted = await serve()
    assert (await call(server, trusted, path, data=data))[0] == 400


async def test_a_body_that_is_too_large_is_refused(serve):
    server, trusted = await serve()
    trust = ssl.create_default_context(cadata=trusted)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
    writer.write(b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b" " * (5 << 20))
    assert b" 413 " in await reader.readline()
    writer.close()
    assert (await call(server, trusted, "/mutate", review()))[0] == 200


async def test_nothing_is_written_and_no_namespace_is_read(serve):
    """M1: templates in kube-system at 140 a second, and the quotas of others."""
    server, trusted = await serve()
    for namespace in ("kube-system", "hami-dra-system", "somebody-elses"):
        status, text = await call(server, trusted, "/mutate", review(namespace=namespace))
        assert status == 200
        assert ('"patch"' in text) == (namespace == "somebody-elses")
    assert not server.cluster.requests


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /mutate HTTP/1.1\r\nHost: a\r\n",
        b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
    ],
    ids=["nothing", "half a header", "half a body"],
)
async def test_a_request_that_never_ends_is_ended(serve, begun, caplog):
    """L5: byte by byte, so that a limit on silence alone would never pass."""
    server, trusted = await serve(limits=Limits(headers=0.3))
    trust = ssl.create_default_context(cadata=trusted)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
    writer.write(begun)

    async def drip():
        while begun:
            await asyncio.sleep(0.1)
            writer.write(b"a")

    dripping = asyncio.ensure_future(drip())
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    dripping.cancel()
    writer.close()
    assert (await call(server, trusted, "/mutate", review()))[0] == 200
    assert "Traceback" not in caplog.text
