"""Sources of the webhook's serving certificate, and how a change reaches the running server.

Chosen by `CertificateSettings`. Each source updates a TLS context on demand:
new connections get the new certificate, open ones continue.
"""

import base64
import logging
import ssl
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from controller.settings.webhook import CertificateSettings
from controller.webhook.server.certificates import Material, ensure_secret, signed
from hami_dra.api import kinds, names
from hami_dra.api.kinds import Kind
from hami_dra.httpserver import CertificateFiles
from hami_dra.kube.protocol import Cluster, Conflict, NotFound

_ATTEMPTS: Final = 5


async def ensure_trust(cluster: Cluster, name: str, authorities: bytes) -> bool:
    """Make every webhook of the configurations of this name trust exactly these PEM certificates.

    Returns whether something had to be changed. Raises NotFound if the MutatingWebhookConfiguration
    is not installed, and other ClusterErrors; the other one only gives advice.
    """
    changed = await _ensure(cluster, kinds.MUTATING_WEBHOOK, name, authorities)
    try:
        return await _ensure(cluster, kinds.VALIDATING_WEBHOOK, name, authorities) or changed
    except NotFound:
        return changed


async def _ensure(cluster: Cluster, kind: Kind[Any], name: str, authorities: bytes) -> bool:
    wanted = base64.b64encode(authorities).decode()
    attempt = 0
    while True:
        raw = await cluster.get_raw(kind, name)
        webhooks: list[dict[str, Any]] = deepcopy(raw.get("webhooks") or [])
        if all(webhook["clientConfig"].get("caBundle") == wanted for webhook in webhooks):
            return False
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = wanted
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        try:
            # A merge patch replaces the whole list, so the list must come from the version just
            # read.
            await cluster.patch(kind, name, {"metadata": metadata, "webhooks": webhooks})
        except Conflict:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
        else:
            return True


log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        """Load changes into the context. Returns the certificate (PEM) if it changed, else None.

        Raises ClusterError, OSError (including SSLError) and BadAuthority; the context then keeps
        its certificate.
        """


@dataclass(slots=True)
class AuthorityFiles:
    """An authority created at installation: `ca.crt` and `ca.key` in a folder, from a mounted Secret.

    The API server trusts the authority already, so no right in the cluster is needed. Each replica
    has a certificate of its own, which exists only in its memory.
    """

    folder: Path
    hosts: Sequence[str]
    _material: Material | None = field(default=None, init=False)

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        authority, key = (self.folder / "ca.crt").read_bytes(), (self.folder / "ca.key").read_bytes()
        material = signed(self._material, authority, key, self.hosts, datetime.now(UTC))
        if material is self._material:
            return None
        _load(tls, material)
        self._material = material
        return material.certificate


@dataclass(slots=True)
class SharedSecret:
    """The webhook's own authority and certificate, in a Secret and a configuration that already exist."""

    cluster: Cluster
    namespace: str
    hosts: Sequence[str]
    _served: Material | None = field(default=None, init=False)

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        material = await ensure_secret(self.cluster, self.namespace, names.WEBHOOK_SECRET, self.hosts)
        before = self._served
        if before is None:
            self._serve(tls, material)  # not ready yet, but /healthz answers
        # Trust first, serve second: no call meets a certificate that the API server does not trust.
        if await ensure_trust(self.cluster, names.WEBHOOK, material.authorities):
            log.info("webhook configuration %s now trusts Secret %s", names.WEBHOOK, names.WEBHOOK_SECRET)
        if material != self._served:
            self._serve(tls, material)
        return material.certificate if material != before else None

    def _serve(self, tls: ssl.SSLContext, material: Material) -> None:
        _load(tls, material)
        self._served = material


def certificate_source(settings: CertificateSettings, cluster: Cluster, namespace: str) -> CertificateSource:
    """Return the source that the settings choose. `namespace`: of the Secret and the Service."""
    if settings.cert_file is not None and settings.key_file is not None:
        return CertificateFiles(settings.cert_file, settings.key_file)
    hosts = settings.all_hosts(namespace)
    if settings.authority_folder is not None:
        return AuthorityFiles(settings.authority_folder, hosts)
    return SharedSecret(cluster, namespace, hosts)


def _load(tls: ssl.SSLContext, material: Material) -> None:
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner only
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(material.certificate)
        key.write_bytes(material.key)
        tls.load_cert_chain(certificate, key)
