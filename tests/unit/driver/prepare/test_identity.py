"""What claims hold is counted by card, whatever cards are called or numbered when the driver starts again."""

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import DrivenCard
from hami_dra.driver.prepare.batching import Unprepare
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.driver.prepare.pods import read_pod
from hami_dra.vendors.enflame import containers as enflame_containers
from hami_dra.vendors.enflame import publish as enflame_published
from hami_dra.vendors.nvidia.records import MigState
from tests.support.preparing import GIB, NODE, PreparedNode, claim, env_of, gpu, only, pod, pod_json, result, share
from tests.support.settings import vendor_settings


def restarted(node, *cards):
    """A new driver that finds these cards."""
    node.cards = list(cards)
    node.inventory = node._inventory()
    return node.restart()


def called(card, *, index, number=None):
    """The same card under other numbers; by default its name follows, as if the list of names had been lost."""
    return replace(card, index=index, number=number)


@pytest.fixture
def node(tmp_path):
    return PreparedNode(tmp_path, [gpu(0), gpu(1), gpu(2)])


def whole(name, device):
    return claim(name, result(device, memory="16Gi", cores="100", shares="1", share_id=f"share-{name}"))


def test_a_whole_card_is_not_given_out_a_second_time_under_another_name(node):
    """GPU 0 is taken off the bus: NVML numbers the others again."""
    held = whole("held", "gpu-1")
    node.prepare(held, pods=[pod("holder", claims=("held",))])
    assert restarted(node, called(gpu(1), index=0), called(gpu(2), index=1)) == []
    why = node.prepare(whole("late", "gpu-0"), pods=[pod("late", claims=("late",))])["uid-late"]
    assert why == (
        "ResourceClaim default/late: status.allocation.devices.results take 17179869184 of 'memory' of device gpu-0, which has "
        "17179869184, and 17179869184 of it held by default/held: kubelet keeps trying, and the pod starts once that is free; "
        "to have another device allocated now, delete the pod and this claim"
    )
    free = node.prepare(whole("free", "gpu-1"), pods=[pod("free", claims=("free",))])["uid-free"]
    assert free.held[0].card == "GPU-2"


def test_shares_are_added_up_by_card(node):
    node.prepare(claim("a", share("gpu-1", memory="10Gi")), pods=[pod("a", claims=("a",))])
    restarted(node, called(gpu(1), index=0))
    assert "10737418240 of it held by default/a" in node.prepare(claim("b", share("gpu-0", memory="10Gi")))["uid-b"]
    assert not isinstance(node.prepare(claim("c", share("gpu-0", memory="6Gi")))["uid-c"], str)


def test_claims_are_repaired_whatever_their_card_is_called_now(node):
    held = claim("held", share("gpu-1"))
    first = node.prepare(held, pods=[pod("holder", claims=("held",))])["uid-held"]
    for path in node.cdi.iterdir():
        path.unlink()
    assert restarted(node, called(gpu(1), index=0), called(gpu(2), index=1)) == []
    assert env_of(only(node.specs()))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert node.prepare(held)["uid-held"].answers == first.answers


def test_what_a_container_set_for_itself_still_counts_when_its_cards_are_renumbered(tmp_path):
    """The CDI file is written anew without its pod at hand; of what the pod sets only that is remembered which decides."""
    node = PreparedNode(tmp_path)
    raw = pod_json("holder", claims=("held",))
    wanted = {"CUDA_DISABLE_CONTROL": "true", "PASSWORD": "hunter2"}
    raw["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in wanted.items()]
    node.prepare(claim("held", share("gpu-1", memory="2Gi")), pods=[read_pod(raw)])
    before = only(node.specs())
    assert "/etc/ld.so.preload" not in targets(before)
    assert restarted(node, called(gpu(1), index=0), called(gpu(2), index=1)) == []
    after = only(node.specs())
    assert before["containerEdits"]["deviceNodes"] != after["containerEdits"]["deviceNodes"]
    assert targets(after) == targets(before)
    written = [path.read_text() for path in (*node.cdi.iterdir(), node.checkpoint)]
    assert not any("hunter2" in text for text in written)


def test_cards_that_change_places_take_their_limits_along_in_a_container_that_starts_again(tmp_path):
    """HAMi-core goes by the limits in the file of usage, and that may be on the host."""
    node = PreparedNode(tmp_path)
    held = claim("held", share("gpu-0", "a", memory="2Gi"), share("gpu-1", "b", memory="8Gi"), owner="holder")
    node.prepare(held, pods=[pod("holder", claims=("held",))])
    first = env_of(only(node.specs()))
    assert restarted(node, called(gpu(1), index=0, number=1), called(gpu(0), index=1, number=0)) == []
    swapped = env_of(only(node.specs()))
    names = ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1")
    assert [first[name] for name in names] == [swapped[name] for name in reversed(names)] == ["2048m", "8192m"]
    assert first["CUDA_DEVICE_MEMORY_SHARED_CACHE"] != swapped["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert restarted(node, gpu(0), gpu(1)) == []
    assert env_of(only(node.specs())) == first


def targets(device):
    return [mount["containerPath"] for mount in device["containerEdits"]["mounts"]]


def test_a_card_that_is_added_takes_no_name(node):
    """Names are kept beside the checkpoint: the new card has a free one, whatever its number."""
    held = whole("held", "gpu-0")
    node.prepare(held, pods=[pod("holder", claims=("held",))])
    new = replace(gpu(7), index=0, number=3)
    kept = [called(gpu(number), index=number + 1, number=number) for number in range(3)]
    assert restarted(node, new, *kept) == []
    late = node.prepare(whole("late", "gpu-3"), pods=[pod("late", claims=("late",))])["uid-late"]
    assert late.held[0].card == "GPU-7"
    assert "held by default/held" in node.prepare(whole("again", "gpu-0"))["uid-again"]


def test_nothing_is_prepared_on_a_card_that_is_gone(node):
    restarted(node, gpu(0), gpu(2), replace(gpu(1), present=False))
    assert node.prepare(claim("c", share("gpu-1")))["uid-c"] == (
        "ResourceClaim default/c: device gpu-1 (card GPU-1) is not on this node any more: delete the pod and the claim, so that "
        "another device is allocated"
    )


def test_what_is_held_of_a_card_that_is_gone_can_be_given_back(node):
    held = claim("held", share("gpu-1"))
    node.prepare(held, pods=[pod("holder", claims=("held",))])
    restarted(node, gpu(0), gpu(2))
    assert node.unprepare(held) == {"uid-held": ""}
    assert node.traces() == []


# --- MIG ---


def test_a_card_that_is_held_as_one_is_not_cut_after_its_mode_was_switched(tmp_path):
    unpartitioned = replace(gpu(0, mig=True), mig=MigState(enabled=False, pending=False))
    node = PreparedNode(tmp_path, [unpartitioned])
    held = claim("held", result("gpu-0", memory="40Gi", cores="100", shares="1", share_id="s"))
    assert not isinstance(node.prepare(held, pods=[pod("holder", claims=("held",))])["uid-held"], str)
    restarted(node, gpu(0, mig=True))
    why = node.prepare(claim("part", result("gpu-0-mig-1g-5gb-0")))["uid-part"]
    assert why == (
        "ResourceClaim default/part: device gpu-0-mig-1g-5gb-0 and gpu-0, which is held by default/held, are of one card (GPU-0), and a "
        "card is used as one or in parts: kubelet keeps trying, and the pod starts once that is free; "
        "to have another device allocated now, delete the pod and this claim"
    )


def test_parts_are_counted_by_their_card(tmp_path):
    node = PreparedNode(tmp_path, [gpu(0), gpu(1, mig=True)])
    held = claim("held", result("gpu-1-mig-2g-10gb-0"))
    assert not isinstance(node.prepare(held)["uid-held"], str)
    assert restarted(node, called(gpu(1, mig=True), index=0)) == []
    assert len(node.instances()) == 1
    for taken in ("gpu-0-mig-2g-10gb-0", "gpu-0-mig-1g-5gb-1", "gpu-0"):
        assert "default/held" in node.prepare(claim("late", result(taken)))["uid-late"]
    assert not isinstance(node.prepare(claim("beside", result("gpu-0-mig-1g-5gb-2")))["uid-beside"], str)


def test_parts_of_a_card_that_cannot_be_cut_any_more_are_told_and_given_back(tmp_path):
    node = PreparedNode(tmp_path, [gpu(0, mig=True)])
    held = claim("held", result("gpu-0-mig-1g-5gb-0"))
    node.prepare(held)
    plain = replace(gpu(0, mig=True), mig=MigState(enabled=False, pending=False))
    restarted(node, plain)
    whole_card = claim("late", result("gpu-0", memory="40Gi", cores="100", shares="1", share_id="s"))
    assert "default/held" in node.prepare(whole_card)["uid-late"]
    assert node.unprepare(held) == {"uid-held": ""}
    assert not isinstance(node.prepare(whole_card)["uid-late"], str)


# --- what containers are told by number ---


class GcuNode(PreparedNode):
    """Enflame's runtime knows cards by number, which moves when one is removed."""

    vendor = enflame_containers.EnflameContainers()

    def __init__(self, root):
        super().__init__(root, [gcu(0), gcu(1)])

    def _inventory(self):
        devices = enflame_published.EnflamePublishing().devices(self.cards, vendor_settings())
        return inventory_of("enflame.hami.io", NODE, devices, self.vendor.sites(self.cards))


def gcu(index, number=None):
    return DrivenCard(
        vendor="enflame",
        index=index,
        number=number,
        uuid=f"GCU-{index if number is None else number}",
        product="S60",
        memory=48 * GIB,
    )


def test_containers_are_told_the_number_that_a_card_has_now(tmp_path):
    node = GcuNode(tmp_path)
    held = claim("held", result("gcu-1", driver="enflame.hami.io"))
    first = node.prepare(held, pods=[pod("holder", claims=("held",))])["uid-held"]
    assert env_of(only(node.specs()))["ENFLAME_VISIBLE_DEVICES"] == "1"
    assert restarted(node, gcu(0, number=1)) == []
    assert env_of(only(node.specs()))["ENFLAME_VISIBLE_DEVICES"] == "0"
    assert node.work.written["uid-held"].answers == first.answers
    node.cards = [gcu(1, number=1)]  # while the driver runs
    node.inventory = node._inventory()
    node.work.run([Unprepare(())])
    assert env_of(only(node.specs()))["ENFLAME_VISIBLE_DEVICES"] == "1"
    node.cards = [gcu(0, number=1)]
    node.inventory = node._inventory()
    node.checkpoint.unlink()
    assert restarted(node, gcu(0, number=1)) == []
    assert node.work.written["uid-held"].held[0].numbers == (0, -1)
