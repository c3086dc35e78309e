"""What the node driver of a simulated machine answers on /metrics, made by the driver's own code."""

from collections import Counter
from types import SimpleNamespace

from prometheus_client import generate_latest

from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.simulated import machine
from hami_dra.monitor.simulated import Load, SimulatedSampler


def exposition(node, model, loads=None, moment=0.0):
    """`loads`: by uuid; without them every card has a tenant with half of it."""
    found = machine(model, node)
    loads = loads or {card.uuid: Load(memory=card.memory // 2, cores=50, tenants=1) for card in found.cards}
    sampler = SimulatedSampler(lambda: loads, lambda: moment)
    monitoring = SimpleNamespace(
        source=sampler.source, readings=sampler.sample(found.cards).readings, looks=1, failures=Counter(), problems=()
    )
    metrics = DriverMetrics()
    watched = MonitoredVendor("x.hami.io", "x", found.cards, frozenset(), (), monitoring)
    metrics.watch(node, lambda: [watched])
    return generate_latest(metrics.registry).decode()
