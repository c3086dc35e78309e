"""Claims are prepared and unprepared on a node: what is written, answered, repeated, repaired and refused."""

import errno
import os

import pytest
from msgspec.structs import replace

from hami_dra.api.containers import PartitionPlace, PartitionRefused
from hami_dra.driver.prepare.assembly import transactions_of
from hami_dra.driver.prepare.batching import Unprepare
from hami_dra.driver.prepare.pods import read_pod
from hami_dra.driver.prepare.transaction import UNEXPECTED
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from tests.support.preparing import PreparedNode, claim, env_of, gpu, only, pod, pod_json, prepare_job, result, share
from tests.support.settings import vendor_settings


@pytest.fixture
def node(tmp_path):
    return PreparedNode(tmp_path)


def test_a_share_is_given_its_card_and_its_limits(node):
    c = claim("c", share("gpu-0", memory="4Gi", cores="30"))
    outcome = node.prepare(c, pods=[pod()])["uid-c"]
    (answer,) = outcome.answers
    assert (answer.requests, answer.pool, answer.device, answer.share_id) == (("r",), "n1", "gpu-0", "share-r")
    (name,) = node.specs()
    assert name == "nvidia.hami.io-claim_uid-c.json"
    document = node.specs()[name]
    device = document["devices"][0]
    assert answer.cdi_ids == (f"{document['kind']}={device['name']}",)
    assert (document["kind"], document["cdiVersion"]) == ("nvidia.hami.io/claim", "0.6.0")
    env = env_of(device)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"


def test_unprepared_means_nothing_is_left(node):
    c = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-0", "part"))
    assert not isinstance(node.prepare(c, pods=[pod()])["uid-c"], str)
    assert len(node.instances()) == 1
    assert len(node.traces()) == 4  # CDI file, folder of the view and its marker, MIG instance
    assert node.unprepare(c) == {"uid-c": ""}
    assert node.traces() == []
    assert not node.work.written


def test_an_unknown_claim_is_unprepared(node):
    assert node.work.run([Unprepare(("nobody",))]) == [{"nobody": ""}]


def test_the_same_claim_again_gets_the_same_answer_and_writes_nothing(node):
    c = claim("c", share("gpu-0"))
    first = node.prepare(c, pods=[pod()])
    node.files.steps.clear()
    assert node.prepare(c, pods=[pod()]) == first
    assert {name for name, _ in node.files.steps} <= {"read", "mkdir", "label", "touch"}


def test_the_same_claim_again_after_a_restart_gets_the_same_answer(node):
    c = claim("c", share("gpu-0"), result("gpu-2-mig-2g-10gb-2", "part"))
    first = node.prepare(c, pods=[pod()])
    assert node.restart() == []
    assert node.prepare(c, pods=[pod()]) == first


def test_after_a_reboot_what_is_gone_is_made_again(node):
    c = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-3", "part"))
    first = node.prepare(c, pods=[pod()])["uid-c"]
    specs = node.specs()
    for path in node.cdi.iterdir():
        path.unlink()
    for found in node.instances():
        node.partitioner.destroy("GPU-2", found.id)
    assert node.restart() == []
    assert node.specs() == specs
    assert len(node.instances()) == 1
    assert node.prepare(c, pods=[pod()])["uid-c"].answers == first.answers
    assert node.unprepare(c) == {"uid-c": ""}
    assert node.traces() == []


def test_a_partition_that_comes_back_has_another_number_and_only_it_is_removed(node):
    part, other = claim("part", result("gpu-2-mig-1g-5gb-3")), claim("other", share("gpu-0"))
    both = pod(claims=("part", "other"))
    node.prepare(part, other, pods=[both])
    (old,) = node.instances()
    node.partitioner.destroy("GPU-2", old.id)
    foreign = node.partitioner.create(PartitionPlace(card_uuid="GPU-2", profile="2g.10gb", start=0))
    assert foreign.id == old.id
    assert node.restart() == []
    assert node.work.written["uid-part"].held[0].partition.id != old.id
    assert len(node.instances()) == 2
    assert node.unprepare(part, other) == {"uid-part": "", "uid-other": ""}
    assert node.instances() == [foreign]


def test_where_somebody_else_took_the_place_of_a_lost_partition_the_claim_is_refused(node):
    c = claim("c", result("gpu-2-mig-1g-5gb-0"))
    node.prepare(c)
    node.partitioner.destroy("GPU-2", node.instances()[0].id)
    foreign = node.partitioner.create(PartitionPlace(card_uuid="GPU-2", profile="2g.10gb", start=0))
    assert "this driver did not make" in node.restart()[0]
    assert "this driver did not make" in node.prepare(c)["uid-c"]
    assert node.unprepare(c) == {"uid-c": ""}
    assert node.instances() == [foreign]


def test_a_claim_that_was_allocated_anew_gives_back_what_it_had(node):
    before = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-0", "part"))
    node.prepare(before, pods=[pod()])
    now = claim("c", share("gpu-1"))
    outcome = node.prepare(now, pods=[pod()])["uid-c"]
    assert [answer.device for answer in outcome.answers] == ["gpu-1"]
    assert node.instances() == []
    assert env_of(only(node.specs()))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_second_claim_on_an_exclusive_device_is_refused_by_name(node):
    node.prepare(claim("first", result("gpu-2-mig-1g-5gb-0")), pods=[])
    why = node.prepare(claim("second", result("gpu-2-mig-1g-5gb-0")), pods=[])["uid-second"]
    assert "default/second" in why
    assert "default/first" in why
    assert "delete the pod" in why
    assert list(node.specs()) == ["nvidia.hami.io-claim_uid-first.json"]


@pytest.mark.parametrize(
    ("taken", "wanted", "word"),
    [
        (share("gpu-0", memory="12Gi"), share("gpu-0", memory="5Gi"), "memory"),
        (share("gpu-0", cores="80"), share("gpu-0", cores="30"), "cores"),
        (result("gpu-0", share_id="s"), share("gpu-0", memory="1Gi", cores="0"), "memory"),
        (result("gpu-2-mig-2g-10gb-0"), result("gpu-2-mig-1g-5gb-1"), "memory-slice-1"),
    ],
)
def test_what_is_taken_is_not_given_twice(node, taken, wanted, word):
    assert not isinstance(node.prepare(claim("first", taken))["uid-first"], str)
    assert word in node.prepare(claim("second", wanted))["uid-second"]
    assert node.unprepare(claim("first", taken)) == {"uid-first": ""}
    assert not isinstance(node.prepare(claim("second", wanted))["uid-second"], str)


def test_a_card_that_is_cut_is_not_shared(node):
    node.prepare(claim("first", result("gpu-2-mig-1g-5gb-0")))
    second = claim("second", share("gpu-2", memory="1Gi", cores="0"))
    assert "default/first" in node.prepare(second)["uid-second"]
    node.unprepare(claim("first", result("gpu-2-mig-1g-5gb-0")))
    assert not isinstance(node.prepare(second)["uid-second"], str)
    assert "default/second" in node.prepare(claim("third", result("gpu-2-mig-1g-5gb-0")))["uid-third"]


CUT = claim("cut", result("gpu-2-mig-1g-5gb-0"))


@pytest.mark.parametrize("wanted", [result("gpu-2", share_id="s"), share("gpu-2", memory="1Gi", cores="10")])
def test_a_card_that_can_be_cut_is_one_while_it_is_held(node, wanted):
    one = claim("one", wanted)
    assert not isinstance(node.prepare(one)["uid-one"], str)
    assert node.partitioner.unpartitioned_cards() == {"GPU-2"}
    assert env_of(only(node.specs()))["NVIDIA_VISIBLE_DEVICES"] == "GPU-2"
    assert node.unprepare(one) == {"uid-one": ""}
    assert node.partitioner.unpartitioned_cards() == set()
    assert not isinstance(node.prepare(CUT)["uid-cut"], str)
    assert len(node.instances()) == 1


def test_a_card_is_one_until_its_last_share_is_given_back(node):
    first, second = (claim(name, share("gpu-2", memory="1Gi", cores="10", share_id=name)) for name in ("a", "b"))
    node.prepare(first)
    node.prepare(second)
    node.unprepare(first)
    assert node.partitioner.unpartitioned_cards() == {"GPU-2"}
    assert "needs 1 of" in node.prepare(CUT)["uid-cut"]
    assert node.restart() == []
    assert node.partitioner.unpartitioned_cards() == {"GPU-2"}
    assert set(node.unprepare(second).values()) == {""}
    assert node.partitioner.unpartitioned_cards() == set()


def test_in_one_batch_a_share_is_given_back_and_a_part_is_made(node):
    one = claim("one", share("gpu-2", memory="1Gi", cores="10"))
    node.prepare(one)
    gone, made = node.work.run([Unprepare(("uid-one",)), prepare_job(CUT)])
    assert gone == {"uid-one": ""}
    assert not isinstance(made["uid-cut"], str)
    assert (len(node.instances()), node.partitioner.unpartitioned_cards()) == (1, set())


def test_a_card_with_an_instance_of_somebody_is_not_made_one(node):
    foreign = node.partitioner.create(PartitionPlace(card_uuid="GPU-2", profile="1g.5gb", start=0))
    one = claim("one", share("gpu-2", memory="1Gi", cores="10"))
    assert "has GPU instances, which no claim holds" in node.prepare(one)["uid-one"]
    assert node.traces() == [foreign.uuid]
    assert not node.work.written


def test_a_card_that_cannot_be_as_it_was_yet_stays_held(node):
    """Kubelet asks again."""
    one = claim("one", share("gpu-2", memory="1Gi", cores="10"))
    node.prepare(one)

    def in_use(_uuid):
        raise PartitionRefused("GPU-2: MIG mode was not switched on: the GPU is in use")

    node.partitioner.repartition, real = in_use, node.partitioner.repartition
    assert "the GPU is in use" in node.unprepare(one)["uid-one"]
    assert "needs 1 of" in node.prepare(CUT)["uid-cut"]
    node.partitioner.repartition = real
    assert node.unprepare(one) == {"uid-one": ""}
    assert node.traces() == []


def test_a_card_that_nobody_remembers_is_made_as_it_was_at_the_start(node):
    node.partitioner.unpartition("GPU-2")
    assert node.restart() == []
    assert node.partitioner.unpartitioned_cards() == set()


def test_who_looks_on_switches_nothing(node):
    one, admin = claim("one", share("gpu-2", memory="1Gi", cores="10")), claim("admin", result("gpu-2", admin=True))
    node.prepare(CUT)
    node.prepare(admin)
    assert node.partitioner.unpartitioned_cards() == set()
    node.unprepare(CUT)
    node.prepare(one)
    node.unprepare(admin)
    assert node.partitioner.unpartitioned_cards() == {"GPU-2"}
    node.prepare(admin)
    node.unprepare(one)
    assert node.partitioner.unpartitioned_cards() == set()


def test_where_cards_cannot_be_cut_a_card_that_may_be_is_refused(node):
    work = transactions_of(
        lambda: node.inventory,
        vendor=NvidiaContainers(),
        host=node.host,
        partitioner=None,
        state_folder=node.state,
        cdi_folder=node.cdi,
        files=node.files,
    )
    [found] = work.run([prepare_job(claim("one", share("gpu-2", memory="1Gi", cores="10")))])
    assert "a partitionable card, which this driver cannot handle" in found["uid-one"]


def test_shares_are_slots(tmp_path):
    node = PreparedNode(tmp_path, cards=[gpu(0)])
    for number in range(10):
        assert not isinstance(
            node.prepare(claim(f"c{number}", share("gpu-0", memory="1Gi", cores="0")))[f"uid-c{number}"], str
        )
    assert "'shares'" in node.prepare(claim("last", share("gpu-0", memory="1Gi", cores="0")))["uid-last"]


def test_admin_access_takes_nothing_and_is_never_refused(node):
    node.prepare(claim("first", result("gpu-0", share_id="s")))
    admin = claim("admin", result("gpu-0", admin=True))
    assert not isinstance(node.prepare(admin)["uid-admin"], str)
    node.unprepare(claim("first", result("gpu-0")))
    assert not isinstance(node.prepare(claim("next", result("gpu-0", share_id="s")))["uid-next"], str)


def test_admin_access_to_a_partition_sees_the_one_that_is_there(node):
    admin = claim("admin", result("gpu-2-mig-1g-5gb-0", admin=True))
    assert "adminAccess" in node.prepare(admin)["uid-admin"]
    node.prepare(claim("holder", result("gpu-2-mig-1g-5gb-0")))
    assert not isinstance(node.prepare(admin)["uid-admin"], str)
    (made,) = node.instances()
    spec = node.specs()["nvidia.hami.io-claim_uid-admin.json"]
    assert env_of(spec["devices"][0])["NVIDIA_VISIBLE_DEVICES"] == made.uuid
    node.unprepare(admin)
    assert node.instances() == [made]


def test_an_instance_that_somebody_else_made_is_never_touched(node):
    foreign = node.partitioner.create(PartitionPlace(card_uuid="GPU-2", profile="1g.5gb", start=0))
    c = claim("c", result("gpu-2-mig-1g-5gb-0"))
    why = node.prepare(c)["uid-c"]
    assert "this driver did not make" in why
    assert node.restart() == []
    assert node.unprepare(c) == {"uid-c": ""}
    assert node.instances() == [foreign]


def test_claims_of_one_pod_are_prepared_together_or_not_at_all(node):
    node.prepare(claim("first", result("gpu-2-mig-1g-5gb-0")))
    good, bad = claim("good", share("gpu-0")), claim("bad", result("gpu-2-mig-1g-5gb-0"))
    outcomes = node.prepare(good, bad, pods=[pod(claims=("good", "bad"))])
    assert "default/bad" in outcomes["uid-good"]
    assert isinstance(outcomes["uid-bad"], str)
    assert list(node.specs()) == ["nvidia.hami.io-claim_uid-first.json"]


def test_claims_that_no_pod_joins_stand_alone(node):
    outcomes = node.prepare(claim("good", share("gpu-0")), claim("bad", result("gpu-9")))
    assert not isinstance(outcomes["uid-good"], str)
    assert "gpu-9" in outcomes["uid-bad"]


def test_two_jobs_of_one_batch_for_the_same_claim_get_one_answer(node):
    c = claim("c", share("gpu-0"))
    first, second = node.work.run([prepare_job(c, pods=[pod()]), prepare_job(c, pods=[pod()])])
    assert first == second
    assert not isinstance(first["uid-c"], str)


def test_prepared_and_unprepared_in_one_batch(node):
    c = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-0", "part"))
    job = prepare_job(c, pods=[pod()])
    first, gone, again = node.work.run([job, Unprepare(("uid-c",)), job])
    assert gone == {"uid-c": ""}
    assert first["uid-c"].answers == again["uid-c"].answers
    assert len(node.instances()) == 1


def test_a_hundred_claims_cost_two_writes(node):
    jobs = [
        prepare_job(claim(f"c{number}", share(f"gpu-{number % 2}", memory="1Gi", cores="1"))) for number in range(20)
    ]
    outcomes = node.work.run(jobs)
    assert all(not isinstance(each, str) for outcome in outcomes for each in outcome.values())
    writes = [path for name, path in node.files.steps if name == "rename" and path.endswith("checkpoint.json")]
    assert len(writes) == 2  # the first, empty one; this one: nobody is told anything before, and shares need no intent


def test_a_driver_that_does_not_know_its_devices_says_so(node):
    node.inventory = None
    assert "not found its devices" in node.prepare(claim("c", share("gpu-0")))["uid-c"]


def test_another_instance_of_the_driver_reads_what_the_first_one_wrote(node):
    other = node.make_work()
    c = claim("c", result("gpu-2-mig-1g-5gb-0"))
    node.prepare(c)
    why = other.run([prepare_job(claim("d", result("gpu-2-mig-1g-5gb-0")))])[0]["uid-d"]
    assert "default/c" in why
    assert other.run([Unprepare(("uid-c",))]) == [{"uid-c": ""}]
    assert not isinstance(node.prepare(claim("d", result("gpu-2-mig-1g-5gb-0")))["uid-d"], str)


def test_a_claim_whose_companion_is_gone_is_still_repaired(node):
    part, other = claim("part", result("gpu-2-mig-1g-5gb-3")), claim("other", share("gpu-0"))
    node.prepare(part, other, pods=[pod(claims=("part", "other"))])
    node.unprepare(other)
    node.partitioner.destroy("GPU-2", node.instances()[0].id)
    assert node.restart() == []
    assert len(node.instances()) == 1
    assert node.unprepare(part) == {"uid-part": ""}
    assert node.traces() == []


def test_a_slip_over_one_claim_does_not_stop_those_of_other_pods(node, monkeypatch, caplog):
    real = NvidiaContainers.edits

    def edits(self, tenancies, place, host):
        if place.claim_name == "odd":
            raise ZeroDivisionError
        return real(self, tenancies, place, host)

    monkeypatch.setattr(NvidiaContainers, "edits", edits)
    odd, good = node.work.run([prepare_job(claim("odd", share("gpu-0"))), prepare_job(claim("good", share("gpu-1")))])
    assert odd == {"uid-odd": UNEXPECTED}
    assert "default/odd" in caplog.text
    assert not isinstance(good["uid-good"], str)
    assert list(node.specs()) == ["nvidia.hami.io-claim_uid-good.json"]


def test_a_slip_while_a_claim_is_read_is_its_own_too(node, monkeypatch):
    def broken(_self, _tenancy, _held):
        raise ZeroDivisionError

    monkeypatch.setattr(NvidiaContainers, "assign", broken)
    assert node.prepare(claim("c", share("gpu-0"))) == {"uid-c": UNEXPECTED}
    assert node.traces() == []


# --- SELinux ---


@pytest.fixture
def labels(monkeypatch):
    """Path → label that was set."""
    found = {}
    monkeypatch.setattr("os.setxattr", lambda path, name, value, **_: found.update({str(path): (name, value)}))
    return found


def test_folders_that_containers_write_to_have_their_label_where_selinux_confines(node, labels):
    """Without it HAMi-core cannot make its file there, and every CUDA program ends."""
    node.files._own_label.write_text("system_u:system_r:spc_t:s0\0")
    node.prepare(claim("c", share("gpu-0")), pods=[pod()])
    ((path, label),) = labels.items()
    assert "/vgpu/containers/" in path
    assert label == ("security.selinux", b"system_u:object_r:container_file_t:s0\0")


@pytest.mark.parametrize("own", ["unconfined\n", "cri-containerd.apparmor.d (enforce)\n", "", None])
def test_nothing_is_labelled_where_selinux_is_off(node, labels, own):
    if own is not None:
        node.files._own_label.write_text(own)
    node.prepare(claim("c", share("gpu-0")), pods=[pod()])
    assert labels == {}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_a_label_that_cannot_be_set(node, monkeypatch, code):
    """Not where there are no labels, or nothing that confines containers; a refusal names the folder."""

    def refuse(path, *_, **__):
        raise OSError(code, os.strerror(code), str(path))

    node.files._own_label.write_text("system_u:system_r:spc_t:s0\0")
    monkeypatch.setattr("os.setxattr", refuse)
    outcome = node.prepare(claim("c", share("gpu-0")), pods=[pod()])["uid-c"]
    if code == errno.EACCES:
        assert "/vgpu/containers/" in outcome
        assert "Permission denied" in outcome
        assert node.traces() == []
    else:
        assert not isinstance(outcome, str)


@pytest.mark.parametrize("name", [None, "kata", "nvidia"])
def test_a_pod_that_another_runtime_starts_is_noted_in_its_claim(node, name):
    node.host.settings = replace(node.host.settings, options=vendor_settings(library_runtime_class="nvidia"))
    raw = pod_json("pod", claims=("c",))
    if name is not None:
        raw["spec"]["runtimeClassName"] = name
    record = node.prepare(claim("c", share("gpu-0")), pods=[read_pod(raw)])["uid-c"]
    reported = [note for note in record.notes if "RuntimeClass nvidia brings NVIDIA's libraries" in note]
    assert len(reported) == (name != "nvidia")
