"""Members of a gang by likeness, and those that must be placed on one node because they share a
claim. Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controller.scheduling.decide.companions import pod_shape
from controller.scheduling.decide.scheduling_request import SchedulingRequest
from controller.scheduling.incremental.digests import digest_of
from controller.scheduling.inventory.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Member:
    index: int
    """Position in `GangRequest.members`."""
    request: SchedulingRequest
    kind: int
    """Equal for members that could swap their places: same shape of pod, claims of equal specs,
    same policies. Never equal for members that share a claim with others.
    """


@dataclass(frozen=True, slots=True)
class Bundle:
    """Members that share claims, directly or through others; most bundles are one member.

    `a` and `b` share the claim x, `b` and `c` share y: the bundle is (a, b, c).
    """

    members: tuple[Member, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        return tuple([each.kind for each in self.members])


def members_of(inventory: Inventory, requests: Sequence[SchedulingRequest]) -> list[Member]:
    """Return the members with their kinds, numbered in order of their first member."""
    shared = shared_claims(requests)
    kinds: dict[object, int] = {}
    found = []
    for index, request in enumerate(requests):
        alone = shared.isdisjoint(entry.claim.metadata.uid for entry in request.claims)
        key = _shape(inventory, request) if alone and not request.needs_full_path else index
        found.append(Member(index, request, kinds.setdefault(key, len(kinds))))
    return found


def shared_claims(requests: Sequence[SchedulingRequest]) -> frozenset[str]:
    """Return the uids of claims without an allocation that several members refer to."""
    count = Counter(
        entry.claim.metadata.uid
        for request in requests
        for entry in request.claims
        if entry.claim.status.allocation is None
    )
    return frozenset(uid for uid, times in count.items() if times > 1)


def bundles_of(members: Sequence[Member]) -> list[Bundle]:
    """Return the bundles, in order of their first member."""
    shared = shared_claims([each.request for each in members])
    bundle_of_claim: dict[str, list[Member]] = {}
    bundles: list[list[Member]] = []
    for member in members:
        bundle = [member]
        bundles.append(bundle)
        for entry in member.request.claims:
            uid = entry.claim.metadata.uid
            if uid not in shared:
                continue
            earlier = bundle_of_claim.setdefault(uid, bundle)
            if earlier is not bundle:
                # The member joins the earlier bundle, with all that it has brought together so far.
                earlier += bundle
                bundles = [each for each in bundles if each is not bundle]
                bundle_of_claim = {
                    claim: earlier if each is bundle else each for claim, each in bundle_of_claim.items()
                }
                bundle = earlier
    return [Bundle(tuple(sorted(each, key=lambda member: member.index))) for each in bundles]


def _shape(inventory: Inventory, request: SchedulingRequest) -> bytes:
    policies = request.policies
    keys = [entry.claim.key for entry in request.claims]
    return digest_of(
        (
            pod_shape(request.pod, by_labels=inventory.refuses_by_labels(request.pod)).hex(),
            [entry.claim.spec for entry in request.claims],
            repr([(policies.for_claim(key), policies.request_preferences.get(key)) for key in keys]),
            repr((policies.node_policy, policies.packing, request.plugin_resources)),
        )
    )
