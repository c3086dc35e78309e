"""When a pod gets the scheduling gate `hami.io/allocation`, which keeps kube-scheduler from trying in vain.

Called by `controller.bridge.convert`. The same rule is written in CEL in `manifests/gate-policy.yaml` for pods that no
webhook sees. It must never gate a pod that hami-dra will not place; claims cannot be looked into at admission, so only pods
that say so are gated.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from hami_dra.api import names

SCHEDULING_ANNOTATIONS: Final = (
    names.NODE_POLICY,
    names.DEVICE_POLICY,
    names.SCORING_WEIGHTS,
    names.PACKING_WEIGHTS,
    names.GPU_TOPOLOGY,
)
"""Any of these on a pod with claims says that hami-dra is to place it, as the label `hami.io/dra: "true"` does."""


def add_gate(pod: dict[str, Any], schedulers: Collection[str]) -> None:
    """In place. The API server refuses gates on pods with spec.nodeName, and other schedulers may not know ours."""
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
    annotations = metadata.get("annotations") or {}
    return (metadata.get("labels") or {}).get(names.DRA_LABEL) == "true" or any(
        name in annotations for name in SCHEDULING_ANNOTATIONS
    )
