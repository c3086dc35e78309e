"""Keys, certificates and kubeconfig files of one test cluster.

Used by cluster.py. In: a folder to write into. Out: paths of PEM and kubeconfig files, all readable
by the owner only. A certificate authority of our own signs the API server (so that clients verify
TLS as they would anywhere) and any user that a test invents (subject CN = user, O = groups). Must
not talk to the cluster.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = dt.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    """Paths of a PEM certificate and its PEM private key."""

    certificate: Path
    key: Path


def write_private(path: Path, content: bytes | str) -> Path:
    """Writes a file that only the owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def signing_key(path: Path) -> Path:
    """A private key for service account tokens (ES256); the API server takes the public half out of it."""
    return write_private(path, _pem(ec.generate_private_key(ec.SECP256R1())))


class Authority:
    """A certificate authority that lives as long as its cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("hami-dra test cluster")
        self._certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.ca_file = write_private(folder / "ca.crt", self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """A serving certificate for host names and IP addresses."""
        return self._issue(name, _subject(name), x509.SubjectAlternativeName([_general_name(host) for host in hosts]))

    def user(self, name: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate: the API server takes its CN as user name and each O as a group."""
        return self._issue(f"user-{name.replace(':', '-').replace('/', '-')}", _subject(name, groups), None)

    def _issue(self, stem: str, subject: x509.Name, names: x509.SubjectAlternativeName | None) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(subject, key.public_key(), names=names)
        return KeyPair(
            write_private(self._folder / f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            write_private(self._folder / f"{stem}.key", _pem(key)),
        )

    def _sign(
        self,
        subject: x509.Name,
        public: ec.EllipticCurvePublicKey,
        *,
        names: x509.SubjectAlternativeName | None = None,
        authority: bool = False,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + _LIFETIME)
            # Python 3.13 verifies strictly: it wants both key identifiers and the key usage
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(_key_usage(authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if not authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def write_kubeconfig(
    path: Path, *, url: str, ca_file: Path, token: str | None = None, user: KeyPair | None = None, namespace: str = ""
) -> Path:
    """A kubeconfig for one cluster and one user, everything inside it, so that the file can be
    moved.

    Written as JSON, which is YAML too.
    """
    credentials: dict[str, str] = {}
    if token is not None:
        credentials["token"] = token
    if user is not None:
        credentials["client-certificate-data"] = _base64(user.certificate)
        credentials["client-key-data"] = _base64(user.key)
    context = {"cluster": "hami-dra", "user": "hami-dra", **({"namespace": namespace} if namespace else {})}
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "hami-dra", "cluster": {"server": url, "certificate-authority-data": _base64(ca_file)}}],
        "users": [{"name": "hami-dra", "user": credentials}],
        "contexts": [{"name": "hami-dra", "context": context}],
        "current-context": "hami-dra",
    }
    return write_private(path, json.dumps(content, indent=1))


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str, groups: Sequence[str] = ()) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
