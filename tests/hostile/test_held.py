"""A claim that is stripped of its finalizer and deleted under its running pod goes on counting, for devices and for the quota,
until that pod is over; also after a restart, from what the node driver tells.

Before, the inventory counted nothing for a claim that was gone: the card in use was given away again, and a quota of one card
was no limit (the finding: four pods bound, one card, quota 1).
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.insight.doctor.allocations import claims as examine_claims
from controller.inventory import vanished
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from controller.views.overview.read import overview
from hami_dra.api import heldclaims, names
from hami_dra.api.heldclaims import HeldClaim, HeldDevice, InvalidHeldClaims
from hami_dra.api.podclaims import claim_keys
from tests.cards import DRIVER, card, claim, node, pod, slice_of, whole
from tests.support.quotas import quota_object

SPACE, NODES = "default", ("n1", "n2")
GPU = "nvidia.com/gpu"
CARD = DeviceId(DRIVER, "n1", "gpu-0")


def allocation(pool="n1", device="gpu-0", gib=4):
    result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
    if device.startswith("gpu"):
        result |= {"shareID": "s", "consumedCapacity": {"memory": f"{gib}Gi", "cores": "10", "shares": "1"}}
    return {"devices": {"results": [result]}}


def held_by(name="c", *pods, uid=None, given=None, namespace=SPACE):
    """A claim that is allocated for these pods."""
    found = claim(name, allocation=given or allocation(), uid=uid, namespace=namespace)
    reserved = [{"resource": "pods", "name": each, "uid": f"pod-{each}"} for each in pods]
    status = {**msgspec.to_builtins(found.status), "reservedFor": reserved}
    return msgspec.structs.replace(found, status=msgspec.convert(status, type(found.status), strict=False))


def user_of(name="p", claim_name="c", on="n1", **more):
    spec = {"nodeName": on} if on else {}
    return pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim_name}], **spec, **more)


def telling(*claims, on="n1", devices=(), **more):
    """The slice of a node driver that tells of these claims."""
    found = slice_of(on, devices or [card(0), card(1), whole(2)], **more)
    annotations = {names.HELD_CLAIMS: heldclaims.encode(claims)} if claims else {}
    metadata = msgspec.structs.replace(found.metadata, annotations=annotations)
    return msgspec.structs.replace(found, metadata=metadata)


def cluster(*objects):
    inventory = Inventory()
    for name in NODES:
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, telling(on=name))
    inventory.quota_changed(None, quota_object({GPU: 1}))
    for each in objects:
        feed(inventory, None, each)
    return inventory


def feed(inventory, old, new):
    kind = type(new or old).__name__
    name = {"Pod": "pod", "ResourceClaim": "claim", "ResourceSlice": "slice"}[kind]
    getattr(inventory, f"{name}_changed")(old, new)


def charged(inventory, namespace=SPACE):
    return inventory.quotas.used(namespace).get(GPU, 0)


def shares(inventory, device=CARD):
    row = inventory.devices.row_of(device)
    assert int(inventory.devices.slots_used[row]) == inventory.usage.shares(device), "columns follow the ledger"
    return inventory.usage.shares(device)


def gone(of):
    return HeldClaim(
        uid=of.metadata.uid,
        namespace=of.metadata.namespace,
        name=of.metadata.name,
        pods=tuple(each.uid for each in of.status.reserved_for),
        devices=(HeldDevice(device="gpu-0", consumed={"memory": 4 << 30, "cores": 10, "shares": 1}),),
    )


# -- seen to vanish --------------------------------------------------------------------------------------------------------


def test_the_finding():
    """Quota 1: the claim is stripped and deleted under its pod; neither the card nor the quota is free."""
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    assert (shares(inventory), charged(inventory)) == (1, 1)
    (found,) = inventory.vanished.all()
    assert (found.key, [each.key for each in found.holders], found.devices) == ("default/c", ["default/p"], (CARD,))
    feed(inventory, running, None)
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (0, 0, 0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_it_ends_when_the_pod_has_finished(phase):
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    feed(inventory, running, user_of(phase="Running"))
    assert shares(inventory) == 1
    feed(inventory, running, user_of(phase=phase))
    assert (shares(inventory), charged(inventory)) == (0, 0)


def test_it_is_the_pod_and_not_its_name():
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    feed(inventory, running, user_of(uid="pod-p-again"))
    assert (shares(inventory), charged(inventory)) == (0, 0)


def test_a_claim_made_again_under_the_name_is_another_claim():
    """It is charged for what it has, beside what the first pod holds."""
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    again = held_by("c", "p2", uid="claim-c-again")
    feed(inventory, its_claim, again)
    feed(inventory, None, user_of("p2"))
    assert (shares(inventory), charged(inventory)) == (2, 2)
    feed(inventory, running, None)
    assert (shares(inventory), charged(inventory)) == (1, 1)


def test_several_pods_hold_a_claim_until_the_last_is_over():
    first, second, its_claim = user_of("p"), user_of("p2"), held_by("c", "p", "p2")
    inventory = cluster(first, second, its_claim)
    feed(inventory, its_claim, None)
    feed(inventory, first, None)
    assert shares(inventory) == 1
    feed(inventory, second, None)
    assert shares(inventory) == 0


def test_a_generated_claim_that_is_generated_anew_frees_nothing():
    """The claim controller makes another one for the running pod, and writes its name into the pod's status."""
    wanted = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    running = pod("p", resourceClaims=wanted, nodeName="n1")
    its_claim = held_by("p-gpu-abcde", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-fghij"}]}
    feed(inventory, running, msgspec.structs.replace(running, status=msgspec.convert(status, type(running.status))))
    feed(inventory, None, claim("p-gpu-fghij"))
    assert (shares(inventory), charged(inventory)) == (1, 1)


def test_a_pod_that_refers_to_the_claim_without_a_reservation_holds_it_too():
    running, its_claim = user_of(), held_by("c")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    assert shares(inventory) == 1


def test_who_holds_a_claim_is_known_without_asking_all_pods(monkeypatch):
    inventory = cluster(*(user_of(f"p{number}", f"c{number}", uid=f"pod-p{number}") for number in range(300)))
    its_claim = held_by("c7")
    feed(inventory, None, its_claim)
    asked = []
    monkeypatch.setattr(vanished, "claim_keys", lambda pod: asked.append(pod.key) or claim_keys(pod))
    feed(inventory, its_claim, None)
    assert [each.key for each in inventory.vanished.all()[0].holders] == ["default/p7"]
    assert asked == []
    # one that comes to use it later is found as well, and one that is over is not
    its_claim = held_by("c8")
    feed(inventory, None, its_claim)
    feed(inventory, None, user_of("late", "c8"))
    feed(inventory, user_of("p8", "c8", uid="pod-p8"), user_of("p8", "c8", uid="pod-p8", phase="Failed"))
    feed(inventory, its_claim, None)
    [_, found] = inventory.vanished.all()
    assert [each.key for each in found.holders] == ["default/late"]


def test_a_claim_of_nobody_frees_all():
    for others in ([], [user_of("p", "other")], [user_of("p", on="")], [user_of("p", phase="Succeeded")]):
        its_claim = held_by("c")
        inventory = cluster(*others, its_claim)
        feed(inventory, its_claim, None)
        assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (0, 0, 0)


def test_a_claim_that_was_taken_back_first_frees_all():
    """As the claim controller does: the allocation goes, then the finalizer, then the claim."""
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    free = claim("c")
    feed(inventory, its_claim, free)
    feed(inventory, free, None)
    assert (shares(inventory), len(inventory.vanished.all())) == (0, 0)


def test_a_waiting_pod_holds_until_it_is_decided_again():
    """It may be bound already, and we do not know yet; but once it is decided anew it must not be in its own way."""
    waiting, its_claim = user_of(on=""), held_by("c", "p")
    inventory = cluster(waiting, its_claim)
    feed(inventory, its_claim, None)
    assert charged(inventory) == 1
    assert not inventory.starts_over(user_of("other", on=""))
    assert inventory.starts_over(waiting)
    assert (shares(inventory), charged(inventory)) == (0, 0)


def test_a_pod_that_runs_frees_nothing_by_being_looked_at():
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    assert not inventory.starts_over(running)
    assert not inventory.starts_over(user_of(on="")), "an old copy of it"
    assert shares(inventory) == 1


def test_a_claim_that_is_back_counts_as_itself():
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    feed(inventory, None, its_claim)
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (1, 1, 0)
    feed(inventory, its_claim, claim("c"))
    assert shares(inventory) == 0


def test_a_device_that_is_held_alone_and_a_part_of_a_card():
    its_claim = held_by("c", "p", given=allocation(device="dev-2"))
    inventory = cluster(user_of(), its_claim)
    feed(inventory, its_claim, None)
    device = DeviceId(DRIVER, "n1", "dev-2")
    assert inventory.usage.in_use(device)
    assert bool(inventory.devices.exclusive[inventory.devices.row_of(device)])


# -- told by the driver ----------------------------------------------------------------------------------------------------


def test_after_a_restart_the_driver_tells():
    """Nothing is remembered, and the pod runs: the slice says what it holds."""
    its_claim = held_by("c", "p")
    inventory = cluster(user_of(), telling(gone(its_claim)))
    assert (shares(inventory), charged(inventory)) == (1, 1)
    assert inventory.usage.consumed(CARD)["memory"] == 4 << 30
    (found,) = inventory.vanished.all()
    assert (found.node, [each.key for each in found.holders]) == ("n1", ["default/p"])
    feed(inventory, None, telling())
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (0, 0, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_it_counts_only_while_no_claim_with_the_uid_is_there(order):
    its_claim = held_by("c", "p")
    objects = [user_of(), its_claim, telling(gone(its_claim))]
    inventory = cluster(*(objects[number] for number in order))
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (1, 1, 0)
    feed(inventory, its_claim, None)
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (1, 1, 1)


def test_what_was_seen_and_is_told_counts_once_and_until_the_driver_is_done():
    """The pod object may be gone before its containers are."""
    running, its_claim = user_of(), held_by("c", "p")
    inventory = cluster(running, its_claim)
    feed(inventory, its_claim, None)
    feed(inventory, None, telling(gone(its_claim)))
    assert (shares(inventory), charged(inventory), len(inventory.vanished.all())) == (1, 1, 1)
    feed(inventory, running, None)
    assert (shares(inventory), charged(inventory)) == (1, 0), "the card is in use; nobody's quota is charged for it"
    feed(inventory, None, telling())
    assert shares(inventory) == 0


def test_a_slice_speaks_only_of_its_own_pool():
    """A node that lies takes none of the others' cards: an entry names devices, and nothing else of where they are."""
    lies = HeldClaim(uid="u", devices=(HeldDevice(device="gpu-0"),))
    inventory = cluster(telling(lies))
    assert inventory.usage.in_use(CARD)
    assert not inventory.usage.in_use(DeviceId(DRIVER, "n2", "gpu-0"))
    inventory = cluster(telling(lies, on="n1", name="forged", pool="n2"))
    assert not list(inventory.usage.uses())
    inventory = cluster(telling(lies, driver="gpu.nvidia.com"))
    assert not list(inventory.usage.uses()), "other vendors' drivers have no such annotation"


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [user_of("p", on="n2")],
        [user_of("p", on="")],
        [user_of("p", uid="another")],
        [user_of("p", phase="Succeeded")],
        [user_of("p", namespace="another")],
        [pod("p", nodeName="n1")],
    ],
)
def test_a_quota_is_charged_only_for_pods_that_run_there(pods):
    """A node that lies cannot use up the quota of a namespace that has no pod on it."""
    inventory = cluster(*pods, telling(gone(held_by("c", "p"))))
    assert (shares(inventory), charged(inventory)) == (1, 0)


def test_the_quota_follows_the_pod():
    inventory = cluster(telling(gone(held_by("c", "p"))))
    assert charged(inventory) == 0
    running = user_of()
    feed(inventory, None, running)
    assert charged(inventory) == 1
    feed(inventory, running, None)
    assert (charged(inventory), shares(inventory)) == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{}",
        '[{"devices":[{"device":"gpu-0","consumed":{"memory":-1}}]}]',
        '[{"devices":[{"device":"gpu-0","consumed":{"memory":99999999999999999999}}]}]',
        '[{"devices":[{"device":"gpu-0","mark":-1}]}]',
        '[{"devices":[{"device":"\\u001b[31m"}]}]',
        '[{"namespace":"a\\nb","devices":[{"device":"gpu-0"}]}]',
        '[{"x":' + "[" * 20_000 + "]" * 20_000 + "}]",
        '["\\ud800"]',
        "[" + "{}," * 30_000 + "{}]",
    ],
)
def test_an_annotation_that_no_driver_writes_is_named_and_ignored(text):
    found = telling()
    metadata = msgspec.structs.replace(found.metadata, annotations={names.HELD_CLAIMS: text})
    inventory = cluster(msgspec.structs.replace(found, metadata=metadata))
    assert not list(inventory.usage.uses())
    assert names.HELD_CLAIMS in inventory.problems[f"ResourceSlice {found.metadata.name}"]
    feed(inventory, None, telling())
    assert inventory.problems == {}


def test_the_annotation_is_bounded_and_what_does_not_fit_is_held_as_a_whole():
    many = [
        msgspec.structs.replace(gone(held_by("c", "p")), uid=f"u{number:04}", name="n" * 250) for number in range(900)
    ]
    text = heldclaims.encode(many)
    assert len(text) <= heldclaims.MOST_LENGTH
    folded, *reported = heldclaims.decode(text)
    assert (folded.uid, folded.devices) == ("", (HeldDevice(device="gpu-0"),))
    assert [each.uid for each in reported] == [f"u{number:04}" for number in range(len(reported))]
    assert heldclaims.encode([]) == ""
    with pytest.raises(InvalidHeldClaims, match="at most"):
        heldclaims.decode(" " * (heldclaims.MOST_LENGTH + 1))


# -- shown -----------------------------------------------------------------------------------------------------------------


def test_status_and_doctor_tell():
    inventory = cluster(user_of(), telling(gone(held_by("c", "p"))))
    seen = overview(inventory, [], [user_of()])
    (found,) = seen.vanished
    assert (found.claim, found.pods, found.devices) == ("c", ("default/p",), (str(CARD),))
    (tenant,) = next(each for each in seen.cards if each.node == "n1" and each.device == "gpu-0").tenants
    assert (tenant.pod, tenant.vanished, tenant.memory) == ("p", True, 4 << 30)


# -- any order, any history ------------------------------------------------------------------------------------------------

CLAIMS, PODS = ("c0", "c1"), ("p0", "p1")


@st.composite
def happenings(draw):
    often = ["claim gone"] * 3 + ["pod gone", "slice", "starts over"] * 2
    what = draw(st.sampled_from(["pod", "pod", "claim", "claim", *often]))
    if what in {"pod", "starts over"}:
        name, again = draw(st.sampled_from(PODS)), draw(st.sampled_from(["", "", "-again"]))
        on, phase = draw(st.sampled_from(["", "n1", "n2"])), draw(st.sampled_from(["", "", "Succeeded"]))
        found = user_of(name, draw(st.sampled_from(CLAIMS)), on, phase=phase, uid=f"pod-{name}{again}")
        return what, found.key, found
    if what == "claim":
        name, again = draw(st.sampled_from(CLAIMS)), draw(st.sampled_from(["", "", "-again"]))
        users = draw(st.lists(st.sampled_from(PODS), max_size=2, unique=True))
        found = held_by(name, *users, uid=f"claim-{name}{again}", given=allocation(draw(st.sampled_from(NODES))))
        return what, found.key, claim(name, uid=f"claim-{name}{again}") if draw(st.integers(0, 3)) == 0 else found
    if what == "slice":
        on = draw(st.sampled_from(NODES))
        reported = [
            msgspec.structs.replace(gone(held_by(name, *PODS)), uid=f"claim-{name}")
            for name in draw(st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True))
        ]
        return what, f"{on}-{DRIVER}", telling(*reported, on=on)
    return what, "default/" + draw(st.sampled_from(PODS if what == "pod gone" else CLAIMS)), None


class Model:
    """The rules once more, by looking at everything each time."""

    def __init__(self):
        self.pods, self.claims, self.slices = {}, {}, {}
        self.seen = {}
        """Uid → (claim, uids of pods)."""

    def vanish(self, old):
        if old is None or old.status.allocation is None:
            return
        users = {each.metadata.uid for each in self.pods.values() if not over(each)}
        reserved = {each.uid for each in old.status.reserved_for} & users
        bound = {
            each.metadata.uid
            for each in self.pods.values()
            if not over(each)
            and each.spec.node_name
            and each.spec.resource_claims[0].resource_claim_name == old.metadata.name
        }
        if reserved | bound:
            self.seen[old.metadata.uid] = old, reserved | bound

    def tell(self, what, key, new):
        match what:
            case "pod":
                self.pods[key] = new
            case "pod gone":
                self.pods.pop(key, None)
            case "slice":
                self.slices[key] = new
            case "claim" | "claim gone":
                old = self.claims.pop(key, None)
                if new is not None:
                    self.claims[key] = new
                    self.seen.pop(new.metadata.uid, None)
                if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                    self.vanish(old)
            case "starts over":
                mine = self.pods.get(key)
                if not new.spec.node_name and not (
                    mine and mine.metadata.uid == new.metadata.uid and mine.spec.node_name and not over(mine)
                ):
                    for _, holders in self.seen.values():
                        holders.discard(new.metadata.uid)
        alive = {each.metadata.uid for each in self.pods.values() if not over(each)}
        self.seen = {uid: (each, held & alive) for uid, (each, held) in self.seen.items() if held & alive}

    def expected(self):
        """(uses of each first card, what the quota is charged)."""
        counting = [*self.claims.values(), *(each for each, _ in self.seen.values())]
        there = {each.metadata.uid for each in counting}
        uses = dict.fromkeys(NODES, 0)
        charges = 0
        for each in counting:
            if each.status.allocation is not None:
                uses[each.status.allocation.devices.results[0].pool] += 1
                charges += 1
        for item in self.slices.values():
            on = item.spec.node_name
            text = item.metadata.annotations.get(names.HELD_CLAIMS)
            for reported in heldclaims.decode(text) if text else ():
                if reported.uid not in there:
                    uses[on] += 1
                    charges += any(
                        each.metadata.uid in reported.pods and each.spec.node_name == on and not over(each)
                        for each in self.pods.values()
                    )
        return uses, charges


def over(each):
    return each.status.phase in {"Succeeded", "Failed"}


RUNNING = [
    ("pod", "default/p0", user_of("p0", "c0")),
    ("pod", "default/p1", user_of("p1", "c0", on="")),
    ("claim", "default/c0", held_by("c0", "p0", "p1", uid="claim-c0")),
]


@settings(max_examples=500)
@given(st.sampled_from([[], RUNNING, RUNNING]), st.lists(happenings(), min_size=1, max_size=12))
def test_whatever_happens_it_counts_as_the_rules_say(beginning, history):
    inventory, model = cluster(), Model()
    for what, key, new in [*beginning, *history]:
        if what == "starts over":
            inventory.starts_over(new)
        else:
            kept = {"pod": model.pods, "claim": model.claims, "slice": model.slices}[what.removesuffix(" gone")]
            old = kept.get(key)
            if old is not None or new is not None:
                feed(inventory, old, new)
        model.tell(what, key, new)
        uses, charges = model.expected()
        assert {on: shares(inventory, DeviceId(DRIVER, on, "gpu-0")) for on in NODES} == uses
        assert charged(inventory) == charges
        assert (len(inventory.vanished.all()) > 0) == (len(inventory.vanished.all()) > 0)
        score = sum(float(inventory.nodes.score[inventory.nodes.index_of(on)]) for on in NODES)
        assert (score > 0) == (sum(uses.values()) > 0)


def test_doctor_names_claim_pods_and_what_to_do():
    from tests.unit.insight.test_doctor import live, state

    found = state(slices=[telling(gone(held_by("c", "p")))], pods=[user_of()], live=live())
    (finding,) = examine_claims(found)
    assert finding.object == "ResourceClaim default/c"
    assert "default/p" in finding.problem
    assert str(CARD) in finding.problem
    assert "delete these pods" in finding.fix
    (finding,) = examine_claims(state(pods=[user_of()], live=live()))
    assert (finding.object, finding.severity) == ("Pod default/p", "warning")
    assert "no ResourceClaim default/c" in finding.problem
