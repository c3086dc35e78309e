"""The admission server: HTTPS, /mutate, /healthz, /readyz, /metrics, and certificates that look after themselves.

Called by `hami-dra webhook` and by tests. In: a `Cluster` and `Settings`. Runs until cancelled; any number of replicas may
run side by side. What a pod becomes is decided in `controller.bridge.convert`; nothing of it is here.

Whoever reaches the port may send what they like: `hami_dra.httpserver` bounds connections, time and bytes, and
what cannot be read is answered with 400. An answer tells nothing that the request did not say, unless the API server
shows a certificate (`client_ca`) or the operator says that nobody else reaches the port (`refuse_over_quota`).

Certificates come from one of three places (`Settings`):

- a Secret that the replicas share: made and renewed here, the authority written into the webhook configuration. Both
  objects must be there: the account may not create them;
- an authority in files (`authority_folder`): each replica signs a certificate of its own, kept in memory;
- a certificate in files that somebody else keeps (`cert_file`, `key_file`).

Files are read again when they change.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from controller.bridge.admission import Admission, BadReview
from controller.bridge.certificates import BadAuthority
from controller.bridge.convert import Options
from controller.bridge.metrics import WebhookMetrics
from controller.bridge.serving import AuthorityFiles, CertificateFiles, CertificateSource, SharedSecret
from hami_dra.api import names
from hami_dra.cluster.protocol import Cluster, ClusterError
from hami_dra.httpserver import Limits, listening

log = logging.getLogger(__name__)

_LARGEST_REVIEW: Final = 4 << 20
"""Bytes: a pod of the largest size that etcd takes (1.5 MiB), in an AdmissionReview, with room to spare."""
_LONGEST_REASON: Final = 300
_FAREWELL: Final = 10.0
"""Seconds that requests under way get when the server ends."""


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
    authority_folder: Path | None = None
    """With `ca.crt` and `ca.key`: replicas sign their certificates by this authority, which the configuration trusts."""
    client_ca: Path | None = None
    """Only clients with a certificate of this authority may ask for reviews: the API server, where it was given one."""
    refuse_over_quota: bool = False
    """Refuse pods that can never fit their namespace's quota. An answer tells the quota to whoever asks; see `tells_quotas`."""
    limits: Limits = field(default_factory=Limits)
    upkeep_interval: float = 60.0
    """Seconds between looks at certificates and configuration."""
    retry_interval: float = 2.0
    """The same while something is wrong."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise BadSettings("a certificate file and a key file belong together: give both or neither")
        if self.cert_file is not None and self.authority_folder is not None:
            raise BadSettings("a certificate file and an authority exclude each other: give one of them")

    @property
    def all_hosts(self) -> tuple[str, ...]:
        service = f"{names.WEBHOOK}.{self.namespace}"
        return (f"{service}.svc", f"{service}.svc.cluster.local", service, names.WEBHOOK, *self.hosts)

    @property
    def tells_quotas(self) -> bool:
        """Whether only the API server can ask: it tells the author of the pod, who may know the quota."""
        return self.refuse_over_quota or self.client_ca is not None

    @property
    def excluded_namespaces(self) -> frozenset[str]:
        """As the shipped configuration has them: the API server asks about no pod in there, so nobody else may."""
        return frozenset({"kube-system", self.namespace})

    def certificate_source(self, cluster: Cluster) -> CertificateSource:
        if self.cert_file is not None and self.key_file is not None:
            return CertificateFiles(self.cert_file, self.key_file)
        if self.authority_folder is not None:
            return AuthorityFiles(self.authority_folder, self.all_hosts)
        return SharedSecret(cluster, self.namespace, self.secret, self.configuration, self.all_hosts)


class Server:
    """`async with Server(cluster, settings) as server:` serves within the block."""

    def __init__(self, cluster: Cluster, settings: Settings | None = None) -> None:
        self._settings = settings = settings or Settings()
        self._admission = Admission(
            cluster,
            settings.options,
            refuse_over_quota=settings.tells_quotas,
            excluded_namespaces=settings.excluded_namespaces,
        )
        self._source = settings.certificate_source(cluster)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        if settings.client_ca is not None:
            self._tls.verify_mode = ssl.CERT_OPTIONAL  # kubelet's probes show none
        self._client_ca_read: object = None
        self.metrics = WebhookMetrics()
        self._not_ready = "no certificate yet"
        self._turn = asyncio.Event()
        self._running = AsyncExitStack()
        self.port = 0
        """Where it listens, once it does."""

    async def ready(self) -> None:
        """Returns once the server has a certificate that the API server was told to trust."""
        while self._not_ready:
            self._turn.clear()
            await self._turn.wait()

    async def __aenter__(self) -> Self:
        """Raises OSError when the port is taken."""
        settings = self._settings
        app = application(
            self._admission,
            lambda: self._not_ready,
            self.metrics,
            clients_show_certificates=settings.client_ca is not None,
        )
        self.port = await self._running.enter_async_context(
            listening(
                app, settings.host, settings.port, limits=settings.limits, tls=self._tls, shutdown_timeout=_FAREWELL
            )
        )
        upkeep = asyncio.create_task(self._look_after_certificates())
        self._running.push_async_callback(_end, upkeep)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    async def _look_after_certificates(self) -> None:
        trouble = ""
        while True:
            try:
                self._read_client_ca()
                served = await self._source.refresh(self._tls)
            except (ClusterError, OSError, BadAuthority) as error:
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
                if served is not None:
                    self.metrics.serves(served)
            self._turn.set()
            await asyncio.sleep(pause)

    def _read_client_ca(self) -> None:
        """Raises OSError."""
        if (file := self._settings.client_ca) is None:
            return
        stamp = (file.stat().st_mtime_ns, file.stat().st_ino)
        if stamp != self._client_ca_read:
            self._tls.load_verify_locations(cafile=file)
            self._client_ca_read = stamp


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def serve(cluster: Cluster, settings: Settings | None = None) -> None:
    """Until cancelled."""
    async with Server(cluster, settings) as server:
        log.info("webhook listens on port %s", server.port)
        await asyncio.Event().wait()


def application(
    admission: Admission,
    not_ready: Callable[[], str],
    metrics: WebhookMetrics | None = None,
    *,
    clients_show_certificates: bool = False,
) -> web.Application:
    """Return the HTTP side.

    `not_ready`: why the server should get no requests yet; empty when it may. `clients_show_certificates`: reviews are
    for clients with a verified certificate only.
    """
    counted = metrics or WebhookMetrics()

    async def mutate(request: web.Request) -> web.Response:
        if clients_show_certificates and not _peer_certificate(request):
            counted.reviews.labels("unreadable").inc()
            return web.Response(status=403, text="only the API server, with its client certificate, may ask here")
        data = await request.read()
        try:
            body = msgspec.json.decode(data)
            with counted.seconds.time():
                answer = await admission.review(body)
        except Exception as error:  # noqa: BLE001 (whatever a client sends: 400, and never a traceback for each request)
            counted.reviews.labels("unreadable").inc()
            return _unreadable(request, error)
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


def _unreadable(request: web.Request, error: Exception) -> web.Response:
    """Say in one line what is wrong with a request; the traceback is for `-v 5` only."""
    expected = isinstance(error, (BadReview, msgspec.DecodeError, UnicodeError, RecursionError))
    reason = (str(error) if expected else f"{type(error).__name__}: {error}")[:_LONGEST_REASON]
    log.log(
        logging.WARNING if expected else logging.ERROR,
        "a review from %s cannot be read: %r",
        request.remote,
        reason,
        exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
    )
    return web.Response(status=400, text=reason)


def _peer_certificate(request: web.Request) -> object:
    """What the client showed and TLS verified; None or empty where it showed none."""
    return request.transport.get_extra_info("peercert") if request.transport is not None else None
