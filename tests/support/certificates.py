"""Certificates for tests: a self-signed pair, and a TLS server with the certificate of the webhook's own authority."""

import ssl
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.webhook.server.certificates import renewed


@cache
def self_signed():
    """Return (certificate, key) as PEM, valid from yesterday to tomorrow."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def serving_tls(folder, host):
    """Return (context of a server that is called `host`, PEM of the authority that clients trust)."""
    material = renewed(None, [host], datetime.now(UTC))
    files = folder / "tls.crt", folder / "tls.key"
    for path, text in zip(files, (material.certificate, material.key), strict=True):
        path.write_bytes(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context, material.authorities.decode()
