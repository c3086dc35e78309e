"""Shows that kube-scheduler respects the fence: a claim for any device of the driver, and a pod that waits for it.

Called by the fence, one driver after the other, after a fence was made or mended. The probe holds when kube-scheduler looked at the pod
and called it unschedulable; it fails when the claim was allocated. Where all devices are taken, it also "holds", rightly:
nothing could be allocated natively at that time. Objects live in the controller's namespace (the class is cluster-wide),
carry the label hami.io/probe, and are deleted after each try.
"""

import logging
from enum import Enum
from typing import Any

from controller.reconcile.context import Context
from controller.reconcile.pods import is_unschedulable
from hami_dra.api import names
from hami_dra.api.kinds import DEVICE_CLASS, POD, RESOURCE_CLAIM, Kind
from hami_dra.cluster.protocol import AlreadyExists, ClusterError, NotFound

log = logging.getLogger(__name__)

PROBE = "hami-dra-probe"
"""Name of the pod, the claim and the class."""
_INTERVAL = 0.25
_KINDS: tuple[Kind[Any], ...] = (POD, RESOURCE_CLAIM, DEVICE_CLASS)


class Outcome(Enum):
    HOLDS = "holds"
    BROKEN = "broken"
    UNSEEN = "unseen"
    """kube-scheduler did not look at the pod in time."""


class Prober:
    def __init__(self, context: Context) -> None:
        self._cluster = context.cluster
        self._writer = context.writer
        self._settings = context.settings
        self._clock = context.clock

    async def probe(self, driver: str) -> Outcome:
        """Raises ClusterError, LeadershipLost."""
        name = PROBE
        await self._delete(name)
        try:
            bodies = probe_bodies(name, driver, self._settings.probe_image)
            for kind in reversed(_KINDS):
                await self._create(kind, bodies[kind.name], name)
            return await self._watch(name)
        finally:
            await self._delete(name)

    async def _watch(self, name: str) -> Outcome:
        namespace = self._settings.namespace
        end = self._clock.monotonic() + self._settings.probe_timeout
        while self._clock.monotonic() < end:
            pod = await self._cluster.get(POD, name, namespace)
            claim = await self._cluster.get(RESOURCE_CLAIM, name, namespace)
            if claim.status.allocation is not None or pod.spec.node_name:
                return Outcome.BROKEN
            if is_unschedulable(pod):
                return Outcome.HOLDS
            await self._clock.sleep(_INTERVAL)
        return Outcome.UNSEEN

    async def _create(self, kind: Kind[Any], body: dict[str, Any], name: str) -> None:
        namespace = self._settings.namespace if kind.namespaced else ""
        while True:
            try:
                await self._writer.create(kind, body, namespace=namespace)
            except AlreadyExists:
                # an earlier one is still on its way out (its finalizer)
                await self._clock.sleep(_INTERVAL)
                await self._delete(name)
            else:
                return

    async def _delete(self, name: str) -> None:
        for kind in _KINDS:
            try:
                await self._writer.delete(kind, name, namespace=self._settings.namespace if kind.namespaced else "")
            except NotFound:
                continue
            except ClusterError as error:
                log.info("probe: %s %s not deleted: %s", kind.name, name, error)


def probe_bodies(name: str, driver: str, image: str) -> dict[str, dict[str, Any]]:
    """By kind. The pod tolerates every node and asks for nothing else, so that only the devices can refuse it."""
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
            "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}},
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
            },
        },
    }
