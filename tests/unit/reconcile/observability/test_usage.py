"""What /metrics says is in use, whoever allocated it."""

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from controller.inventory.ledger import Ledger
from controller.reconcile.observability.usage import UsageCollector
from hami_dra.api.resource import AllocationResult


def allocation(*results):
    return msgspec.convert({"devices": {"results": list(results)}}, AllocationResult)


def result(device, **consumed):
    whole = {"request": "gpu", "driver": "nvidia.hami.io", "pool": "n1", "device": device}
    return {**whole, "shareID": device, "consumedCapacity": consumed} if consumed else whole


def samples(ledger):
    registry = CollectorRegistry()
    registry.register(UsageCollector(ledger.uses))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_devices_and_what_their_shares_take_are_summed_by_driver():
    ledger = Ledger()
    ledger.observe("a", allocation(result("gpu-0", memory="4Gi", cores="30")))
    ledger.observe("b", allocation(result("gpu-0", memory="2Gi", cores="0"), result("gpu-1")))
    assert samples(ledger) == {
        'hami_dra_devices_in_use{driver="nvidia.hami.io"}': 2,
        'hami_dra_allocated_capacity{capacity="memory",driver="nvidia.hami.io"}': 6 << 30,
        'hami_dra_allocated_capacity{capacity="cores",driver="nvidia.hami.io"}': 30,
    }


def test_nothing_in_use_is_no_sample():
    ledger = Ledger()
    ledger.observe("a", allocation(result("gpu-0", memory="4Gi")))
    ledger.observe("a", None)
    assert samples(ledger) == {}
