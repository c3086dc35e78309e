"""The admission server over real TLS on loopback, against the memory cluster."""

import asyncio
import base64
import ssl
from datetime import UTC, datetime

import aiohttp
import pytest

from controller.settings.webhook import CertificateSettings
from controller.webhook.server.certificates import renewed
from controller.webhook.server.server import Server, WebhookSettings, serve
from hack.controlplane.credentials import Authority
from hami_dra.api import kinds, names
from hami_dra.api.errors import ConfigError
from tests.support.steered_cluster import SteeredCluster
from tests.unit.webhook.server.test_certificates import NOW
from tests.unit.webhook.test_admission import review

HOSTS = ("127.0.0.1",)
LOCAL = {
    "host": "127.0.0.1",
    "port": 0,
    "certificates": CertificateSettings(hosts=HOSTS),
    "retry_interval": 0.01,
    "upkeep_interval": 0.01,
}


@pytest.fixture
async def cluster():
    cluster = SteeredCluster()
    webhooks = [{"name": "a", "clientConfig": {"url": "https://x"}}]
    for kind in (kinds.MUTATING_WEBHOOK, kinds.VALIDATING_WEBHOOK):
        await cluster.create(kind, {"metadata": {"name": "hami-dra-webhook"}, "webhooks": webhooks})
    secret = {"metadata": {"name": names.WEBHOOK_SECRET}, "type": "Opaque"}
    await cluster.create(kinds.SECRET, secret, namespace=names.SYSTEM_NAMESPACE)
    return cluster


async def bundle(cluster):
    raw = await cluster.get_raw(kinds.MUTATING_WEBHOOK, "hami-dra-webhook")
    return base64.b64decode(raw["webhooks"][0]["clientConfig"].get("caBundle", "")).decode()


async def call(server, authorities, path, body=None, *, data=None, show=None):
    """Status and body of one request by a client that trusts these authorities and nobody else.

    `show`: files of the certificate that it shows, and of its key.
    """
    trust = ssl.create_default_context(cadata=authorities)
    if show is not None:
        trust.load_cert_chain(*show)
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}{path}"
        method = "GET" if body is None and data is None else "POST"
        async with session.request(method, url, json=body, data=data, ssl=trust) as response:
            return response.status, await response.text()


async def test_the_api_server_is_told_whom_to_trust_and_then_answered(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        status, text = await call(server, await bundle(cluster), "/mutate", review())
        assert status == 200
        assert '"allowed":true' in text
        assert '"patch":' in text
        for path in ("/healthz", "/readyz"):
            assert await call(server, await bundle(cluster), path) == (200, "ok")


async def test_the_configuration_of_advice_trusts_the_same_authority_and_may_be_missing(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        raw = await cluster.get_raw(kinds.VALIDATING_WEBHOOK, "hami-dra-webhook")
        assert base64.b64decode(raw["webhooks"][0]["clientConfig"]["caBundle"]).decode() == await bundle(cluster)
        status, text = await call(server, await bundle(cluster), "/advise", review())
        assert (status, '"allowed":true' in text, '"patch"' in text) == (200, True, False)
    await cluster.delete(kinds.VALIDATING_WEBHOOK, "hami-dra-webhook")
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"apiVersion": "admission.k8s.io/v1"}'])
async def test_nonsense_is_a_bad_request(cluster, data):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        assert (await call(server, await bundle(cluster), "/mutate", data=data))[0] == 400


async def test_without_a_configuration_it_lives_but_is_not_ready(cluster):
    await cluster.delete(kinds.MUTATING_WEBHOOK, "hami-dra-webhook")
    asked = asyncio.Event()

    async def notice(request):
        if request.kind is kinds.MUTATING_WEBHOOK:
            asked.set()

    cluster.hooks.append(notice)
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await asked.wait()
        secret = await cluster.get(kinds.SECRET, names.WEBHOOK_SECRET, names.SYSTEM_NAMESPACE)
        authorities = base64.b64decode(secret.data["ca.crt"]).decode()
        assert await call(server, authorities, "/healthz") == (200, "ok")
        status, why = await call(server, authorities, "/readyz")
        assert status == 503
        assert why


async def served(server, authorities):
    """Once the server shows a certificate of the authorities that `authorities` finds."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call(server, await authorities(), "/readyz")
            except aiohttp.ClientConnectorCertificateError:
                await asyncio.sleep(0.01)


async def test_a_new_secret_is_served_and_trusted_without_a_restart(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        first = await bundle(cluster)
        emptied = {"data": dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"))}
        await cluster.patch(kinds.SECRET, names.WEBHOOK_SECRET, emptied, namespace=names.SYSTEM_NAMESPACE)

        async def second():
            secret = await cluster.get(kinds.SECRET, names.WEBHOOK_SECRET, names.SYSTEM_NAMESPACE)
            return base64.b64decode(secret.data["ca.crt"]).decode()

        async def made_again(request):
            if request.label == "patch mutatingwebhookconfigurations":
                done.set()

        done = asyncio.Event()
        cluster.hooks.append(made_again)
        await done.wait()
        assert await served(server, second) == (200, "ok")
        assert await bundle(cluster) == await second() != first


async def test_it_makes_neither_secret_nor_configuration_again(cluster):
    """Both are deleted when hami-dra is uninstalled, and the webhook runs for a while still."""
    looks = 0
    looked = asyncio.Event()

    async def count(request):
        nonlocal looks
        if request.kind is kinds.SECRET and request.verb == "get":
            looks += 1
            if looks == 3:  # of these the second one at least began after both were gone
                looked.set()

    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        await cluster.delete(kinds.MUTATING_WEBHOOK, "hami-dra-webhook")
        await cluster.delete(kinds.SECRET, names.WEBHOOK_SECRET, namespace=names.SYSTEM_NAMESPACE)
        cluster.hooks.append(count)
        await looked.wait()
        assert (await cluster.list(kinds.SECRET)).items == ()


async def test_an_authority_may_be_files_and_each_replica_signs_for_itself(tmp_path):
    def write(material):
        (tmp_path / "ca.crt").write_bytes(material.authorities)
        (tmp_path / "ca.key").write_bytes(material.authority_key)

    first, second = (renewed(None, ("127.0.0.1",), datetime.now(UTC)) for _ in range(2))
    write(first)
    cluster = SteeredCluster()
    settings = WebhookSettings(**LOCAL | {"certificates": CertificateSettings(hosts=HOSTS, authority_folder=tmp_path)})
    async with Server(cluster, settings) as server, Server(cluster, settings) as other:
        for one in (server, other):
            await one.ready()
            assert await call(one, first.authorities.decode(), "/readyz") == (200, "ok")
        write(second)

        async def authorities():
            return second.authorities.decode()

        assert await served(server, authorities) == (200, "ok")
    assert not cluster.requests


async def test_only_clients_with_a_certificate_may_ask_where_that_was_chosen(cluster, tmp_path):
    authority = renewed(None, ("127.0.0.1",), datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(authority.authorities)
    (tmp_path / "tls.crt").write_bytes(authority.certificate)
    (tmp_path / "tls.key").write_bytes(authority.key)
    clients = Authority(tmp_path)
    known = clients.user("kube-apiserver", ())
    (tmp_path / "clients.crt").write_bytes(authority.authorities + clients.ca_file.read_bytes())
    async with Server(cluster, WebhookSettings(**LOCAL, client_ca=tmp_path / "clients.crt")) as server:
        await server.ready()
        trusted = await bundle(cluster)
        assert await call(server, trusted, "/readyz") == (200, "ok")  # kubelet shows none
        status, text = await call(server, trusted, "/mutate", review())
        assert (status, "client certificate" in text) == (403, True)
        shown = (known.certificate, known.key)
        assert (await call(server, trusted, "/mutate", review(), show=shown))[0] == 200
        # that of a server is refused as a client's: it is for serverAuth
        with pytest.raises((aiohttp.ClientError, OSError)):
            await call(server, trusted, "/mutate", review(), show=(tmp_path / "tls.crt", tmp_path / "tls.key"))


async def test_certificates_may_be_files_and_are_read_again_when_they_change(tmp_path):
    def write(material):
        (tmp_path / "tls.crt").write_bytes(material.certificate)
        (tmp_path / "tls.key").write_bytes(material.key)

    first, second = renewed(None, ("127.0.0.1",), NOW), renewed(None, ("127.0.0.1",), NOW)
    write(first)
    cluster = SteeredCluster()
    certificates = CertificateSettings(hosts=HOSTS, cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key")
    settings = WebhookSettings(**LOCAL | {"certificates": certificates})
    async with Server(cluster, settings) as server:
        await server.ready()
        assert await call(server, first.authorities.decode(), "/readyz") == (200, "ok")
        write(second)

        async def authorities():
            return second.authorities.decode()

        assert await served(server, authorities) == (200, "ok")
    assert not cluster.requests


def test_a_certificate_file_needs_a_key_file(tmp_path):
    with pytest.raises(ConfigError, match="give both or neither"):
        CertificateSettings(cert_file=tmp_path / "tls.crt")
    with pytest.raises(ConfigError, match="exclude each other"):
        CertificateSettings(cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key", authority_folder=tmp_path)


async def test_serve_runs_until_it_is_cancelled(cluster):
    trusted = asyncio.Event()

    async def notice(request):
        if request.label == "patch mutatingwebhookconfigurations":
            trusted.set()

    cluster.hooks.append(notice)
    task = asyncio.create_task(serve(cluster, WebhookSettings(**LOCAL)))
    await trusted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_until_it_stops_each_answer_ends_its_connection(cluster):
    server = Server(cluster, WebhookSettings(**LOCAL, stop_delay=0.5))
    await server.__aenter__()
    await server.ready()
    trust = ssl.create_default_context(cadata=await bundle(cluster))
    async with aiohttp.ClientSession() as session:

        async def ask():
            url = f"https://127.0.0.1:{server.port}/mutate"
            async with session.post(url, json=review(), ssl=trust) as response:
                return response.status, response.headers.get("Connection")

        assert await ask() == (200, None)
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        await asyncio.sleep(0)
        assert await ask() == (200, "close")
        assert await ask() == (200, "close")
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask()


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_running(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        with pytest.raises(OSError, match="already in use"):
            await Server(cluster, WebhookSettings(**{**LOCAL, "port": server.port})).__aenter__()
