"""Verifies that kube-scheduler respects the fence, by a claim for any device and a pod that needs
it.

Called by the fence, for one driver at a time, after a fence was created or restored. The pod is
pinned to a node where it would be served without the fence (`probe_target`). The fence holds if
kube-scheduler refuses the pod for its devices and they were free all the time: then the taint is
the only possible reason. It is broken if the claim was allocated. Any other refusal proves nothing
(all devices are taken, the node is full of pods, kube-scheduler has not seen the class yet): the
fence then holds untested, and is tested later. Pod and claim live in a namespace of their own (the
class is cluster-wide), where the controller may create nothing else; all carry the label
hami.io/probe, and are deleted after each attempt.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from controller.reconcile.fence.probe_target import Bodies, Target, find_target, is_still_free
from controller.reconcile.runtime import Context
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.kinds import DEVICE_CLASS, POD, RESOURCE_CLAIM, Kind
from hami_dra.api.podstate import is_unschedulable, scheduler_message
from hami_dra.api.resource import DeviceClass, ResourceClaim
from hami_dra.kube.protocol import AlreadyExists, ClusterError, NotFound

log = logging.getLogger(__name__)

_INTERVAL = 0.25
_LEAVING_MOST = 30.0
"""Seconds within which the objects of an earlier probe must disappear."""
_OTHER_REASONS = 10.0
"""Seconds in which a refusal for another reason may become one about devices: kube-scheduler may see the class late."""
_NO_DEVICES = "cannot allocate all claims"
"""The text of kube-scheduler's plugin DynamicResources for a node without devices for the pod."""
_KINDS: tuple[Kind[Any], ...] = (POD, RESOURCE_CLAIM, DEVICE_CLASS)


class Outcome(Enum):
    HOLDS = "holds"
    UNTESTED = "untested"
    """Refused, but for a reason that proves nothing about the fence, or there was nothing to refuse."""
    BROKEN = "broken"
    UNSEEN = "unseen"
    """kube-scheduler did not handle the pod in time."""


@dataclass(eq=False)
class Prober:
    context: Context

    def target(self, driver: str) -> Target | None:
        """Return where a probe would prove something now."""
        return find_target(
            self.context.inventory,
            driver,
            self.context.settings.scheduling.options.gates,
            lambda capacities: _decoded(
                probe_bodies(names.PROBE, driver, self.context.settings.fence.probe_image, capacities=capacities)
            ),
        )

    async def probe(self, driver: str) -> Outcome:
        """Run a probe. Raises ClusterError, LeadershipLost."""
        name = names.PROBE
        await self._delete_all(name)
        try:
            target = self.target(driver)
            bodies = probe_bodies(
                name,
                driver,
                self.context.settings.fence.probe_image,
                node=target.node if target is not None else "",
                capacities=target.capacities if target is not None else (),
            )
            for kind in reversed(_KINDS):
                await self._create(kind, bodies[kind.name], name)
            return await self._watch(name, target)
        finally:
            await self._delete_all(name)

    async def _watch(self, name: str, target: Target | None) -> Outcome:
        namespace = self.context.settings.fence.probe_namespace
        end = self.context.clock.monotonic() + self.context.settings.fence.probe_timeout
        refused = False
        while self.context.clock.monotonic() < end:
            pod = await self.context.cluster.get(POD, name, namespace)
            claim = await self.context.cluster.get(RESOURCE_CLAIM, name, namespace)
            if claim.status.allocation is not None or pod.spec.node_name:
                return Outcome.BROKEN
            if is_unschedulable(pod):
                if target is None:
                    return Outcome.UNTESTED
                if _NO_DEVICES in scheduler_message(pod):
                    return Outcome.HOLDS if is_still_free(self.context.inventory, target) else Outcome.UNTESTED
                if not refused:
                    refused, end = True, min(end, self.context.clock.monotonic() + _OTHER_REASONS)
                    log.info("probe on node %s: %s", target.node, scheduler_message(pod))
            await self.context.clock.sleep(_INTERVAL)
        return Outcome.UNTESTED if refused else Outcome.UNSEEN

    async def _create(self, kind: Kind[Any], body: dict[str, Any], name: str) -> None:
        """Raises AlreadyExists if an earlier one stays (due to a foreign finalizer), LeadershipLost."""
        namespace = self.context.settings.fence.probe_namespace if kind.namespaced else ""
        end = self.context.clock.monotonic() + _LEAVING_MOST
        while True:
            try:
                await self.context.writer.create(kind, body, namespace=namespace)
            except AlreadyExists:
                if self.context.clock.monotonic() >= end:
                    raise
                await self.context.clock.sleep(_INTERVAL)
                await self._delete(kind, name)
            else:
                return

    async def _delete_all(self, name: str) -> None:
        for kind in _KINDS:
            await self._delete(kind, name)

    async def _delete(self, kind: Kind[Any], name: str) -> None:
        try:
            await self.context.writer.delete(
                kind, name, namespace=self.context.settings.fence.probe_namespace if kind.namespaced else ""
            )
        except NotFound:
            return
        except ClusterError as error:
            log.info("probe: %s %s not deleted: %s", kind.name, name, error)


def _decoded(bodies: dict[str, dict[str, Any]]) -> Bodies:
    """Return the objects as an API server would show them."""
    return Bodies(
        msgspec.convert(bodies["Pod"], Pod),
        msgspec.convert(bodies["ResourceClaim"], ResourceClaim),
        msgspec.convert(bodies["DeviceClass"], DeviceClass),
    )


def probe_bodies(
    name: str, driver: str, image: str, *, node: str = "", capacities: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the objects of a probe by kind.

    The pod tolerates every node and requests nothing else, so that only the devices can refuse it.
    `node`: the only node allowed. `capacities`: it requests 0 of these, which is rounded up to the
    minimum.
    """
    exactly: dict[str, Any] = {"deviceClassName": name}
    if requests := dict.fromkeys(capacities, "0"):
        exactly["capacity"] = {"requests": requests}
    affinity: dict[str, Any] = {}
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        affinity = {"affinity": {"nodeAffinity": required}}
    metadata = {"name": name, "labels": {names.PROBE_LABEL: "true", names.MANAGED_BY_LABEL: names.MANAGED_BY}}
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65535,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "DeviceClass": {"metadata": metadata, "spec": {"selectors": [selector]}},
        "ResourceClaim": {
            "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}},
        },
        "Pod": {
            "metadata": metadata,
            "spec": {
                "containers": [
                    {
                        "name": "probe",
                        "image": image,
                        "resources": {"claims": [{"name": "device"}]},
                        "securityContext": restricted,
                    }
                ],
                "resourceClaims": [{"name": "device", "resourceClaimName": name}],
                "tolerations": [{"operator": "Exists"}],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                **affinity,
            },
        },
    }
