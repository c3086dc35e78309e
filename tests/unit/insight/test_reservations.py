"""What is kept for pods that do not run yet."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from controller.gangs import gang_of
from controller.views.overview import overview
from controller.views.overview.model import Reservation
from controller.views.overview.reservations import Held, decoded, encoded, reservations
from hami_dra.api import names
from tests.cards import card, slice_of
from tests.cards import pod as manifest
from tests.support.assumed import assume
from tests.unit.insight.test_overview import cluster, holding, share

GANG = {names.POD_GROUP_NAME: "train", names.POD_GROUP_MIN_AVAILABLE: "4"}
DEVICE = "nvidia.hami.io/n1/gpu-0"


def member(name, claim, *, node="", labels=GANG):
    made = manifest(name, resourceClaims=[{"name": "c", "resourceClaimName": claim}], nodeName=node)
    return replace(made, metadata=replace(made.metadata, uid=f"uid-{name}", labels=labels))


def with_uid(claim, at=None):
    status = claim.status
    if status.allocation is not None:
        status = replace(status, allocation=replace(status.allocation, allocation_timestamp=at))
    return replace(claim, metadata=replace(claim.metadata, uid=claim.metadata.name), status=status)


@pytest.fixture
def held():
    return with_uid(holding("a", share("gpu-0")), "2026-11-21T08:00:00Z")


def kept(inventory, pods, claims, **options):
    by_key = {each.key: each for each in claims}

    def pods_of(key):
        return [each for each in pods if f"default/{each.spec.resource_claims[0].resource_claim_name}" == key]

    return reservations(inventory, pods, by_key.get, pods_of, gang_of, **options)


def test_a_member_that_waits_holds_what_its_claim_was_allocated(held):
    inventory = cluster(slice_of("n1", [card(0)]), claims=[held])
    until = datetime(2026, 11, 21, 8, 2, tzinfo=UTC)
    (found,) = kept(inventory, [member("m0", "a")], [held], held_for=lambda _: Held("gang", None, until))
    assert (found.kind, found.holder, found.pod) == ("gang", "gang default/train", "default/m0")
    assert (found.node, found.devices) == ("n1", (DEVICE,))
    assert (found.since, found.until) == ("2026-11-21T08:00:00Z", "2026-11-21T08:02:00+00:00")


def test_an_allocation_that_is_being_written_counts_already(held):
    bare = replace(held, status=replace(held.status, allocation=None))
    inventory = cluster(slice_of("n1", [card(0)]), claims=[bare])
    pod = member("m0", "a")
    assert kept(inventory, [pod], [bare]) == ()
    assume(inventory, "a", held.status.allocation)
    inventory.assume_pod(pod, "n1")
    (found,) = kept(inventory, [pod], [bare])
    assert (found.node, found.devices, found.since, found.until) == ("n1", (DEVICE,), "", "")


def test_what_runs_or_is_in_no_gang_is_no_reservation(held):
    inventory = cluster(slice_of("n1", [card(0)]), claims=[held])
    assert kept(inventory, [member("m0", "a", node="n1")], [held]) == ()
    assert kept(inventory, [member("alone", "a", labels={})], [held]) == ()
    # a claim that a running member shares
    assert kept(inventory, [member("m0", "a", node="n1"), member("m1", "a")], [held]) == ()


@pytest.mark.parametrize("kind", ["preemption", "moves", "reserved"])
def test_a_place_that_is_held_for_a_pod_is_shown_by_the_leader_only(held, kind):
    bare = replace(held, status=replace(held.status, allocation=None))
    inventory = cluster(slice_of("n1", [card(0)]), claims=[bare])
    pod = member("m0", "a", labels={})
    assume(inventory, "a", held.status.allocation)
    inventory.assume_pod(pod, "n1")
    assert kept(inventory, [pod], [bare]) == ()
    times = [datetime(2026, 11, 21, 8, minute, tzinfo=UTC) for minute in (1, 2)]
    places = {"uid-m0": Held(kind, *times)}
    (found,) = kept(inventory, [pod], [bare], held_for=places.get)
    assert (found.kind, found.holder, found.pod, found.name) == (kind, "pod default/m0", "default/m0", "m0")
    assert (found.node, found.devices) == ("n1", (DEVICE,))
    assert (found.since, found.until) == ("2026-11-21T08:01:00+00:00", "2026-11-21T08:02:00+00:00")


def test_what_is_reserved_on_top_of_those_who_are_there_is_no_use_beyond_the_device(held):
    inventory = cluster(slice_of("n1", [card(0)]), claims=[held])
    for name in ("second", "third", "fourth", "fifth"):
        assume(inventory, name, held.status.allocation)
    (shown,) = overview(inventory, [held], []).cards
    assert (shown.memory_used, shown.cores_used) == (shown.memory_total, shown.cores_total)


def place(name, *devices, node="n1", kind="reserved"):
    return Reservation(
        kind=kind, namespace="default", name=name, holder=f"pod default/{name}", pod=f"default/{name}", node=node,
        devices=devices, since="2026-11-21T08:00:00+00:00", until="2026-11-21T09:00:00+00:00",
    )  # fmt: skip


def test_the_annotation_of_the_lease_says_what_the_leader_holds():
    places = (place("one", DEVICE), place("two", "nvidia.hami.io/n1/gpu-1", kind="preemption"))
    assert decoded(encoded(places)) == places
    assert encoded(()) == ""


def test_the_annotation_is_bounded_and_what_does_not_fit_is_left_out():
    many = [place(f"pod-{number}", *[f"{DEVICE}{device}" for device in range(64)]) for number in range(1000)]
    text = encoded([place("huge", "x" * 70_000), *many])
    assert len(text) <= 64 * 1024
    assert decoded(text) == tuple(many[: len(decoded(text))])
    assert len(decoded(text)) > 20


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "{}", "null", "[1]", '[{"kind": "gang"}]', "[" * 60_000, "\ud800", '"' + "x" * 70_000,
        encoded([place("one", DEVICE)]).replace("reserved", "stolen"),
        encoded([place("one", DEVICE)]).replace('["nvidia', '[7, "nvidia'),
        encoded([place("one", DEVICE)]) + " " * 70_000,
    ],
)  # fmt: skip
def test_an_annotation_that_the_leader_cannot_have_written_counts_as_empty(text):
    assert decoded(text) == ()


def test_a_card_that_is_reserved_is_not_free_and_one_in_use_counts_as_before(held):
    inventory = cluster(slice_of("n1", [card(0), card(1)]), claims=[held])
    (before,) = overview(inventory, [held], [], gang_of=gang_of).packing
    places = [place("one", DEVICE, "nvidia.hami.io/n1/gpu-1"), place("odd", "x", "a/b/c", "", "//", node="gone")]
    seen = overview(inventory, [held], [], gang_of=gang_of, held_places=places)
    assert [(each.free, each.memory_used > 0) for each in seen.cards] == [(False, True), (False, False)]
    assert seen.nodes[0].free_cards == 0
    (after,) = seen.packing
    assert (before.free_cards, before.partly_used_cards) == (1, 1)
    assert (after.free_cards, after.partly_used_cards, after.cards) == (0, 1, 2)
    assert [each.name for each in seen.reservations] == ["odd", "one"]
    assert [each.name for each in overview(inventory, [held], [], gang_of=gang_of, nodes=["n1"], held_places=places).reservations] == ["one"]  # fmt: skip


def test_what_the_leader_says_of_a_pod_counts_before_what_is_derived(held):
    inventory = cluster(slice_of("n1", [card(0)]), claims=[held])
    told = replace(place("train", DEVICE, kind="gang"), pod="default/m0")
    seen = overview(inventory, [held], [member("m0", "a")], gang_of=gang_of, held_places=[told])
    assert seen.reservations == (told,)
