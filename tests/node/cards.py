"""Pods on certain cards of the node, and what the cluster says of the health of both. Used by several files of this folder."""

from tests.e2e.objects import claim, part, pod


def on_card(index):
    return f'device.attributes["hami.io"].index == {index}'


def use_cards(bench, **indexes):
    """A running pod on each of these cards, named as the argument."""
    for name, index in indexes.items():
        bench.create(claim(name, part("2Gi", selector=on_card(index))), pod(name, claims=[name]))
    bench.wait_running(*indexes)


def health(bench, name):
    """What kubelet says of the devices of a pod: verdicts and messages."""
    (container,) = bench.pod(name)["status"]["containerStatuses"]
    return [
        (each["health"], each.get("message", ""))
        for status in container.get("allocatedResourcesStatus", ())
        for each in status["resources"]
    ]


def wait_health(bench, **expected):
    """Pod → its one verdict."""
    bench.hami.wait_for(
        f"health {expected}",
        lambda: (
            {name: [verdict for verdict, _ in health(bench, name)] for name in expected}
            == {name: [verdict] for name, verdict in expected.items()}
        ),
    )


def wait_taints(bench, *expected):
    bench.hami.wait_for(f"taints {expected}", lambda: bench.taints() == set(expected))
