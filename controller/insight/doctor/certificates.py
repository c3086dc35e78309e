"""Checks of the webhook's certificates. Imported only where `cryptography` is installed: it comes
with the extra `controller`, and everything else that the doctor checks does without.
"""

import base64
import binascii
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from controller.insight.doctor.installed import filling_in
from controller.insight.doctor.model import Finding, Live, Raw, Severity, State
from hami_dra.api import kinds, names

_SOON: Final = timedelta(days=14)


def certificates(state: State, live: Live, title: str, convert: Raw) -> Iterator[Finding]:
    """Check that the certificate is valid now, and signed by the caBundle of `convert`. `title`: in findings."""
    restart = f"restart the webhook, which renews it: kubectl -n {state.installation.namespace} rollout restart deployment {names.WEBHOOK}"
    fill_in = filling_in(state, live, kinds.MUTATING_WEBHOOK.name)
    text = convert.get("clientConfig", {}).get("caBundle") or ""
    if not text:
        if "url" not in convert.get("clientConfig", {}):
            yield Finding.error(title, "its caBundle is empty: the API server trusts no certificate of it", fill_in)
        return
    try:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        yield Finding.error(title, "its caBundle is not a list of certificates", fill_in)
        return
    if all(each.not_valid_after_utc <= state.now for each in authorities):
        yield Finding.error(title, "all certificates of its caBundle have expired", fill_in)
    served = live.webhook.certificate if live.webhook is not None else None
    if served is None:
        return
    secret = f"Secret {state.installation.namespace}/{names.WEBHOOK_SECRET}"
    try:
        certificate = x509.load_pem_x509_certificates(served)[0]
    except (ValueError, IndexError):
        yield Finding.error(secret, "its tls.crt is not a certificate", f"kubectl -n {state.installation.namespace} delete secret {names.WEBHOOK_SECRET}; {restart}")  # fmt: skip
        return
    left = certificate.not_valid_after_utc - state.now
    if left <= _SOON:
        yield Finding.of(
            Severity.ERROR if left <= timedelta() else Severity.WARNING,
            secret,
            f"the webhook's certificate ends {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            restart,
        )
    if not any(_signed(certificate, each) for each in authorities):
        yield Finding.error(
            title, f"no certificate of its caBundle signed the one that the webhook serves with ({secret})", fill_in
        )


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return certificate == authority
    return True
