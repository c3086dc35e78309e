"""The webhook's own certificates: an authority and a serving certificate, both renewed early.

Called by `controller.webhook.server.certificate_sources`. `renewed` and `signed` are pure but for
fresh keys. `ensure_secret` keeps the result of `renewed` in a Secret that all replicas share: the
first replica writes it, the others read it. The authority's certificates are a bundle, newest
first, so that a new authority is trusted next to the old one until all replicas serve the new
certificate.
"""

import base64
import ipaddress
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from hami_dra.api import kinds
from hami_dra.api.core import Secret
from hami_dra.kube.protocol import Cluster, Conflict, Unavailable

AUTHORITY_LIFE: Final = timedelta(days=3650)
AUTHORITY_RENEWED: Final = timedelta(days=730)
"""Time before expiry at which the authority is renewed; longer than the life of what it signs."""
SERVING_LIFE: Final = timedelta(days=365)
SERVING_RENEWED: Final = timedelta(days=60)
_CLOCK_SKEW: Final = timedelta(hours=1)
_AUTHORITY_NAME: Final = "hami-dra webhook authority"
_ATTEMPTS: Final = 5


class Material(Struct, frozen=True):
    """All PEM. `authorities`: the bundle that clients trust; the key belongs to its first certificate."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def renewed(material: Material | None, hosts: Sequence[str], now: datetime) -> Material:
    """Return `material` itself while it is valid, else replace what is unreadable, missing or near expiry."""
    authorities, authority_key = _read_authority(material, now)
    is_new = not authorities or authorities[0].not_valid_after_utc - now < AUTHORITY_RENEWED
    if is_new:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authorities = [_new_authority(authority_key, now), *authorities]
    if not is_new and material is not None and _serves(material, authorities[0], hosts, now):
        return material
    assert authority_key is not None  # set together with the authorities
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _new_serving(key, hosts, authorities[0], authority_key, now)
    return Material(
        authorities=b"".join(map(_pem, authorities)),
        authority_key=_key_pem(authority_key),
        certificate=_pem(certificate),
        key=_key_pem(key),
    )


def signed(material: Material | None, authority: bytes, key: bytes, hosts: Sequence[str], now: datetime) -> Material:
    """Return `material` while it is valid, else one signed by a given authority (PEM). Raises BadAuthority."""
    given = Material(authorities=authority, authority_key=key, certificate=b"", key=b"")
    authorities, authority_key = _read_authority(given, now)
    if not authorities or authority_key is None:
        raise BadAuthority("the authority has expired, or its certificate and key do not match (PEM, an EC key)")
    same = material is not None and (material.authorities, material.authority_key) == (authority, key)
    if same and material is not None and _serves(material, authorities[0], hosts, now):
        return material
    own_key = ec.generate_private_key(ec.SECP256R1())
    certificate = _new_serving(own_key, hosts, authorities[0], authority_key, now)
    return Material(authority, key, _pem(certificate), _key_pem(own_key))


class BadAuthority(ValueError):
    """No certificate can be signed; the message says why."""


async def ensure_secret(
    cluster: Cluster,
    namespace: str,
    name: str,
    hosts: Sequence[str],
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Material:
    """Return what the Secret holds, renewed if necessary. Raises ClusterError; NotFound: it ships empty."""
    for _ in range(_ATTEMPTS):
        secret = await cluster.get(kinds.SECRET, name, namespace)
        found = _from_data(secret)
        material = renewed(found, hosts, now())
        if material is found:
            return material
        metadata = {"resourceVersion": secret.metadata.resource_version, "uid": secret.metadata.uid}
        data = {key: base64.b64encode(getattr(material, part)).decode() for part, key in _DATA.items()}
        try:
            await cluster.patch(kinds.SECRET, name, {"metadata": metadata, "data": data}, namespace=namespace)
        except Conflict:
            continue
        return material
    raise Unavailable(f"Secret {namespace}/{name} changes too often; does another installation use it?")


_DATA: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


def _from_data(secret: Secret) -> Material | None:
    try:
        return Material(**{part: base64.b64decode(secret.data[key]) for part, key in _DATA.items()})
    except (KeyError, ValueError):
        return None


def _read_authority(
    material: Material | None, now: datetime
) -> tuple[list[x509.Certificate], ec.EllipticCurvePrivateKey | None]:
    """Return the valid authorities, newest first, and the first one's key; nothing if they do not match."""
    if material is None:
        return [], None
    try:
        authorities = x509.load_pem_x509_certificates(material.authorities)
        key = serialization.load_pem_private_key(material.authority_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return [], None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or authorities[0].public_key() != key.public_key():
        return [], None
    return [one for one in authorities if one.not_valid_before_utc <= now < one.not_valid_after_utc], key


def _serves(material: Material, authority: x509.Certificate, hosts: Sequence[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(material.certificate)
        key = serialization.load_pem_private_key(material.key, None)
        certificate.verify_directly_issued_by(authority)
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - SERVING_RENEWED
        and {_host(host) for host in hosts} <= set(alternatives)
    )


def _new_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY_NAME)])
    return (
        _builder(name, name, key.public_key(), now, now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _new_serving(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami-dra webhook")])
    return (
        _builder(name, authority.subject, key.public_key(), now, now + SERVING_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(_identifier_of(authority), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _identifier_of(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier that the authority states, else one of its key: issuers derive them differently."""
    try:
        named = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        public_key = authority.public_key()
        assert isinstance(public_key, ec.EllipticCurvePublicKey)  # `_read_authority`
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
