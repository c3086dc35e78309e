"""Data of the pages. `Source` is the contract; `InformerSource` implements it for a running
controller.

Created by the CLI and by tests; read by `pages`, `history` and `stream`. All data are the
controller's own copies: nothing here calls the API server, nothing changes anything, and nothing
iterates over every claim to show one node.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final, Literal, Protocol

from msgspec import Struct
from prometheus_client import Gauge

from controller.gangs import GangKey, GangState
from controller.inventory import Inventory
from controller.reconcile.controller import Controller
from controller.reconcile.repair import NodeResources
from controller.reconcile.runtime import Informers, Mode, SchedulingSettings
from controller.views.explanation import Explanation
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podstate import is_pending, is_unschedulable
from hami_dra.api.resource import ResourceClaim
from hami_dra.vendors.registry import LEGACY_VENDORS

_LEGACY: Final = frozenset(resource for vendor in LEGACY_VENDORS for resource in vendor.resources)
Heard = Callable[[ResourceClaim | None, ResourceClaim | None], None]


class Decisions(Protocol):
    """The stored decisions (`controller.reconcile.runtime.decision_log`)."""

    def of_pod(self, key: str, *, brief: bool = False) -> Explanation | None:
        """`brief`: without nodes and cards."""

    def of_claim(self, key: str) -> Explanation | None: ...

    def latest(self, most: int) -> list[Explanation]: ...


class ControllerState(Struct, frozen=True):
    """What this replica is and does."""

    version: str
    mode: Mode
    is_leader: bool
    fence: Literal["none", "holds", "untested", "open", "unknown"]
    """`none`: native mode needs none. `untested`: it holds, but no device was free for a probe.
    `unknown`: only the leader knows.
    """


class Source(Protocol):
    @property
    def namespaces(self) -> frozenset[str] | None:
        """Return the only namespaces whose names may be shown; None: all."""

    @property
    def state(self) -> ControllerState: ...

    @property
    def inventory(self) -> Inventory: ...

    @property
    def decisions(self) -> Decisions: ...

    @property
    def scheduling(self) -> SchedulingSettings:
        """Return which pods the controller places, and its defaults."""

    def problems(self) -> Sequence[str]:
        """Return why the data may be outdated or incomplete; empty if they are not."""

    def pods(self) -> Iterable[Pod]: ...

    def pending_pods(self) -> Iterable[Pod]:
        """Return the pods that wait for a node, of every scheduler. Does not read the others."""

    def pod(self, key: str) -> Pod | None: ...

    def pods_of(self, claim: str) -> Sequence[Pod]:
        """Return the pods that refer to the claim `namespace/name`."""

    def unconverted(self, pod: Pod) -> str:
        """Return what to do about a pod that should have been converted but was not, or empty."""

    def is_legacy(self, pod: Pod) -> bool:
        """Return whether a container asks for an extended resource that the webhook converts."""

    def gang_key(self, pod: Pod) -> GangKey | None:
        """Return the gang that the pod is a member of, or None."""

    def gang_keys(self) -> Iterable[GangKey]:
        """Return the gangs that have members."""

    def gang(self, key: GangKey) -> GangState:
        """Return the state of a gang. It reads all members."""

    def held_until(self, key: GangKey) -> datetime | None:
        """Return when a gang gives back what its waiting members hold; None: unknown, or no end is set."""

    def claims(self) -> Iterable[ResourceClaim]: ...

    def claim(self, key: str) -> ResourceClaim | None: ...

    def claims_on(self, device: str) -> Sequence[ResourceClaim]:
        """Return the claims whose allocation names the device `driver/pool/device`."""

    def objects(self) -> list[tuple[Kind[Any], Object]]:
        """Return the present state for `controller.insight.whatif`: immutable, another thread may read it."""

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of anything shown. Returns a function that unsubscribes."""

    def on_claim(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` with each changed claim, old and new. Returns a function that unsubscribes."""


class InformerSource:
    """The data of a controller that is in sync (`on_synced`)."""

    namespaces = None

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

    @property
    def state(self) -> ControllerState:
        settings, leads = self._controller.settings, self._controller.is_leading
        metrics = self._controller.metrics
        fence: Literal["none", "holds", "untested", "open", "unknown"]
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
        return self._controller.decision_log

    @property
    def scheduling(self) -> SchedulingSettings:
        return self._controller.settings.scheduling

    def problems(self) -> Sequence[str]:
        return self._informers.problems()

    def pods(self) -> Iterable[Pod]:
        return self._informers.pods.store

    def pending_pods(self) -> Iterable[Pod]:
        return self._pending.values()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and is_pending(new):
            self._pending[new.key] = new
        elif (gone := new or old) is not None:
            self._pending.pop(gone.key, None)

    def pod(self, key: str) -> Pod | None:
        return self._informers.pod(key)

    def pods_of(self, claim: str) -> Sequence[Pod]:
        return self._informers.pods_of(claim)

    def claims(self) -> Iterable[ResourceClaim]:
        return self._informers.claims.store

    def gang_key(self, pod: Pod) -> GangKey | None:
        return self._informers.gangs.of(pod)

    def gang_keys(self) -> Iterable[GangKey]:
        return self._informers.gangs.keys()

    def gang(self, key: GangKey) -> GangState:
        return self._informers.gangs.state(key)

    def held_until(self, key: GangKey) -> datetime | None:
        return self._controller.held_until(key)

    def unconverted(self, pod: Pod) -> str:
        conversion = self._controller.conversion
        if pod.spec.resource_claims or conversion is None or not is_unschedulable(pod):
            return ""
        return conversion.bypassed(pod, self._offered.names()) or ""

    def is_legacy(self, pod: Pod) -> bool:
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        return any(not _LEGACY.isdisjoint(each.resources.limits | each.resources.requests) for each in containers)

    def claim(self, key: str) -> ResourceClaim | None:
        return self._informers.claim(key)

    def claims_on(self, device: str) -> Sequence[ResourceClaim]:
        return self._informers.claims_on(device)

    def objects(self) -> list[tuple[Kind[Any], Object]]:
        return [(feed.kind, each) for feed in self._informers.feeds() for each in feed.store]

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        def changed(_old: Object | None, _new: Object | None) -> None:
            callback()

        ends = [feed.subscribe(changed) for feed in self._informers.feeds()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def on_claim(self, heard: Heard) -> Callable[[], None]:
        return self._informers.claims.subscribe(heard)


def _largest(gauge: Gauge) -> float:
    return max((sample.value for family in gauge.collect() for sample in family.samples), default=0.0)
