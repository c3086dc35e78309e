"""The dashboard as a service: address, certificate, access control.

Called by `hami-dra controller`, next to the controller. In: checked `DashboardSettings`, a
`Source`. Serves within a block. A changed certificate is read again.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from aiohttp import web

from controller.dashboard.access import Access, ClusterAccess, OpenAccess, may_ask
from controller.dashboard.app import dashboard_app
from controller.dashboard.driverpods import DriverPods, session_for_drivers
from controller.dashboard.history import History
from controller.dashboard.readings import Meters
from controller.dashboard.source import Source
from controller.settings.controller import DashboardSettings
from hami_dra.api import names
from hami_dra.api.errors import ConfigError
from hami_dra.kube.protocol import Cluster

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
    context = _context(settings)
    session = None
    if meters is None and settings.readings:
        session = session_for_drivers()
        meters = DriverPods(source.pods, namespace, session)
    app = dashboard_app(source, access, meters=meters, history=history, grafana=settings.grafana)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    watching = asyncio.create_task(_watch_files(settings, context)) if context is not None else None
    try:
        await web.TCPSite(runner, *settings.bind, ssl_context=context).start()
        port = int(runner.addresses[0][1])
        log.info("the dashboard is on %s://%s:%d", "https" if settings.is_https else "http", settings.bind[0], port)
        yield port
    finally:
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        await runner.cleanup()
        if session is not None:
            await session.close()


def _namespaces(source: Source) -> set[str]:
    """Return the namespaces that have pods, claims or quotas for devices."""
    found = {pod.metadata.namespace for pod in source.pods()} | {claim.metadata.namespace for claim in source.claims()}
    return found | {line.namespace for line in source.inventory.quotas.lines()}


def _context(settings: DashboardSettings) -> ssl.SSLContext | None:
    if settings.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"--dashboard-cert {settings.cert_file}: cannot be used: {error}") from error
    return context


async def _watch_files(settings: DashboardSettings, context: ssl.SSLContext) -> None:
    loaded = _stamp(settings)
    while True:
        await asyncio.sleep(_LOOK_AT_FILES)
        try:
            found = _stamp(settings)
            if found != loaded and settings.cert_file is not None:
                context.load_cert_chain(settings.cert_file, settings.key_file)
                loaded = found
        except OSError as error:
            # perhaps just being replaced
            log.warning("the dashboard's certificate could not be read again: %s", error)


def _stamp(settings: DashboardSettings) -> tuple[tuple[int, int], ...]:
    files = (settings.cert_file, settings.key_file)
    return tuple((file.stat().st_mtime_ns, file.stat().st_ino) for file in files if file is not None)
