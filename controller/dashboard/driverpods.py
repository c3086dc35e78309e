"""The node drivers' metrics over plain HTTP: the `Meters` of a controller in a cluster.

Created by `serving`. In: the controller's own copies of pods. It connects to the port named `http`
of running pods in the system namespace that carry the drivers' labels, and to nothing else: it
follows no redirect and uses no proxy.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from controller.dashboard.readings import AT_ONCE, MOST_BYTES, Target
from hami_dra.api import names
from hami_dra.api.core import Pod

_CHUNK: Final = 64 << 10


class NoAnswer(Exception):
    """A driver gave no answer; the message says why."""


def session_for_drivers() -> aiohttp.ClientSession:
    """Return a session, which the caller must close."""
    return aiohttp.ClientSession(
        headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
        connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


@dataclass(eq=False)
class DriverPods:
    """The drivers' pods. The caller closes `session`."""

    pods: Callable[[], Iterable[Pod]]
    namespace: str
    session: aiohttp.ClientSession
    most: int = MOST_BYTES

    def targets(self) -> Sequence[Target]:
        return [found for pod in self.pods() if (found := target_of(pod, self.namespace)) is not None]

    async def ask(self, target: Target) -> str:
        async with self.session.get(target.url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise NoAnswer(f"status {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > self.most:
                    raise NoAnswer(f"more than {self.most} bytes")
        return body.decode("utf-8", "replace")


def target_of(pod: Pod, namespace: str) -> Target | None:
    """Return where to read a driver's metrics; None for other pods, and without an address or port yet."""
    labels = pod.metadata.labels
    if (
        pod.metadata.namespace != namespace
        or labels.get(names.PART_OF_LABEL) != names.MANAGED_BY
        or labels.get(names.COMPONENT_LABEL) != names.DRIVER_COMPONENT
        or pod.status.phase != "Running"
        or not pod.spec.node_name
    ):
        return None
    port = pod.port(names.HTTP_PORT)
    try:
        address = ipaddress.ip_address(pod.status.pod_ip)
    except ValueError:
        return None
    host = f"[{address}]" if address.version == 6 else str(address)
    return Target(pod.spec.node_name, f"http://{host}:{port}/metrics") if port is not None else None
