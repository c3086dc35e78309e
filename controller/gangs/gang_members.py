"""Members of a gang by likeness, and those that must be placed on one node because they share a claim. Pure."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from controller.cluster.incremental.digests import digest_of
from controller.decide.companions import pod_shape
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.rules import is_hard
from hami_dra.api.core import Pod


class Member(Struct, frozen=True):
    index: int
    """Position in `Unit.members`."""
    request: SchedulingRequest
    kind: int
    """Equal for members that could swap their places: same shape of pod, claims of equal specs,
    same policies. Never equal for members that share a claim with others.
    """


class Bundle(Struct, frozen=True):
    """Members that share claims, directly or through others; most bundles are one member.

    `a` and `b` share the claim x, `b` and `c` share y: the bundle is (a, b, c).
    """

    members: tuple[Member, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        return tuple([each.kind for each in self.members])


def has_terms(pod: Pod) -> bool:
    """Return whether the pod may fit only once others are there."""
    affinity = pod.spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    required = near is not None and bool(near.required_during_scheduling_ignored_during_execution)
    return required or any(map(is_hard, pod.spec.topology_spread_constraints))


def reads_labels(pod: Pod) -> bool:
    """Return whether the labels of other members decide where the pod fits, or where they do next to it."""
    affinity = pod.spec.affinity
    apart = affinity.pod_anti_affinity if affinity is not None else None
    return has_terms(pod) or (apart is not None and bool(apart.required_during_scheduling_ignored_during_execution))


def members_of(inventory: Inventory, requests: Sequence[SchedulingRequest]) -> tuple[Member, ...]:
    """Return the members with their kinds, numbered in order of their first member."""
    shared = shared_claims(requests)
    kinds: dict[object, int] = {}
    by_labels = any(reads_labels(request.pod) for request in requests)
    found = []
    for index, request in enumerate(requests):
        alone = shared.isdisjoint(entry.claim.metadata.uid for entry in request.claims)
        key = _shape(inventory, request, by_labels=by_labels) if alone and not request.needs_full_path else index
        found.append(Member(index, request, kinds.setdefault(key, len(kinds))))
    return tuple(found)


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
    first: dict[str, int] = {}
    root = list(range(len(members)))

    def root_of(at: int) -> int:
        while root[at] != at:
            root[at] = at = root[root[at]]
        return at

    for at, member in enumerate(members):
        for entry in member.request.claims:
            if (uid := entry.claim.metadata.uid) in shared:
                earlier, later = sorted((root_of(at), root_of(first.setdefault(uid, at))))
                root[later] = earlier
    bundles: dict[int, list[Member]] = {}
    for at, member in enumerate(members):
        bundles.setdefault(root_of(at), []).append(member)
    return [Bundle(tuple(each)) for each in bundles.values()]


def _shape(inventory: Inventory, request: SchedulingRequest, *, by_labels: bool) -> bytes:
    policies = request.policies
    keys = [entry.claim.key for entry in request.claims]
    return digest_of(
        (
            pod_shape(request.pod, by_labels=by_labels or inventory.rules.refuses_by_labels(request.pod)).hex(),
            [entry.claim.spec for entry in request.claims],
            repr([(policies.for_claim(key), policies.request_preferences.get(key)) for key in keys]),
            repr((policies.node_policy, policies.packing, request.plugin_resources)),
        )
    )
