"""TLS of a server whose certificate is in files that something else replaces. New connections get
the new certificate, open ones continue.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path


def server_context() -> ssl.SSLContext:
    """Return a context without a certificate, for TLS 1.2 and newer."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    return tls


def stamp_of(*files: Path) -> object:
    """Return a value that changes when a file is replaced. Raises OSError."""
    return tuple((file.stat().st_mtime_ns, file.stat().st_ino) for file in files)


@dataclass(slots=True)
class CertificateFiles:
    """A certificate and a key (PEM) in files managed elsewhere."""

    certificate: Path
    key: Path
    _loaded: object = field(default=None, init=False)

    async def refresh(self, tls: ssl.SSLContext) -> bytes | None:
        """Load them into the context, if they changed since the last time. Returns the certificate then,
        else None. Raises OSError (including SSLError); the context then keeps its certificate.
        """
        stamp = stamp_of(self.certificate, self.key)
        if stamp == self._loaded:
            return None
        tls.load_cert_chain(self.certificate, self.key)
        self._loaded = stamp
        return self.certificate.read_bytes()
