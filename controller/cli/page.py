"""The dashboard of `hami-dra controller`: its options, and its service next to the controller."""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.errors import CommandError

if TYPE_CHECKING:
    from controller.dashboard import DashboardSettings
    from controller.reconcile.controller import Controller
    from hami_dra.kube.protocol import Cluster


class DashboardAuth(StrEnum):
    cluster = "cluster"
    off = "off"


class Readings(StrEnum):
    on = "on"
    off = "off"


def page_settings(
    bind: str,
    auth: DashboardAuth,
    certificate: tuple[Path | None, Path | None],
    readings: Readings = Readings.on,
    *,
    grafana: str = "",
) -> "DashboardSettings | None":
    """Return the dashboard's settings; None if it is disabled. Raises CommandError.

    `certificate`: files of the certificate and its key.
    """
    if not bind:
        return None
    from controller.dashboard import DashboardSettings, parse_bind
    from hami_dra.kube.protocol import ConfigError

    try:
        host, port = parse_bind(bind)
        return DashboardSettings(
            host,
            port,
            auth=auth is DashboardAuth.cluster,
            cert_file=certificate[0],
            key_file=certificate[1],
            readings=readings is Readings.on,
            grafana=grafana,
        )
    except ConfigError as error:
        raise CommandError(str(error)) from error


async def serve_page(
    controller: "Controller", cluster: "Cluster", settings: "DashboardSettings", synced: asyncio.Event
) -> None:
    """Serve the dashboard until cancelled, once the controller is in sync. Raises ConfigError."""
    from controller.dashboard import InformerSource, serving
    from hami_dra.kube.protocol import ConfigError

    await synced.wait()
    try:
        async with serving(
            InformerSource(controller), cluster, settings, namespace=controller.settings.leadership.namespace
        ):
            await asyncio.Event().wait()
    except OSError as error:
        raise ConfigError(f"--dashboard-bind: {settings.host}:{settings.port}: {error.strerror or error}") from error
