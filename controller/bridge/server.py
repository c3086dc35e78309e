"""The admission server: HTTPS, /mutate, /healthz, /readyz, /metrics, and certificates that look after themselves.

Called by `hami-dra webhook` and by tests. In: a `Cluster` and `Settings`. Runs until cancelled; any number of replicas may
run side by side. What a pod becomes is decided in `controller.bridge.convert`; nothing of it is here.

Certificates come from a Secret that the replicas share (made and renewed here, the authority written into the webhook
configuration), or from files that somebody else keeps (`cert_file`, `key_file`; read again when they change).
"""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from controller.bridge.admission import Admission, BadReview
from controller.bridge.certificates import Material, ensure_secret
from controller.bridge.configuration import ensure_trust
from controller.bridge.convert import Options
from controller.bridge.metrics import WebhookMetrics
from hami_dra.api import kinds, names
from hami_dra.cluster.protocol import Cluster, ClusterError

log = logging.getLogger(__name__)

_LARGEST_REVIEW: Final = 8 << 20
"""Bytes: a pod of the largest size that etcd takes, in an AdmissionReview, with room to spare."""


class BadSettings(ValueError):
    """The message names the settings that do not go together and the fix."""


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "0.0.0.0"  # noqa: S104 (the API server calls from outside the pod)
    port: int = 8443
    """0: a free one; `Server.port` says which."""
    options: Options = field(default_factory=Options)
    namespace: str = names.SYSTEM_NAMESPACE
    """Of the Secret and the Service."""
    secret: str = names.WEBHOOK_SECRET
    configuration: str = names.WEBHOOK
    """The MutatingWebhookConfiguration that is told whom to trust."""
    hosts: tuple[str, ...] = ()
    """Names and addresses in the certificate besides those of the Service."""
    cert_file: Path | None = None
    key_file: Path | None = None
    upkeep_interval: float = 60.0
    """Seconds between looks at certificates and configuration."""
    retry_interval: float = 2.0
    """The same while something is wrong."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise BadSettings("a certificate file and a key file belong together: give both or neither")

    @property
    def all_hosts(self) -> tuple[str, ...]:
        service = f"{names.WEBHOOK}.{self.namespace}"
        return (f"{service}.svc", f"{service}.svc.cluster.local", service, names.WEBHOOK, *self.hosts)


class Server:
    """`async with Server(cluster, settings) as server:` serves within the block."""

    def __init__(self, cluster: Cluster, settings: Settings | None = None) -> None:
        self._cluster = cluster
        self._settings = settings or Settings()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: object = None
        self.metrics = WebhookMetrics()
        self._not_ready = "no certificate yet"
        self._runner: web.AppRunner | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._turn = asyncio.Event()

    @property
    def port(self) -> int:
        assert self._runner is not None, "the server is not running"
        return int(self._runner.addresses[0][1])

    async def ready(self) -> None:
        """Returns once the server has a certificate that the API server was told to trust."""
        while self._not_ready:
            self._turn.clear()
            await self._turn.wait()

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(
            application(Admission(self._cluster, self._settings.options), lambda: self._not_ready, self.metrics),
            access_log=None,
            shutdown_timeout=10.0,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port, ssl_context=self._tls).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._upkeep = asyncio.create_task(self._look_after_certificates())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            with suppress(asyncio.CancelledError):
                await self._upkeep
        if self._runner is not None:
            await self._runner.cleanup()

    async def _look_after_certificates(self) -> None:
        trouble = ""
        while True:
            try:
                await self._certificates()
            except (ClusterError, OSError) as error:
                # an SSLError is an OSError: files that are just being replaced do not fit together for a moment
                if str(error) != trouble:
                    log.warning("webhook certificates: %s", error)
                trouble = str(error)
                if self._not_ready:
                    self._not_ready = trouble
                pause = self._settings.retry_interval
            else:
                if self._not_ready:
                    log.info("webhook is ready")
                trouble = self._not_ready = ""
                pause = self._settings.upkeep_interval
            self._turn.set()
            await asyncio.sleep(pause)

    async def _certificates(self) -> None:
        settings = self._settings
        if settings.cert_file is not None and settings.key_file is not None:
            stamp = tuple(
                (file.stat().st_mtime_ns, file.stat().st_ino) for file in (settings.cert_file, settings.key_file)
            )
            if stamp != self._loaded:
                self._tls.load_cert_chain(settings.cert_file, settings.key_file)
                self.metrics.serves(settings.cert_file.read_bytes())
                self._loaded = stamp
            return
        if self._loaded is not None:
            # gone (NotFound) after an uninstall: then a Secret that was deleted with it must not be made again
            await self._cluster.get_raw(kinds.MUTATING_WEBHOOK, settings.configuration)
        material = await ensure_secret(self._cluster, settings.namespace, settings.secret, settings.all_hosts)
        if self._loaded is None:
            self._serve_with(material)  # not ready yet, but /healthz answers
        # trusted first, served second: no call meets a certificate that the API server does not know
        if await ensure_trust(self._cluster, settings.configuration, material.authorities):
            log.info("webhook configuration %s trusts Secret %s now", settings.configuration, settings.secret)
        if material != self._loaded:
            self._serve_with(material)

    def _serve_with(self, material: Material) -> None:
        _load(self._tls, material)
        self.metrics.serves(material.certificate)
        self._loaded = material


def _load(context: ssl.SSLContext, material: Material) -> None:
    """New connections get the new certificate; those that are open go on."""
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner only
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(material.certificate)
        key.write_bytes(material.key)
        context.load_cert_chain(certificate, key)


async def serve(cluster: Cluster, settings: Settings | None = None) -> None:
    """Until cancelled."""
    async with Server(cluster, settings) as server:
        log.info("webhook listens on port %s", server.port)
        await asyncio.Event().wait()


def application(
    admission: Admission, not_ready: Callable[[], str], metrics: WebhookMetrics | None = None
) -> web.Application:
    """`not_ready`: why the server should get no requests yet; empty when it may."""
    counted = metrics or WebhookMetrics()

    async def mutate(request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read())
            with counted.seconds.time():
                answer = await admission.review(body)
        except (msgspec.DecodeError, BadReview) as error:
            counted.reviews.labels("unreadable").inc()
            return web.Response(status=400, text=str(error))
        counted.reviewed(answer)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_request: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(status=503, text=reason) if reason else web.Response(text="ok")

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application(client_max_size=_LARGEST_REVIEW)
    app.add_routes([web.post("/mutate", mutate), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    app.add_routes([web.get("/metrics", exposition)])
    return app
