"""PersistentVolumeClaims that controllers would create for the pods of a simulation. Pure.

In: pods and StatefulSets as JSON. Out: claims as JSON: those of generic ephemeral volumes, and
those of a StatefulSet's `volumeClaimTemplates`, with the names and owners that Kubernetes gives
them. And the default StorageClass, which the API server fills in.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.storage import PersistentVolumeClaim, StorageClass

Raw = dict[str, Any]


def of_ephemeral_volumes(pod: Pod, raw: Mapping[str, Any]) -> Iterator[Raw]:
    """Return the claims that the ephemeral-volume controller creates for a pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True}
    for volume in _listed(raw.get("spec"), "volumes"):
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if isinstance(template, dict):
            name = f"{pod.metadata.name}-{volume.get('name', '')}"
            yield _claim(template, name=name, namespace=pod.metadata.namespace, ownerReferences=[owner])


def with_default_class(claim: PersistentVolumeClaim, classes: Iterable[StorageClass]) -> PersistentVolumeClaim:
    """Return the claim with the StorageClass that the API server gives to claims that name none.

    Source: plugin/pkg/admission/storage/storageclass/setdefault. Of several default classes the
    youngest counts, of those of one age the first by name. A claim that says "" wants none.
    """
    spec = claim.spec
    if spec.storage_class_name is not None or names.BETA_STORAGE_CLASS in claim.metadata.annotations:
        return claim
    by_name = sorted((each for each in classes if each.is_default), key=lambda each: each.metadata.name)
    if not by_name:
        return claim
    youngest = max(by_name, key=lambda each: each.metadata.creation_timestamp or "")
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(spec, storage_class_name=youngest.metadata.name))


def of_stateful_set(workload: Mapping[str, Any], pod_name: str, namespace: str) -> list[Raw]:
    """Return the claims that the StatefulSet controller creates for one of its pods."""
    return [
        _claim(template, name=f"{_name(template)}-{pod_name}", namespace=namespace)
        for template in _listed(workload.get("spec"), "volumeClaimTemplates")
    ]


def with_claims(spec: Mapping[str, Any], workload: Mapping[str, Any], pod_name: str) -> Raw:
    """Return the spec of a StatefulSet's pod with its claims as volumes; they replace volumes of their names."""
    claims = {
        _name(each): f"{_name(each)}-{pod_name}" for each in _listed(workload.get("spec"), "volumeClaimTemplates")
    }
    if not claims:
        return {**spec}
    others = [each for each in _listed(spec, "volumes") if each.get("name") not in claims]
    own = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()]
    return {**spec, "volumes": [*others, *own]}


def _claim(template: Raw, **metadata: Any) -> Raw:
    return {"metadata": {**(template.get("metadata") or {}), **metadata}, "spec": template.get("spec") or {}}


def _listed(holder: Any, field: str) -> Sequence[Raw]:
    found = holder.get(field) if isinstance(holder, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else ()


def _name(template: Mapping[str, Any]) -> str:
    return str((template.get("metadata") or {}).get("name", ""))
