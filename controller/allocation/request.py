"""What a pod's claims ask for, resolved once per decision: classes, selectors, counts, capacities, parameters.

Called by `decide` (`prepare`); read by the rest of this package and, as `RequestView`, by choosers. In: the claims that
are still to be allocated, in pod order, and the DeviceClasses. Out: a `Problem`, good for every node.
Must not look at devices or nodes.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller.allocation.features import FeatureGates
from controller.inventory.model import Device
from hami_dra.api import resource as api


class RequestView:
    """One request, or one alternative of a `firstAvailable` request. Devices are chosen for it. Immutable."""

    claim: api.ResourceClaim
    claim_key: str
    """`namespace/name`."""
    claim_index: int
    """Position among the claims of the problem."""
    request_index: int
    """Position among the requests of its claim."""
    alternative: int
    """Rank in `firstAvailable`, 0 is the most wanted; 0 for a plain request."""
    name: str
    """As allocation results spell it: `request`, or `request/subrequest`."""
    device_class: api.DeviceClass
    count: int
    """How many devices; 0 for all devices (`all_devices`)."""
    all_devices: bool
    admin_access: bool
    match_attributes: tuple[str, ...]
    """Names of the matchAttribute constraints that cover this request."""
    distinct_attributes: tuple[str, ...]

    def demand(self, device: Device) -> Mapping[str, int] | None:
        """Capacity name → what this request takes of the device, rounded as its policy says, in whole units.

        Every capacity of the device is listed. A device that cannot be shared is taken whole: its totals. None where the
        request can never be met by this device (a capacity it does not have, above the policy's maximum or the total).
        Usage plays no part. Raises AllocatorError where upstream gives up (negative or unrepresentable amounts).
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """The requests of one claim, in order; each is a non-empty tuple of alternatives (one for a plain request)."""

    claim: api.ResourceClaim
    requests: tuple[tuple[RequestView, ...], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """All claims of a pod that are to be allocated together, in pod order."""

    claims: tuple[ClaimRequests, ...]
    features: FeatureGates
    ignored_taints: frozenset[str]


def prepare(
    claims: Sequence[api.ResourceClaim],
    classes: Mapping[str, api.DeviceClass],
    *,
    features: FeatureGates = FeatureGates(),
    admin_namespaces: AbstractSet[str] | None = None,
    ignored_taints: AbstractSet[str] = frozenset(),
) -> Problem:
    """Resolve claims that have no allocation yet (allocated ones are skipped). `classes` is by name.

    `admin_namespaces`: those with the label `resource.kubernetes.io/admin-access: "true"`; None = not checked, which is
    what the upstream allocator does. `ignored_taints`: keys of taints that do not count (our own fence).
    Raises AllocatorError: missing class, unsupported request, gate off, bad parameters, more than 32 devices. A selector
    that does not compile is an error only when it is evaluated on a device, as upstream.
    """
    raise NotImplementedError
