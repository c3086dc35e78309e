"""The PersistentVolumeClaims of a pod, sorted; or why no node can have the pod whatever it offers.

As kube-scheduler's PreFilter plugins: a claim that is missing, deleted, lost, or unbound although
its class binds at once holds the pod. Pure.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from controller.cluster.volumes.storage_objects import StorageObjects, is_for_pod
from controller.cluster.volumes.volume_binding import ClaimsToPlace
from controller.reasons import catalogue
from controller.reasons.catalogue import PLUGINS
from controller.rules.plugin import PodRefusal
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import VolumeClaimRef, volume_claim_refs
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
_LOST: Final = "Lost"


class PodClaims(Struct, frozen=True):
    to_place: ClaimsToPlace
    in_zones: tuple[PersistentVolume, ...]
    """The bound volumes that VolumeZone reads: not those of ephemeral volumes."""


def pod_volumes(pod: Pod) -> Hashable:
    """Return what decides which volumes a pod has: equal for pods that share them all.

    Ephemeral volumes belong to one pod, by name and uid.
    """
    volumes = pod.spec.volumes
    if not volumes:
        return ()
    is_own = any(volume.ephemeral is not None for volume in volumes)
    return pod.metadata.namespace, volumes, (pod.metadata.name, pod.metadata.uid) if is_own else ()


def claims_of(pod: Pod, objects: StorageObjects) -> PodClaims | PodRefusal:
    """Return the pod's claims, or what holds the pod. `objects` has all claims, volumes, classes."""
    refs = volume_claim_refs(pod)
    held = _missing(refs, objects) or next(filter(None, (_unusable(ref, pod, objects) for ref in refs)), None)
    if held is not None:
        return held
    bound = [(ref, claim) for ref in refs if (claim := objects.claims[ref.key]).is_fully_bound]
    open_refs = [ref for ref in refs if not objects.claims[ref.key].is_fully_bound]
    held = next(filter(None, (_unbound(ref, objects) for ref in open_refs)), None) or _volume_missing(bound, objects)
    if held is not None:
        return held
    volumes = [(ref, objects.volumes[claim.spec.volume_name]) for ref, claim in bound]
    return PodClaims(
        ClaimsToPlace(tuple(volume for _, volume in volumes), tuple(objects.claims[ref.key] for ref in open_refs)),
        tuple(volume for ref, volume in volumes if not ref.is_ephemeral),
    )


def exclusive_claims(pod: Pod, objects: StorageObjects) -> Iterator[str]:
    """Return the keys of the claims that no other pod may use at the same time."""
    for ref in volume_claim_refs(pod):
        if not ref.is_ephemeral and is_exclusive(objects.claims.get(ref.key)):
            yield ref.key


def is_exclusive(claim: PersistentVolumeClaim | None) -> bool:
    """Return whether only one pod at a time may use the claim."""
    return claim is not None and READ_WRITE_ONCE_POD in claim.spec.access_modes


def in_use(key: str, other: str) -> PodRefusal:
    """Return the refusal of a pod whose ReadWriteOncePod claim another pod uses."""
    why = (
        f"PersistentVolumeClaim {key} is ReadWriteOncePod, and Pod {other} uses it; the pod runs when that one is gone"
    )
    return _refusal(catalogue.NODE_VOLUME_RESTRICTIONS, why)


def _missing(refs: Iterable[VolumeClaimRef], objects: StorageObjects) -> PodRefusal | None:
    """Return the first claim that does not exist, except those that are generated for the pod."""
    for ref in refs:
        if not ref.is_ephemeral and ref.key not in objects.claims:
            return _refusal(
                catalogue.NODE_VOLUME_RESTRICTIONS, f"PersistentVolumeClaim {ref.key} does not exist; create it"
            )
    return None


def _unusable(ref: VolumeClaimRef, pod: Pod, objects: StorageObjects) -> PodRefusal | None:
    """Return what is wrong with a claim, whether bound or not."""
    claim = objects.claims.get(ref.key)
    what = f"PersistentVolumeClaim {ref.key}"
    if claim is None:
        why = (
            f"{what} of the ephemeral volume {ref.volume} is not created yet; if it stays missing, look at the events of the "
            "pod and at kube-controller-manager"
        )
    elif claim.status.phase == _LOST:
        why = f"{what} has lost its PersistentVolume {claim.spec.volume_name}; restore the volume, or create the claim again"
    elif claim.metadata.deletion_timestamp is not None:
        why = f"{what} is being deleted; create it again when it is gone"
    elif ref.is_ephemeral and not is_for_pod(claim, pod):
        why = f"{what} was not made for this pod, whose ephemeral volume {ref.volume} needs that name; delete it"
    else:
        return None
    return _refusal(catalogue.NODE_VOLUME_BINDING, why)


def _unbound(ref: VolumeClaimRef, objects: StorageObjects) -> PodRefusal | None:
    """Return why an unbound claim cannot wait for the pod; None: it does."""
    claim = objects.claims[ref.key]
    what = f"PersistentVolumeClaim {ref.key}"
    storage_class = objects.class_of(claim) if claim.storage_class else None
    look = f"look at its events: kubectl -n {ref.key.partition('/')[0]} describe pvc {claim.metadata.name}"
    if claim.spec.volume_name:
        why = f"{what} is not yet bound to PersistentVolume {claim.spec.volume_name}, which it names; {look}"
    elif claim.spec.unreadable:
        why = f"{what} is {claim.spec.unreadable}"
    elif not claim.storage_class:
        why = f"{what} has no StorageClass and is not bound; create a PersistentVolume for it, or name a StorageClass"
    elif storage_class is None:
        why = f"{what} is not bound, and its StorageClass {claim.storage_class} does not exist; create the class"
    elif not storage_class.waits_for_consumer:
        why = f"{what} is not bound yet, and its StorageClass {claim.storage_class} binds immediately; {look}"
    else:
        return None
    return _refusal(catalogue.NODE_VOLUME_BINDING, why)


def _volume_missing(
    bound: Iterable[tuple[VolumeClaimRef, PersistentVolumeClaim]], objects: StorageObjects
) -> PodRefusal | None:
    """Return the first claim that is bound to a volume that is gone. VolumeZone reads those of
    ordinary claims first, VolumeBinding the others.
    """
    gone = [(ref, claim.spec.volume_name) for ref, claim in bound if claim.spec.volume_name not in objects.volumes]
    for ref, name in sorted(gone, key=lambda each: each[0].is_ephemeral):
        why = f"PersistentVolumeClaim {ref.key} is bound to PersistentVolume {name}, which does not exist; restore the volume"
        return _refusal(catalogue.NODE_VOLUME_BINDING if ref.is_ephemeral else catalogue.NODE_VOLUME_ZONE, why)
    return None


def _refusal(code: str, why: str) -> PodRefusal:
    """`why`: names the object and says what to do. The pod fits no node until that changes."""
    return PodRefusal(code, f"{PLUGINS[code]}: {why}")
