"""Objects shared by all acting parts of one term. Created by `term`."""

from msgspec import Struct

from controller.inventory import Inventory
from controller.reconcile.runtime.clock import Clock
from controller.reconcile.runtime.events import Events
from controller.reconcile.runtime.informers import Informers
from controller.reconcile.runtime.metrics import Metrics
from controller.reconcile.runtime.settings import Settings
from controller.reconcile.runtime.writer import LeadershipLost, Writer
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.protocol import Cluster


class Context(Struct, frozen=True):
    """Shared objects. `cluster` is for reading; all writes that matter go through `writer`."""

    cluster: Cluster
    writer: Writer
    informers: Informers
    inventory: Inventory
    settings: Settings
    clock: Clock
    events: Events
    metrics: Metrics

    def guard(self, loop: str, *passing: type[Exception]) -> LoopGuard:
        """Return the guard of one loop of the term: lost leadership ends the loop, `passing` is handled in it."""
        return self.metrics.guard(loop, (LeadershipLost, *passing))
