"""Settings of the webhook that need nothing that converts or serves; `controller.webhook` has the others."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct, field

from controller.settings.common import InstallNamespace, Mode, OptionalSource
from controller.settings.placing import DEFAULT_SCHEDULER, GANGS_OF
from hami_dra.api import names
from hami_dra.api.errors import ConfigError
from hami_dra.api.flags import HOST, ON_OFF, PORT, SCHEDULER_NAME, Form, Option, duration

_OBJECT_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def _runtime_classes(written: Sequence[str]) -> Mapping[str, str]:
    """Return vendor → name of its RuntimeClass. Raises ValueError."""
    from hami_dra.vendors.registry import LEGACY_VENDORS

    vendors = [vendor.name for vendor in LEGACY_VENDORS]
    classes: dict[str, str] = {}
    for option in written:
        vendor, _, name = option.partition("=")
        if vendor not in vendors or not _OBJECT_NAME.fullmatch(name):
            raise ValueError(
                f"{option!r} is not VENDOR=NAME with a vendor of {', '.join(vendors)} and the name of a RuntimeClass"
            )
        if classes.setdefault(vendor, name) != name:
            raise ValueError(f"{vendor} has two, {classes[vendor]} and {name}; a pod has one")
    return classes


RUNTIME_CLASS: Final = Option(
    "Set spec.runtimeClassName of pods that ask for devices of the vendor and do not set it; may be repeated.",
    Form(read=_runtime_classes, repeated=True),
    metavar="VENDOR=NAME",
)


class ConversionOptions(Struct, frozen=True):
    """How pods are converted; `controller.webhook.Options` has what else conversions need."""

    mode: Annotated[Mode, Option("native: convert only what DeviceClasses cannot express.")] = "exclusive"
    gate: Annotated[bool, Option("Whether converted pods get the scheduling gate.", ON_OFF)] = True
    scheduler_name: Annotated[
        frozenset[str], Option("Only pods of these schedulers are gated; may be repeated.", SCHEDULER_NAME)
    ] = DEFAULT_SCHEDULER
    gangs_of: Annotated[frozenset[OptionalSource], GANGS_OF] = frozenset()
    runtime_class: Annotated[Mapping[str, str], RUNTIME_CLASS] = field(default_factory=dict)


class CertificateSettings(Struct, frozen=True):
    """Files, an authority in files, else the shared Secret. Raises ConfigError."""

    hosts: Annotated[
        tuple[str, ...],
        Option(
            "An additional name or address in the certificate; may be repeated.", HOST, flags=("--certificate-host",)
        ),
    ] = ()
    cert_file: Annotated[Path | None, Option("Serving certificate that is managed elsewhere.")] = None
    key_file: Annotated[Path | None, Option("Its key.")] = None
    authority_folder: Annotated[
        Path | None,
        Option(
            "Folder with ca.crt and ca.key, an authority that the API server trusts and that signs the certificates."
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("a certificate file and a key file belong together: give both or neither")
        if self.cert_file is not None and self.authority_folder is not None:
            raise ConfigError("a certificate file and an authority exclude each other: give one of them")

    def all_hosts(self, namespace: str) -> tuple[str, ...]:
        service = f"{names.WEBHOOK}.{namespace}"
        return (f"{service}.svc", f"{service}.svc.cluster.local", service, names.WEBHOOK, *self.hosts)


class ServerOptions(Struct, frozen=True):
    """Where the webhook listens, and whom it answers."""

    host: Annotated[str, Option("Address to listen on.", HOST)] = "0.0.0.0"  # noqa: S104 (the API server calls from outside the pod)
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", PORT)] = 8443
    namespace: InstallNamespace = names.SYSTEM_NAMESPACE
    """Namespace of the Secret and the Service."""
    certificates: CertificateSettings = CertificateSettings()
    client_ca: Annotated[
        Path | None,
        Option(
            "Answer only clients with a certificate of this authority: an API server configured to present one.",
            flags=("--client-ca-file",),
        ),
    ] = None
    refuse_over_quota: Annotated[
        bool,
        Option(
            "Refuse pods that can never fit a quota. Reveals the quota to every client: make sure that only the API "
            "server reaches the port. On with --client-ca-file."
        ),
    ] = False
    """See `tells_quotas`."""
    stop_delay: Annotated[
        float,
        Option("How long requests are still answered after SIGTERM, until no API server sends any.", duration(0, 60)),
    ] = 0.0

    @property
    def tells_quotas(self) -> bool:
        """Return whether answers may name quotas: the API server passes them to the pod's author only."""
        return self.refuse_over_quota or self.client_ca is not None
