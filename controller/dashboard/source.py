"""Data of the pages: what a running controller has, of all namespaces or of those that a user may view.

Created by the CLI and by tests; read by `pages`, `history` and `stream`. All data are the
controller's own copies: nothing here calls the API server, nothing changes anything, and nothing
iterates over every claim to show one node.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from copy import copy
from importlib.metadata import version
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from prometheus_client import Gauge

from controller.gangs import GangKey, GangState
from controller.inventory import Inventory
from controller.reconcile.controller import Controller
from controller.reconcile.repair import NodeResources
from controller.reconcile.runtime import DecisionLog, Informers, Mode, SchedulingSettings
from controller.views.explanation import Explanation
from controller.views.overview import Held
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podstate import is_pending, is_unschedulable
from hami_dra.api.resource import ResourceClaim
from hami_dra.vendors.registry import LEGACY_VENDORS

_LEGACY: Final = frozenset(resource for vendor in LEGACY_VENDORS for resource in vendor.resources)
Heard = Callable[[ResourceClaim | None, ResourceClaim | None], None]
T = TypeVar("T", Pod, ResourceClaim)


Fence = Literal["none", "holds", "untested", "open", "unknown"]
"""`none`: native mode needs none. `untested`: it holds, but no device was free for a probe.
`unknown`: only the leader knows.
"""


class ControllerState(Struct, frozen=True):
    """What this replica is and does."""

    version: str
    mode: Mode
    is_leader: bool
    fence: Fence


class Decisions(Struct, frozen=True):
    """The stored decisions, of the namespaces that may be shown."""

    log: DecisionLog
    shows: Callable[[str], bool]
    """Whether an object `namespace/name` may be shown."""

    def of_pod(self, key: str, *, brief: bool = False) -> Explanation | None:
        """`brief`: without nodes and cards."""
        return self.log.of_pod(key, brief=brief) if self.shows(key) else None

    def of_claim(self, key: str) -> Explanation | None:
        return self.log.of_claim(key) if self.shows(key) else None

    def latest(self, most: int) -> list[Explanation]:
        return [each for each in self.log.latest(most) if self.shows(each.pod)]


class Source:
    """The data of a controller that is in sync (`on_synced`).

    Of users who may view some namespaces only (`within`), pods, claims, gangs and decisions of
    others do not exist in it. Texts of decisions name objects of the pod's own namespace only
    (`cluster.pods.pod_names`). Nodes and devices are those of the whole cluster, with all amounts:
    capacity belongs to no namespace. What the inventory knows of namespaces is left out by its
    readers (`namespaces`).
    """

    namespaces: frozenset[str] | None = None
    """The only ones whose names may be shown; None: all."""

    def __init__(self, controller: Controller) -> None:
        informers = controller.informers
        assert informers is not None, "the controller runs and is synced"
        self._controller = controller
        self._informers: Informers = informers
        self._version = version("hami-dra")
        self._offered = NodeResources()
        informers.nodes.subscribe(self._offered.node_changed)
        for node in informers.nodes.store:
            self._offered.node_changed(None, node)
        self._pending: dict[str, Pod] = {}
        informers.pods.subscribe(self._pod_changed)
        for pod in informers.pods.store:
            self._pod_changed(None, pod)

    def within(self, namespaces: frozenset[str]) -> "Source":
        """Return what it has in these namespaces."""
        part = copy(self)
        part.namespaces = namespaces
        return part

    def _shows(self, key: str) -> bool:
        """Return whether the object `namespace/name` may be shown."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces

    def _shown(self, objects: Iterable[T]) -> Iterable[T]:
        mine = self.namespaces
        return objects if mine is None else (each for each in objects if each.metadata.namespace in mine)

    # -- the controller ----------------------------------------------------------------------------

    @property
    def state(self) -> ControllerState:
        settings, leads = self._controller.settings, self._controller.is_leading
        metrics = self._controller.metrics
        fence: Fence
        if settings.drivers.mode is Mode.NATIVE:
            fence = "none"
        elif not leads:
            fence = "unknown"
        elif not _largest(metrics.fence_ready):
            fence = "open"
        else:
            fence = "untested" if _largest(metrics.fence_untested) else "holds"
        return ControllerState(self._version, settings.drivers.mode, leads, fence)

    @property
    def inventory(self) -> Inventory:
        return self._controller.inventory

    @property
    def decisions(self) -> Decisions:
        return Decisions(self._controller.decision_log, self._shows)

    @property
    def scheduling(self) -> SchedulingSettings:
        """Return which pods the controller places, and its defaults."""
        return self._controller.settings.scheduling

    def problems(self) -> Sequence[str]:
        """Return why the data may be outdated or incomplete; empty if they are not."""
        return self._informers.problems()

    # -- objects -----------------------------------------------------------------------------------

    def pods(self) -> Iterable[Pod]:
        return self._shown(self._informers.pods.store)

    def pending_pods(self) -> Iterable[Pod]:
        """Return the pods that wait for a node, of every scheduler. Does not read the others."""
        return self._shown(self._pending.values())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and is_pending(new):
            self._pending[new.key] = new
        elif (gone := new or old) is not None:
            self._pending.pop(gone.key, None)

    def pod(self, key: str) -> Pod | None:
        return self._informers.pod(key) if self._shows(key) else None

    def pods_of(self, claim: str) -> Sequence[Pod]:
        """Return the pods that refer to the claim `namespace/name`."""
        return self._informers.pods_of(claim) if self._shows(claim) else ()

    def unconverted(self, pod: Pod) -> str:
        """Return what to do about a pod that should have been converted but was not, or empty."""
        conversion = self._controller.conversion
        if pod.spec.resource_claims or conversion is None or not is_unschedulable(pod):
            return ""
        return conversion.bypassed(pod, self._offered.names()) or ""

    def is_legacy(self, pod: Pod) -> bool:
        """Return whether a container asks for an extended resource that the webhook converts."""
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        return any(not _LEGACY.isdisjoint(each.resources.limits | each.resources.requests) for each in containers)

    def gang_key(self, pod: Pod) -> GangKey | None:
        return self._informers.gangs.of(pod)

    def gang_keys(self) -> Iterable[GangKey]:
        mine, keys = self.namespaces, self._informers.gangs.keys()
        return [key for key in keys if mine is None or key.namespace in mine]

    def gang(self, key: GangKey) -> GangState:
        """Return the state of a gang. It reads all members."""
        return self._informers.gangs.state(key)

    def held_for(self, key: GangKey | str) -> Held | None:
        """Return what is kept for a gang, or for the pod with a UID; None: nothing, or it is not known here."""
        return self._controller.held_for(key)

    def claims(self) -> Iterable[ResourceClaim]:
        return self._shown(self._informers.claims.store)

    def claim(self, key: str) -> ResourceClaim | None:
        return self._informers.claim(key) if self._shows(key) else None

    def claims_on(self, device: str) -> Sequence[ResourceClaim]:
        """Return the claims whose allocation names the device `driver/pool/device`."""
        return list(self._shown(self._informers.claims_on(device)))

    def objects(self) -> list[tuple[Kind[Any], Object]]:
        """Return the present state for `controller.insight.whatif`: immutable, another thread may read
        it. A simulation of the cluster is for those who may view all of it.
        """
        if self.namespaces is not None:
            return []
        return [(feed.kind, each) for feed in self._informers.feeds() for each in feed.store]

    @property
    def reads_budgets(self) -> bool:
        """Whether `objects` has the PodDisruptionBudgets."""
        budgets = self._informers.budgets
        return budgets is not None and budgets.is_readable

    # -- changes -----------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of anything shown. Returns a function that unsubscribes."""

        def changed(_old: Object | None, _new: Object | None) -> None:
            callback()

        ends = ExitStack()
        for feed in self._informers.feeds():
            ends.callback(feed.subscribe(changed))
        return ends.close

    def on_claim(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` with each changed claim, old and new. Returns a function that unsubscribes."""
        return self._informers.claims.subscribe(heard)


def _largest(gauge: Gauge) -> float:
    return max((sample.value for family in gauge.collect() for sample in family.samples), default=0.0)
