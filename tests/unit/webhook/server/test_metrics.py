"""What the admission server counts, over real TLS: reviews by result, and the end of the certificate that it serves."""

import asyncio
import re
import ssl

from cryptography import x509

from controller.webhook.server.server import Server, WebhookSettings
from tests.unit.webhook.server.test_server import LOCAL, bundle, call, cluster
from tests.unit.webhook.test_admission import review

__all__ = ["cluster"]

UNREADABLE = b"{"
REFUSED = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "-3"}


def counted(text):
    return {
        result: float(value)
        for result, value in re.findall(r'^hami_dra_webhook_reviews_total\{result="(\w+)"\} (\S+)$', text, re.MULTILINE)
    }


async def test_reviews_are_counted_by_result(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        trusted = await bundle(cluster)
        legacy = review()
        plain = review()
        plain["request"]["object"]["spec"]["containers"] = [{"name": "main", "image": "x"}]
        refused = review()
        refused["request"]["object"]["spec"]["containers"][0]["resources"] = {"limits": REFUSED}
        for body in (legacy, plain, refused):
            await call(server, trusted, "/mutate", body)
        await call(server, trusted, "/mutate", data=UNREADABLE)
        misspelt = review()
        misspelt["request"]["object"]["metadata"]["annotations"] = {"hami.io/gpu-policy": "binpack"}
        await call(server, trusted, "/advise", misspelt)
        status, text = await call(server, trusted, "/metrics")
    assert status == 200
    assert counted(text) == {"converted": 1, "unchanged": 1, "refused": 1, "advised": 1, "unreadable": 1}
    assert "hami_dra_webhook_review_seconds_count 4.0" in text


async def test_the_end_of_the_certificate_is_that_of_the_one_that_is_served(cluster):
    async with Server(cluster, WebhookSettings(**LOCAL)) as server:
        await server.ready()
        trusted = await bundle(cluster)
        _, text = await call(server, trusted, "/metrics")
        context = ssl.create_default_context(cadata=trusted)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        served = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
    found = re.search(r"^hami_dra_webhook_certificate_expiry_timestamp_seconds (\S+)$", text, re.MULTILINE)
    assert float(found[1]) == served.not_valid_after_utc.timestamp()
