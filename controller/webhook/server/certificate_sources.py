"""Sources of the webhook's serving certificate, and how a change reaches the running server.

Chosen by `CertificateSettings`. Each source updates a TLS context on demand:
new connections get the new certificate, open ones continue.
"""

import logging
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from controller.settings.webhook import CertificateSettings
from controller.webhook.server.certificates import Material, ensure_secret, signed
from controller.webhook.server.configuration import ensure_trust
from hami_dra.api import names
from hami_dra.kube.protocol import Cluster

log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        """Load changes into the context. Returns the certificate (PEM) if it changed, else None.

        Raises ClusterError, OSError (including SSLError) and BadAuthority; the context then keeps
        its certificate.
        """


class CertificateFiles:
    """A certificate and a key in files managed elsewhere."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._loaded: object = None

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        stamp = _stamp(self._certificate, self._key)
        if stamp == self._loaded:
            return None
        tls.load_cert_chain(self._certificate, self._key)
        self._loaded = stamp
        return self._certificate.read_bytes()


class AuthorityFiles:
    """An authority created at installation: `ca.crt` and `ca.key` in a folder, from a mounted
    Secret.

    The API server trusts the authority already, so no right in the cluster is needed. Each replica
    has a certificate of its own, which exists only in its memory.
    """

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self._folder = folder
        self._hosts = hosts
        self._material: Material | None = None

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        authority, key = (self._folder / "ca.crt").read_bytes(), (self._folder / "ca.key").read_bytes()
        material = signed(self._material, authority, key, self._hosts, datetime.now(UTC))
        if material is self._material:
            return None
        _load(tls, material)
        self._material = material
        return material.certificate


class SharedSecret:
    """The webhook's own authority and certificate, in a Secret and a configuration that already exist."""

    def __init__(self, cluster: Cluster, namespace: str, secret: str, configuration: str, hosts: Sequence[str]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration
        self._hosts = hosts
        self._served: Material | None = None

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        material = await ensure_secret(self._cluster, self._namespace, self._secret, self._hosts)
        before = self._served
        if before is None:
            self._serve(tls, material)  # not ready yet, but /healthz answers
        # Trust first, serve second: no call meets a certificate that the API server does not trust.
        if await ensure_trust(self._cluster, self._configuration, material.authorities):
            log.info("webhook configuration %s now trusts Secret %s", self._configuration, self._secret)
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
    return SharedSecret(cluster, namespace, names.WEBHOOK_SECRET, names.WEBHOOK, hosts)


def _stamp(*files: Path) -> object:
    """Return a value that changes when a file is replaced. Raises OSError."""
    return tuple((file.stat().st_mtime_ns, file.stat().st_ino) for file in files)


def _load(tls: ssl.SSLContext, material: Material) -> None:
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner only
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(material.certificate)
        key.write_bytes(material.key)
        tls.load_cert_chain(certificate, key)
