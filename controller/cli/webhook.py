"""Run the admission server that turns legacy pods (nvidia.com/gpu, ...) into pods with claims.

It creates and renews its certificates, keeps them in a Secret that all replicas share, and writes
the authority into the webhook configuration; both objects must exist already. With
--authority-folder replicas sign their certificates with an existing authority (the chart does
this); with --cert-file and --key-file the certificate is managed elsewhere. Nothing else is
written.

Examples:
    hami-dra webhook
    hami-dra webhook --kubeconfig ~/.kube/config --host 127.0.0.1 --port 9443
"""

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from controller.cli.connection import Connection
from controller.settings.common import INSTALL_NAMESPACE_RENAMED, Kubeconfig, Log
from controller.settings.webhook import ConversionOptions, ServerOptions

if TYPE_CHECKING:
    from controller.webhook.server import WebhookSettings

RENAMED = INSTALL_NAMESPACE_RENAMED


def webhook(*, kubeconfig: Kubeconfig = None, conversion: ConversionOptions, server: ServerOptions, log: Log) -> None:
    from controller.cli.service import run_service
    from controller.webhook import Options
    from controller.webhook.server import WebhookSettings
    from hami_dra import logs

    logs.configure(log.verbosity, logs.LogFormat(log.log_format))
    options = Options(
        mode=conversion.mode,
        gate=conversion.gate,
        schedulers=tuple(conversion.scheduler_name),
        gang_sources=conversion.gangs_of,
        runtime_classes=conversion.runtime_class,
    )
    run_service(_serve(kubeconfig, WebhookSettings(**asdict(server), options=options)))


async def _serve(kubeconfig: str | None, settings: "WebhookSettings") -> None:
    from controller.webhook.server import serve
    from hami_dra.kube.requirements import require_version

    async with Connection(kubeconfig).open() as cluster:
        await require_version(cluster)
        await serve(cluster, settings)
