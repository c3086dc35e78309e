"""Views: requests that containers see together, each with the CDI device that kubelet hands over.

Called by `transaction` for the claims of one call. In: the claims to prepare and the pods that they
are reserved for. Out: a `ViewArrangement`, or `Refused`. Pure.

The content of a container (visible devices, limits by position) depends on all of its cards at
once, while kubelet knows no containers: it passes the same CDI devices for a request to every
container that refers to it. So there is one CDI device for each *view* (the set of requests that
some container refers to, over all claims), it describes all of the view, and requests name views.

kubelet's order (v1.37 pkg/kubelet/cm/dra, GetResources): the claims of a container come in random
order; inside a claim the requests in the order in which the container lists them (all devices in
the order of our answer if it names none). containerd drops repeated ids and keeps the first; a
later device's environment and mounts replace an earlier one's. Hence:

- A request names the smallest view that has it, if every view that has it contains that view; else
  it names none. A container is then never given a view that is not part of its own.
- In every claim of a container the last view named must be its own. Otherwise kubelet cannot
  distinguish the containers, and the pod is refused with advice what to change.
- Pods that join a claim later are given the views that its requests name, and the driver is not
  called again. So views do not span a claim that other pods may join and another claim: a pod that
  joins the one would get the cards of the other too, and would still have them when they are
  allocated to a different claim.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.driver.prepare.errors import Refused
from hami_dra.driver.prepare.pods import Container, Pod, common_env, containers, most_at_once, references
from hami_dra.driver.prepare.records import ContainerView, Record

Asked = tuple[str, str]
"""(claim uid, parent request)."""

_NAME_LENGTH: Final = 16


class ViewArrangement(Struct, frozen=True):
    view_of: Mapping[Asked, ContainerView | None]
    """The view that a request names; None: no view, another request of its containers names it."""
    nested: frozenset[tuple[str, str]]
    """Names of (smaller, larger) views that one container is given, in this order: the larger must
    override the smaller.
    """


class _Seen(Struct):
    """One container and its references to the claims of the call."""

    pod: Pod
    container: Container
    by_claim: dict[str, list[str]]
    """Claim uid → requests in kubelet's order; an empty one means all."""

    @property
    def label(self) -> str:
        return f"Pod {self.pod.key}: container {self.container.name}"


def arrange(
    driver: str, claims: Sequence[Record], pods: Iterable[Pod], settled: Mapping[str, str], reads: Collection[str] = ()
) -> ViewArrangement:
    """Arrange the views of claims.

    `settled`: claims that are prepared already, `namespace/name` → for whom, in words. `reads`:
    variables that affect edits if containers set them themselves (`ContainerVendor.reads`). Raises
    Refused.
    """
    by_key = {claim.key: claim for claim in claims}
    requests = {claim.uid: claim.requests for claim in claims}
    seen = [
        found
        for pod in pods
        for container in containers(pod)
        if (found := _seen(pod, container, by_key, settled)).by_claim
    ]
    for each in seen:
        _check_joinable(each, claims)
    asked_by = [(each, _asked(each, requests)) for each in seen]
    node_class: dict[frozenset[Asked], list[_Seen]] = {}
    for each, asked in asked_by:
        if asked:
            node_class.setdefault(asked, []).append(each)
    views = {asked: _view(driver, asked, requests, group, reads) for asked, group in node_class.items()}
    view_of = {
        (claim.uid, request): _named(driver, (claim.uid, request), claim, views, seen)
        for claim in claims
        for request in claim.requests
    }
    nested: set[tuple[str, str]] = set()
    for each, asked in asked_by:
        if asked:
            nested |= _check_order(each, views[asked], view_of, requests, by_key)
    return ViewArrangement(view_of, frozenset(nested))


def answer_order(requests: Sequence[str], uid: str, view_of: Mapping[Asked, ContainerView | None]) -> list[str]:
    """Return the claim's requests in the order of the answer: those that name a larger view come later."""
    sizes = {request: len(view.asked) if (view := view_of[uid, request]) else 0 for request in requests}
    return sorted(requests, key=sizes.__getitem__)


# --- views ----------------------------------------------------------------------------------------


def _seen(pod: Pod, container: Container, by_key: Mapping[str, Record], settled: Mapping[str, str]) -> _Seen:
    found: dict[str, list[str]] = {}
    already = []
    for name, request in references(pod, container):
        key = f"{pod.metadata.namespace}/{name}"
        if key in by_key:
            found.setdefault(by_key[key].uid, []).append(request)
        elif key in settled:
            already.append(key)
    if found and already:
        fresh = ", ".join(sorted(claim.key for claim in by_key.values() if claim.uid in found))
        raise Refused(
            f"Pod {pod.key}: container {container.name} uses ResourceClaim {already[0]}, which is prepared for {settled[already[0]]} "
            f"already, together with {fresh}: what a container sees is fixed when its first claim is prepared; put the "
            "requests of this container into one claim"
        )
    return _Seen(pod, container, found)


def _asked(seen: _Seen, requests: Mapping[str, Sequence[str]]) -> frozenset[Asked]:
    return frozenset((uid, request) for uid in seen.by_claim for request in _listed(seen.by_claim[uid], requests[uid]))


def _listed(names: Sequence[str], requests: Sequence[str]) -> list[str]:
    """Return requests in kubelet's order, with an entry that names no request spelt out."""
    return [request for name in names for request in (requests if not name else (name,) if name in requests else ())]


def _check_joinable(seen: _Seen, claims: Iterable[Record]) -> None:
    """Raise Refused if a container uses a claim that other pods may join together with another claim."""
    used = [claim for claim in claims if claim.uid in seen.by_claim]
    if len(used) > 1 and (joinable := next((claim for claim in used if claim.joinable), None)):
        others = ", ".join(claim.key for claim in used if claim is not joinable)
        raise Refused(
            f"{seen.label} uses ResourceClaim {joinable.key} together with {others}, and another pod that uses {joinable.key} later would "
            "be given the devices of both, since kubelet does not ask again: put the requests of this container into one claim, "
            "or use ResourceClaimTemplates, whose claims are for one pod"
        )


def _view(
    driver: str,
    asked: frozenset[Asked],
    requests: Mapping[str, Sequence[str]],
    seen: Sequence[_Seen],
    reads: Collection[str] = (),
) -> ContainerView:
    ordered = tuple(sorted(asked, key=lambda each: (each[0], requests[each[0]].index(each[1]))))
    text = "\n".join([driver, *(f"{uid}/{request}" for uid, request in ordered)])
    return ContainerView(
        name=hashlib.sha256(text.encode()).hexdigest()[:_NAME_LENGTH],
        asked=ordered,
        pods=tuple(sorted({each.pod.metadata.uid for each in seen})),
        containers=tuple(dict.fromkeys(each.container.name for each in seen)),
        users=tuple((each.pod.metadata.name, each.container.name) for each in seen),
        env=tuple(item for item in common_env(each.container for each in seen).items() if item[0] in reads),
        at_once=sum(
            most_at_once(pod, {each.container.name for each in seen if each.pod is pod})
            for pod in {each.pod.metadata.uid: each.pod for each in seen}.values()
        ),
        runtime_classes=tuple(sorted({each.pod.spec.runtime_class_name or "" for each in seen})),
    )


def _named(
    driver: str, asked: Asked, claim: Record, views: Mapping[frozenset[Asked], ContainerView], seen: Sequence[_Seen]
) -> ContainerView | None:
    having = [view for view in views if asked in view]
    if having:
        return views.get(frozenset.intersection(*having))
    # no container of an existing pod: later pods (a claim may be shared) request it alone, or, if
    # nothing is known about the users of the claim, all of the claim
    known = any(claim.uid in each.by_claim for each in seen)
    alone = frozenset([asked]) if known else frozenset((claim.uid, request) for request in claim.requests)
    return _view(driver, alone, {claim.uid: claim.requests}, ())


# --- kubelet's order ------------------------------------------------------------------------------


def _check_order(
    seen: _Seen,
    own: ContainerView,
    view_of: Mapping[Asked, ContainerView | None],
    requests: Mapping[str, Sequence[str]],
    by_key: Mapping[str, Record],
) -> set[tuple[str, str]]:
    """Return the container's (smaller, larger) views. Raises Refused if the last one of a claim is not its own."""
    nested = set()
    reached = False
    for uid, names in seen.by_claim.items():
        order = answer_order(requests[uid], uid, view_of)
        named = [view_of[uid, request] for request in _listed(names, order)]
        given = list(dict.fromkeys(view.name for view in named if view is not None))
        if not given:
            continue
        if given[-1] != own.name:
            claim = next(claim for claim in by_key.values() if claim.uid == uid)
            raise Refused(_advice(seen, claim, own))
        reached = True
        nested |= {(name, own.name) for name in given[:-1]}
    if not reached:
        claim = next(claim for claim in by_key.values() if claim.uid in seen.by_claim)
        raise Refused(_advice(seen, claim, own))
    return nested


def _advice(seen: _Seen, claim: Record, own: ContainerView) -> str:
    several = len(seen.by_claim) > 1
    fix = (
        "put the requests of these containers into one claim, and name in resources.claims the requests that each container uses"
        if several
        else "list in resources.claims first the requests that other containers use too, then those that only this one uses, or "
        "give the containers requests of their own"
    )
    shown = ", ".join(request for _, request in own.asked)
    return (
        f"Pod {seen.pod.key}: spec.containers[{seen.container.name}].resources.claims uses requests ({shown}) of ResourceClaim "
        f"{claim.key} that other containers use in other combinations, and kubelet cannot tell these containers apart: {fix}"
    )
