"""The devices of a pod on its node, by its claims: for the dashboard, the demonstration and `whatif`. Pure."""

from collections.abc import Callable

from controller.views.overview.model import PlacedPod
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.resource import ResourceClaim


def placed_pod(pod: Pod, claim_of: Callable[[str], ResourceClaim | None]) -> PlacedPod:
    """`claim_of`: the claim with a key, or None where there is none."""
    claims = (claim for key in claim_keys(pod) if (claim := claim_of(key)) is not None)
    devices = tuple(result.device_id for claim in claims for result in claim.results)
    return PlacedPod(pod=pod.key, node=pod.spec.node_name, devices=devices)
