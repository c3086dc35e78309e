"""What containers use, asked of the node drivers through the API server: for `hami-dra status --usage`.

The API server passes the question on to port `http` of the drivers' pods (pods/proxy), so it works
from anywhere. It only knows numbers of ports there: Kubernetes 1.37.1 ends a request for a name
with a panic. It questions only pods of one namespace with the drivers' labels. A driver is believed
about the cards of its own node only.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from controller.cli.connection import Connection
from controller.cli.tables import note
from controller.views import View

if TYPE_CHECKING:
    from controller.views.overview import ContainerUse, Overview
    from hami_dra.api.core import Pod
    from hami_dra.kube.http import HttpCluster

Usage = Mapping[str, Mapping[str, "tuple[ContainerUse, ...]"]]
"""Node → uuid of a card → containers."""

_AT_ONCE: Final = 16
_PATIENCE: Final = 10.0
"""Seconds in which one driver must answer."""


class UsedCard(View, frozen=True):
    """What one container uses of one card. None: not reported."""

    node: str
    card: str
    namespace: str
    pod: str
    container: str
    memory_used: int | None
    """Bytes."""
    memory_limit: int | None
    utilization: float | None
    """Percent of the card's cores, 0 to 100."""


def used_cards(overview: "Overview", found: Usage, namespace: str | None) -> list[UsedCard]:
    """Return what containers (of this namespace) use of the cards shown. `found`: node → uuid → containers."""
    return [
        UsedCard(card.node, card.device, *astuple(use))
        for card in overview.cards
        for use in found.get(card.node, {}).get(card.uuid, ())
        if namespace in {None, use.namespace}
    ]


def read_usage(connection: Connection, namespace: str) -> Usage:
    """Ask all drivers in this namespace; what does not answer is noted. Raises ClusterError, ConfigError."""
    return asyncio.run(_read(connection, namespace))


async def _read(connection: Connection, namespace: str) -> Usage:
    from hami_dra.api import names
    from hami_dra.api.kinds import POD

    labels = {names.PART_OF_LABEL: names.MANAGED_BY, names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    async with connection.open() as cluster:
        pods = await cluster.list(POD, namespace=namespace, label_selector=selector)
        return await _ask_all(cluster, pods.items)


async def _ask_all(cluster: "HttpCluster", pods: "Iterable[Pod]") -> Usage:
    from controller.views.overview import container_uses
    from hami_dra.api import names
    from hami_dra.kube.protocol import ClusterError

    gate = asyncio.Semaphore(_AT_ONCE)
    running = [pod for pod in pods if pod.status.phase == "Running" and pod.spec.node_name]
    found: dict[str, dict[str, tuple[ContainerUse, ...]]] = {}

    async def ask(pod: "Pod") -> None:
        meta = pod.metadata
        port = pod.port(names.HTTP_PORT)
        if port is None:
            note(f"{pod.spec.node_name}: pod {meta.name} is no driver of hami-dra: it has no port {names.HTTP_PORT}")
            return
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{port}/proxy/metrics"
        try:
            async with gate, asyncio.timeout(_PATIENCE):
                text = await cluster.read_text(path)
        except (ClusterError, TimeoutError) as error:
            note(f"{pod.spec.node_name}: its driver does not say what containers use: {str(error) or 'no answer'}")
            return
        found.setdefault(pod.spec.node_name, {}).update(container_uses(text))

    await asyncio.gather(*map(ask, running))
    if not running:
        note(
            "no driver of hami-dra was found, so what containers use is not known; name its namespace with --install-namespace"
        )
    return found
