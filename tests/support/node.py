"""A node driver under virtual time: calls that block are made at once, kubelet is a plugin that registers when it starts."""

import asyncio

from msgspec.structs import replace


async def at_once(work):
    """In place of `hami_dra.driver.node.threads.in_thread`: nothing else runs meanwhile, so that every run is the same."""
    return work()


class FakePlugin:
    """Implements `hami_dra.driver.node.service.Plugin`."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.registered = asyncio.Event()
        self.running = False

    async def run(self):
        self.running = True
        self.registered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False


def claim_on(name, driver, pool, device, consumed):
    """A claim as JSON that holds one device; `consumed` is None for one that is not shared."""
    result = {"request": "r", "driver": driver, "pool": pool, "device": device}
    if consumed is not None:
        result |= {"shareID": "6a4dbb6f-1f1c-4b2b-8a8e-000000000001", "consumedCapacity": consumed}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def with_fault(machine, index, fault):
    cards = [replace(card, faults=(fault,)) if card.index == index else card for card in machine.cards]
    return replace(machine, cards=tuple(cards))
