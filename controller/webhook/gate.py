"""The rule by which a pod gets the scheduling gate `hami.io/allocation`.

The gate keeps kube-scheduler from trying for nothing. Called by `controller.webhook.convert`.
`manifests/gate-policy.yaml` states the same rule in CEL for pods that are not converted. It must
never gate a pod that hami-dra will not place. Claims cannot be inspected at admission, so only pods
that ask for hami-dra explicitly are gated.
"""

from collections.abc import Collection, Mapping
from typing import Any

from hami_dra.api import names
from hami_dra.api.served_pods import asks_for_hami_dra


def add_gate(pod: dict[str, Any], schedulers: Collection[str]) -> None:
    """Add the gate in place where the API server allows one and the pod's scheduler knows it."""
    spec = pod.get("spec") or {}
    gates = spec.get("schedulingGates") or []
    if (
        not spec.get("nodeName")
        and (spec.get("schedulerName") or "default-scheduler") in schedulers
        and spec.get("resourceClaims")
        and says_so(pod.get("metadata") or {})
        and not any(gate.get("name") == names.GATE for gate in gates)
    ):
        spec["schedulingGates"] = [*gates, {"name": names.GATE}]


def says_so(metadata: Mapping[str, Any]) -> bool:
    return asks_for_hami_dra(metadata.get("labels") or {}, metadata.get("annotations") or {})
