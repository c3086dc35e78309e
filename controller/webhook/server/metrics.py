"""Prometheus metrics of the admission server: reviews by result, and when its certificate expires.

One object per server, with a registry of its own. Labels have few values: never a pod or a
namespace.
"""

from importlib.metadata import version
from typing import Any

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class WebhookMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Gauge("hami_dra_build_info", "Always 1.", ["version"], registry=self.registry).labels(version("hami-dra")).set(
            1
        )
        self.reviews = Counter(
            "hami_dra_webhook_reviews",
            "Reviews at admission, by result: converted, unchanged, refused, advised, unreadable.",
            ["result"],
            registry=self.registry,
        )
        for result in ("converted", "unchanged", "refused", "advised", "unreadable"):
            self.reviews.labels(result)
        self.seconds = Histogram(
            "hami_dra_webhook_review_seconds",
            "Duration of one review in seconds.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.expiry = Gauge(
            "hami_dra_webhook_certificate_expiry_timestamp_seconds",
            "Expiry of the serving certificate, as a Unix timestamp; 0 while there is none.",
            registry=self.registry,
        )

    def reviewed(self, answer: dict[str, Any]) -> None:
        response = answer["response"]
        result = ("converted" if "patch" in response else "unchanged") if response["allowed"] else "refused"
        self.reviews.labels(result).inc()

    def advised(self, answer: dict[str, Any]) -> None:
        """Count a review that only gives advice, with or without warnings."""
        self.reviews.labels("advised" if answer["response"].get("warnings") else "unchanged").inc()

    def serves(self, certificate: bytes) -> None:
        """Record the expiry of the certificate in use (PEM, the server's own certificate first)."""
        self.expiry.set(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp())
