"""The admission server: HTTPS, /mutate, /advise, /healthz, /readyz, /metrics, and self-renewing certificates.

Called by `hami-dra webhook` and by tests. In: a `Cluster` and `WebhookSettings`. Runs until
cancelled; any number of replicas may run in parallel. `controller.webhook.convert` decides what
becomes of a pod; none of that is here.

Any client that reaches the port may send anything: `hami_dra.httpserver` bounds connections, time
and bytes, and unreadable input is answered with 400. An answer reveals nothing that the request did
not contain, unless the API server presents a certificate (`client_ca`) or the operator states that
no other client reaches the port (`refuse_over_quota`).

Certificates come from one of three places (`CertificateSettings`):

- a Secret that the replicas share: created and renewed here, with the authority written into the
  webhook configuration. Both objects must exist: the account may not create them;
- an authority in files (`authority_folder`): each replica signs a certificate of its own, kept in
  memory;
- a certificate in files managed elsewhere (`cert_file`, `key_file`).

Changed files are read again.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from cryptography import x509
from msgspec import field
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.settings.webhook import ServerOptions
from controller.webhook.admission import Admission, BadReview
from controller.webhook.convert import UNCONVERTED, Options
from controller.webhook.server.certificate_sources import certificate_source
from controller.webhook.server.certificates import BadAuthority
from hami_dra.api import names
from hami_dra.httpserver import Limits, listening, server_context, stamp_of
from hami_dra.kube.protocol import Cluster, ClusterError
from hami_dra.kube.waiting import running

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class WebhookMetrics:
    """Reviews by result, and when the certificate expires. Labels: never a pod or a namespace."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Gauge("hami_dra_build_info", "Always 1.", ["version"], registry=self.registry).labels(version("hami-dra")).set(
            1
        )
        self.reviews = Counter(
            "hami_dra_webhook_reviews",
            "Reviews at admission, by result: converted, unchanged, refused, advised, unreadable.",
            ["result"],
            registry=self.registry,
        )
        for result in ("converted", "unchanged", "refused", "advised", "unreadable"):
            self.reviews.labels(result)
        self.seconds = Histogram(
            "hami_dra_webhook_review_seconds",
            "Duration of one review in seconds.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.expiry = Gauge(
            "hami_dra_webhook_certificate_expiry_timestamp_seconds",
            "Expiry of the serving certificate, as a Unix timestamp; 0 while there is none.",
            registry=self.registry,
        )

    def reviewed(self, answer: dict[str, Any]) -> None:
        response = answer["response"]
        result = ("converted" if "patch" in response else "unchanged") if response["allowed"] else "refused"
        self.reviews.labels(result).inc()

    def advised(self, answer: dict[str, Any]) -> None:
        """Count a review that only gives advice, with or without warnings."""
        self.reviews.labels("advised" if answer["response"].get("warnings") else "unchanged").inc()

    def serves(self, certificate: bytes) -> None:
        """Record the expiry of the certificate in use (PEM, the server's own certificate first)."""
        self.expiry.set(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp())


log = logging.getLogger(__name__)

Review = Callable[[object], Awaitable[dict[str, Any]]]
_LARGEST_REVIEW: Final = 4 << 20
"""Bytes: a pod of the largest size that etcd accepts (1.5 MiB), in an AdmissionReview, with room to spare."""
_LONGEST_REASON: Final = 300
_FAREWELL: Final = 10.0
"""Seconds that pending requests get when the server stops."""


class WebhookSettings(ServerOptions, frozen=True):
    options: Options = field(default_factory=Options)
    limits: Limits = field(default_factory=Limits)
    upkeep_interval: float = 60.0
    """Seconds between checks of certificates and configuration."""
    retry_interval: float = 2.0
    """Seconds between checks while something is wrong."""

    @property
    def excluded_namespaces(self) -> frozenset[str]:
        """Return the namespaces that the shipped configuration excludes: pods from there are no API server's."""
        return UNCONVERTED - {names.SYSTEM_NAMESPACE} | {self.namespace}


class Server:
    """`async with Server(cluster, settings) as server:` serves within the block."""

    def __init__(self, cluster: Cluster, settings: WebhookSettings | None = None) -> None:
        self._settings = settings = settings or WebhookSettings()
        self._admission = Admission(
            cluster,
            settings.options,
            refuse_over_quota=settings.tells_quotas,
            excluded_namespaces=settings.excluded_namespaces,
        )
        self._source = certificate_source(settings.certificates, cluster, settings.namespace)
        self._tls = server_context()
        if settings.client_ca is not None:
            self._tls.verify_mode = ssl.CERT_OPTIONAL  # kubelet's probes present none
        self._client_ca_read: object = None
        self.metrics = WebhookMetrics()
        self._not_ready = "no certificate yet"
        self._turn = asyncio.Event()
        self._running = AsyncExitStack()
        self._leaving = False
        self.port = 0
        """The port in use, once the server listens."""

    async def ready(self) -> None:
        """Wait until the server has a certificate that the API server was configured to trust."""
        while self._not_ready:
            self._turn.clear()
            await self._turn.wait()

    async def __aenter__(self) -> Self:
        """Start serving. Raises OSError if the port is taken."""
        settings = self._settings
        app = application(
            self._admission,
            lambda: self._not_ready,
            self.metrics,
            clients_show_certificates=settings.client_ca is not None,
        )
        app.middlewares.append(self._end_connections)
        self.port = await self._running.enter_async_context(
            listening(
                app, settings.host, settings.port, limits=settings.limits, tls=self._tls, shutdown_timeout=_FAREWELL
            )
        )
        await self._running.enter_async_context(running(self._look_after_certificates()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer for another `stop_delay`. Connections that stay would close below a request."""
        self._leaving = True
        try:
            await asyncio.sleep(self._settings.stop_delay)
        finally:
            await self._running.aclose()

    @web.middleware
    async def _end_connections(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self._leaving:
            response.force_close()
        return response

    async def _look_after_certificates(self) -> None:
        trouble = ""
        while True:
            try:
                self._read_client_ca()
                served = await self._source.refresh(self._tls)
            except (ClusterError, OSError, BadAuthority) as error:
                # An SSLError is an OSError: files that are being replaced do not match for a
                # moment.
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
        """Load the clients' authority into the TLS context, if it changed. Raises OSError."""
        if (file := self._settings.client_ca) is None:
            return
        if (stamp := stamp_of(file)) != self._client_ca_read:
            self._tls.load_verify_locations(cafile=file)
            self._client_ca_read = stamp


async def serve(cluster: Cluster, settings: WebhookSettings | None = None) -> None:
    """Serve until cancelled."""
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
    """`not_ready`: why no request may come yet. `clients_show_certificates`: others get no answer."""
    counted = metrics or WebhookMetrics()

    def reviewing(path: str, review: Review, count: Callable[[dict[str, Any]], None]) -> web.RouteDef:
        async def answered(request: web.Request) -> web.Response:
            if clients_show_certificates and not _peer_certificate(request):
                counted.reviews.labels("unreadable").inc()
                return web.Response(
                    status=403, text="only the API server may send reviews, with its client certificate"
                )
            data = await request.read()
            try:
                body = msgspec.json.decode(data)
                with counted.seconds.time():
                    answer = await review(body)
            except Exception as error:  # noqa: BLE001 (bad input of any kind is answered with 400, without a traceback)
                counted.reviews.labels("unreadable").inc()
                return _unreadable(request, error)
            count(answer)
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

        return web.post(path, answered)

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_request: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(status=503, text=reason) if reason else web.Response(text="ok")

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application(client_max_size=_LARGEST_REVIEW)
    app.add_routes(
        [
            reviewing("/mutate", admission.review, counted.reviewed),
            reviewing("/advise", partial(admission.advise, converted=True), counted.advised),
            reviewing("/advise-unconverted", partial(admission.advise, converted=False), counted.advised),
        ]
    )
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    return app


def _unreadable(request: web.Request, error: Exception) -> web.Response:
    """Log in one line what is wrong with a request; the traceback appears with `-v 5` only."""
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
    """Return the client's certificate that TLS verified; None or empty if it presented none."""
    return request.transport.get_extra_info("peercert") if request.transport is not None else None
