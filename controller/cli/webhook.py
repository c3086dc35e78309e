"""`hami-dra webhook`: the admission server for legacy manifests."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import option_types
from controller.cli.command import Command
from controller.cli.errors import CommandError
from controller.cli.service_options import (
    INSTALL_NAMESPACE_RENAMED,
    GangSourcesOption,
    Gate,
    InstallNamespace,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    Mode,
    RuntimeClasses,
    Verbosity,
    runtime_classes,
)
from hami_dra.api import names

if TYPE_CHECKING:
    from controller.webhook.server import WebhookSettings

HELP = """Run the admission server that turns legacy pods (nvidia.com/gpu, ...) into pods with claims.

It creates and renews its certificates, keeps them in a Secret that all replicas share, and writes the
authority into the webhook configuration; both objects must exist already. With --authority-folder replicas
sign their certificates with an existing authority (the chart does this); with --cert-file and --key-file
the certificate is managed elsewhere. Nothing else is written.

Examples:
    hami-dra webhook
    hami-dra webhook --kubeconfig ~/.kube/config --host 127.0.0.1 --port 9443
"""


class _Command(Command):
    RENAMED = INSTALL_NAMESPACE_RENAMED


def register(app: typer.Typer) -> None:
    app.command("webhook", help=HELP, cls=_Command)(webhook)


def webhook(
    *,
    kubeconfig: Kubeconfig = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", callback=option_types.host_names)] = "0.0.0.0",  # noqa: S104 (the API server calls from outside the pod)
    port: Annotated[
        int, typer.Option(min=0, max=option_types.LAST_PORT, help="Port to listen on; 0 takes a free one.")
    ] = 8443,
    mode: Annotated[
        Mode, typer.Option(help="native: convert only what DeviceClasses cannot express.")
    ] = Mode.exclusive,
    gate: Annotated[Gate, typer.Option(help="Whether converted pods get the scheduling gate.")] = Gate.on,
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Only pods of these schedulers are gated; may be repeated.", callback=option_types.scheduler_names
        ),
    ] = None,
    gangs_of: GangSourcesOption = None,
    runtime_class: RuntimeClasses = None,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
    certificate_host: Annotated[
        list[str] | None,
        typer.Option(
            help="An additional name or address in the certificate; may be repeated.", callback=option_types.host_names
        ),
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="Serving certificate that is managed elsewhere.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    authority_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder with ca.crt and ca.key, an authority that the API server trusts and that signs the certificates."
        ),
    ] = None,
    client_ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Answer only clients with a certificate of this authority: an API server configured to present one."
        ),
    ] = None,
    refuse_over_quota: Annotated[
        bool,
        typer.Option(
            "--refuse-over-quota",
            help="Refuse pods that can never fit a quota. Reveals the quota to every client: make sure that only the API "
            "server reaches the port. On with --client-ca-file.",
        ),
    ] = False,
    log_format: LogFormatOption = LogFormat.text,
    verbosity: Verbosity = 2,
) -> None:
    from controller.cli.service import run_service
    from controller.webhook import Options
    from controller.webhook.server import BadSettings, CertificateSettings, WebhookSettings
    from hami_dra import logs

    logs.configure(verbosity, logs.LogFormat(log_format.value))
    try:
        settings = WebhookSettings(
            host=host,
            port=port,
            options=Options(
                mode=mode.value,
                gate=gate is Gate.on,
                schedulers=tuple(scheduler_name or ["default-scheduler"]),
                gang_sources=frozenset(each.value for each in gangs_of or ()),
                runtime_classes=runtime_classes(runtime_class),
            ),
            namespace=install_namespace,
            certificates=CertificateSettings(
                hosts=tuple(certificate_host or []),
                cert_file=cert_file,
                key_file=key_file,
                authority_folder=authority_folder,
            ),
            client_ca=client_ca_file,
            refuse_over_quota=refuse_over_quota,
        )
    except BadSettings as error:
        raise CommandError(str(error)) from error
    run_service(_serve(kubeconfig, settings))


async def _serve(kubeconfig: str | None, settings: "WebhookSettings") -> None:
    from controller.webhook.server import serve
    from hami_dra.kube.http import connect
    from hami_dra.kube.requirements import require_version

    cluster = connect(kubeconfig)
    try:
        await require_version(cluster)
        await serve(cluster, settings)
    finally:
        await cluster.close()
