"""The dashboard as a service: address, certificate, access control.

Called by `hami-dra controller`, next to the controller. In: checked `DashboardSettings`, a
`Source`. Serves within a block. A changed certificate is read again.
"""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from controller.dashboard.access import Access, ClusterAccess, OpenAccess, may_ask
from controller.dashboard.app import dashboard_app
from controller.dashboard.history import History
from controller.dashboard.readings import AT_ONCE, MOST_BYTES, Meters, Target
from controller.dashboard.source import Source
from controller.settings.controller import DashboardSettings
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.errors import ConfigError
from hami_dra.httpserver import CertificateFiles, server_context
from hami_dra.kube.protocol import Cluster
from hami_dra.kube.waiting import running

_CHUNK: Final = 64 << 10


class NoAnswer(Exception):
    """A driver gave no answer; the message says why."""


def session_for_drivers() -> aiohttp.ClientSession:
    """Return a session, which the caller must close."""
    return aiohttp.ClientSession(
        headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
        connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


@dataclass(eq=False)
class DriverPods:
    """The drivers' pods and their metrics over plain HTTP: the `Meters` of a controller in a cluster. It
    connects to the port named `http` of running driver pods in the system namespace, and to nothing else:
    it follows no redirect and uses no proxy. The caller closes `session`.
    """

    pods: Callable[[], Iterable[Pod]]
    namespace: str
    session: aiohttp.ClientSession
    most: int = MOST_BYTES

    def targets(self) -> Sequence[Target]:
        return [found for pod in self.pods() if (found := target_of(pod, self.namespace)) is not None]

    async def ask(self, target: Target) -> str:
        async with self.session.get(target.url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise NoAnswer(f"status {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > self.most:
                    raise NoAnswer(f"more than {self.most} bytes")
        return body.decode("utf-8", "replace")


def target_of(pod: Pod, namespace: str) -> Target | None:
    """Return where to read a driver's metrics; None for other pods, and without an address or port yet."""
    labels = pod.metadata.labels
    if (
        pod.metadata.namespace != namespace
        or labels.get(names.PART_OF_LABEL) != names.MANAGED_BY
        or labels.get(names.COMPONENT_LABEL) != names.DRIVER_COMPONENT
        or pod.status.phase != "Running"
        or not pod.spec.node_name
    ):
        return None
    port = pod.port(names.HTTP_PORT)
    try:
        address = ipaddress.ip_address(pod.status.pod_ip)
    except ValueError:
        return None
    host = f"[{address}]" if address.version == 6 else str(address)
    return Target(pod.spec.node_name, f"http://{host}:{port}/metrics") if port is not None else None


log = logging.getLogger(__name__)
_LOOK_AT_FILES: Final = 60.0


@asynccontextmanager
async def serving(
    source: Source,
    cluster: Cluster,
    settings: DashboardSettings,
    *,
    namespace: str = names.SYSTEM_NAMESPACE,
    meters: Meters | None = None,
    history: History | None = None,
) -> AsyncIterator[int]:
    """Serve the dashboard within the block and yield its port.

    `namespace`: namespace of the node drivers' pods, which are queried for readings unless `meters`
    is given. `history`: what is known already. Raises OSError if the port is taken, ConfigError if
    the certificate cannot be used.
    """
    access: Access = ClusterAccess(cluster, lambda: _namespaces(source)) if settings.auth else OpenAccess()
    if settings.auth and not await may_ask(cluster):
        log.warning(
            "the dashboard: the controller may not create tokenreviews, so every login fails; apply manifests/rbac-controller.yaml again"
        )
    async with AsyncExitStack() as stack:
        tls = None
        if settings.cert_file is not None and settings.key_file is not None:
            tls, files = server_context(), CertificateFiles(settings.cert_file, settings.key_file)
            await _load(files, tls)
            await stack.enter_async_context(running(_watch_files(files, tls)))
        if meters is None and settings.readings:
            session = await stack.enter_async_context(session_for_drivers())
            meters = DriverPods(source.pods, namespace, session)
        app = dashboard_app(source, access, meters=meters, history=history, grafana=settings.grafana)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, *settings.bind, ssl_context=tls).start()
        port = int(runner.addresses[0][1])
        log.info("the dashboard is on %s://%s:%d", "https" if settings.is_https else "http", settings.bind[0], port)
        yield port


def _namespaces(source: Source) -> set[str]:
    """Return the namespaces that have pods, claims or quotas for devices."""
    found = {pod.metadata.namespace for pod in source.pods()} | {claim.metadata.namespace for claim in source.claims()}
    return found | {line.namespace for line in source.inventory.quotas.lines()}


async def _load(files: CertificateFiles, tls: ssl.SSLContext) -> None:
    try:
        await files.refresh(tls)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"--dashboard-cert {files.certificate}: cannot be used: {error}") from error


async def _watch_files(files: CertificateFiles, tls: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(_LOOK_AT_FILES)
        try:
            await files.refresh(tls)
        except OSError as error:
            # perhaps just being replaced
            log.warning("the dashboard's certificate could not be read again: %s", error)
