"""What the admission server counts, for Prometheus: reviews, by what became of them, and when its certificate ends.

One object per server, with a registry of its own. Labels have few values: never a pod or a namespace.
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
            "Pods that the API server asked about, by result: converted, unchanged, refused, unreadable.",
            ["result"],
            registry=self.registry,
        )
        for result in ("converted", "unchanged", "refused", "unreadable"):
            self.reviews.labels(result)
        self.seconds = Histogram(
            "hami_dra_webhook_review_seconds", "Time of one review.", buckets=_BUCKETS, registry=self.registry
        )
        self.expiry = Gauge(
            "hami_dra_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends; 0 while there is none.",
            registry=self.registry,
        )

    def reviewed(self, answer: dict[str, Any]) -> None:
        response = answer["response"]
        result = ("converted" if "patch" in response else "unchanged") if response["allowed"] else "refused"
        self.reviews.labels(result).inc()

    def serves(self, certificate: bytes) -> None:
        """PEM, the server's own certificate first."""
        self.expiry.set(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp())
