"""The watches of one driver, next to the server of kubelet's calls: what containers lack and use, and what their
runtime left behind. Started by `service` once there is something to serve.
"""

import asyncio
from collections.abc import Callable

from hami_dra.driver.node.driver_runtime import DriverRuntime
from hami_dra.driver.node.leftovers import RESULTS, LeftoverSources, LeftoverWatch
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.node.threads import InThread
from hami_dra.driver.node.usage_watch import UsageWatch
from hami_dra.kube.guard import LoopGuard


def started_watches(
    runtime: DriverRuntime, settings: NodeSettings, call: InThread, guard: LoopGuard, tell: Callable[[str, str], None]
) -> list[asyncio.Task[None]]:
    """Start the watches. `tell`: tell the operator of the node, in an event."""
    running = {"lacking": runtime.lacks.run(settings.discover_every, call, guard)}
    if runtime.usage_reader is not None:
        usage = UsageWatch(runtime.vendor.name, runtime.usage_reader, runtime.readable, runtime.claim_folders, call)
        runtime.usage = usage.monitoring if settings.monitor_interval else None
        running["usage"] = usage.run(settings.check_claims_every, guard)
    if runtime.runtime_partitions is not None:
        counters = {result: runtime.metrics.leftovers.labels(runtime.driver, result) for result in RESULTS}
        sources = LeftoverSources(
            cards=runtime.cards_to_clear,
            held=runtime.held_profiles,
            tell=tell,
            count=lambda result: counters[result].inc(),
        )
        leftovers = LeftoverWatch(runtime.driver, runtime.runtime_partitions, sources, call)
        running["leftovers"] = leftovers.run(settings.discover_every, guard)
    return [asyncio.create_task(work, name=f"{name} {runtime.driver}") for name, work in running.items()]
