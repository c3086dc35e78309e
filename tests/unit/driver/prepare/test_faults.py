"""Killed, or failed by the disk, at every single step: the next start or the next call repairs, and nothing is left behind."""

from contextlib import suppress

import pytest

from hami_dra.api.containers import PartitionRefused
from hami_dra.driver.prepare.batching import Unprepare
from hami_dra.driver.prepare.errors import PrepareError
from tests.support.preparing import (
    Killed,
    PreparedNode,
    claim,
    disk_full,
    kill,
    only,
    pod,
    prepare_job,
    read_only,
    result,
    share,
)

C = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-0", "part"))
OTHER = claim("other", result("gpu-2-mig-2g-10gb-2"))
NEW = claim("c", share("gpu-1"), result("gpu-2-mig-1g-5gb-6", "part"))
POD = pod()

SHARED = claim("shared", share("gpu-2", memory="1Gi", cores="10"))


def prepare(node):
    return node.prepare(C, pods=[POD])


def unprepare(node):
    return node.unprepare(C)


def prepare_anew(node):
    return node.prepare(NEW, pods=[POD])


def both(node):
    jobs = [Unprepare(("uid-other",)), prepare_job(C, pods=[POD])]
    return {uid: outcome for found in node.work.run(jobs) for uid, outcome in found.items()}


def reboot(node):
    for path in node.cdi.iterdir():
        path.unlink()
    for found in node.instances():
        node.partitioner.destroy("GPU-2", found.id)


def start(node):
    node.work = node.make_work()
    node.work.start()
    return {}


def nothing(_node):
    pass


def prepared(node):
    prepare(node)


def other_prepared(node):
    node.prepare(OTHER)


def prepare_one(node):
    return node.prepare(SHARED)


def unprepare_one(node):
    return node.unprepare(SHARED)


def cut_anew(node):
    """The card itself is given back, and a part of it is made."""
    jobs = [Unprepare(("uid-shared",)), prepare_job(C, pods=[POD])]
    return {uid: outcome for found in node.work.run(jobs) for uid, outcome in found.items()}


def prepared_before_reboot(node):
    prepare(node)
    reboot(node)


CASES = {
    "prepare": (nothing, prepare),
    "prepare again": (prepared, prepare),
    "prepare after a reboot": (prepared_before_reboot, prepare),
    "start after a reboot": (prepared_before_reboot, start),
    "prepare with another allocation": (prepared, prepare_anew),
    "unprepare": (prepared, unprepare),
    "unprepare and prepare in one batch": (other_prepared, both),
    "a card in one": (nothing, prepare_one),
    "a card in one, given back": (prepare_one, unprepare_one),
    "a card in one, then cut": (prepare_one, cut_anew),
}


def fresh(root, before, number):
    node = PreparedNode(root / str(number))
    before(node)
    node.files.steps.clear()
    return node


def steps(root, before, act):
    node = fresh(root, before, "counted")
    act(node)
    return len(node.files.steps)


def check_works_and_leaves_nothing(node):
    """The claim is prepared in full, answers do not change, and unprepared it is gone."""
    assert unprepare_one(node) == {"uid-shared": ""}
    outcome = prepare(node)["uid-c"]
    assert not isinstance(outcome, str), outcome
    assert [answer.device for answer in outcome.answers] == ["gpu-0", "gpu-2-mig-1g-5gb-0"]
    (made,) = [found for found in node.instances() if found.placement.start == 0]
    spec = only({name: each for name, each in node.specs().items() if "uid-c" in name})
    assert any(made.uuid in entry for entry in spec["containerEdits"]["env"])
    assert prepare(node)["uid-c"].answers == outcome.answers
    assert node.unprepare(C, OTHER) == {"uid-c": "", "uid-other": ""}
    assert node.traces() == []
    assert not node.work.written


@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_step(tmp_path, case):
    before, act = CASES[case]
    count = steps(tmp_path, before, act)
    assert count > 3 or case == "prepare again"
    for number in range(count):
        node = fresh(tmp_path, before, number)
        node.files.fail_at, node.files.failure = number, kill
        with pytest.raises(Killed):
            act(node)
        assert node.restart() == [], f"step {number}"
        check_works_and_leaves_nothing(node)


@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_step_and_the_claim_is_never_asked_for_again(tmp_path, case):
    before, act = CASES[case]
    for number in range(steps(tmp_path, before, act)):
        node = fresh(tmp_path, before, number)
        node.files.fail_at, node.files.failure = number, kill
        with pytest.raises(Killed):
            act(node)
        assert node.restart() == []
        assert set(node.unprepare(C, OTHER, SHARED).values()) == {""}
        assert node.traces() == [], f"step {number}"


@pytest.mark.parametrize("case", CASES)
def test_killed_twice(tmp_path, case):
    """The second time while the next instance cleans up."""
    before, act = CASES[case]
    count = steps(tmp_path, before, act)
    for number in range(0, count, 3):
        for second in range(0, 24, 5):
            node = fresh(tmp_path, before, f"{number}-{second}")
            node.files.fail_at, node.files.failure = number, kill
            with pytest.raises(Killed):
                act(node)
            node.restart(start=False)
            node.files.fail_at, node.files.failure = second, kill
            try:
                node.work.start()
            except Killed:
                assert node.restart() == []
            node.files.fail_at = None
            check_works_and_leaves_nothing(node)


@pytest.mark.parametrize("failure", [disk_full, read_only])
@pytest.mark.parametrize("case", CASES)
def test_one_step_fails(tmp_path, case, failure):
    """The disk is full for a moment: what is answered is true, the next call repairs."""
    before, act = CASES[case]
    for number in range(steps(tmp_path, before, act)):
        node = fresh(tmp_path, before, number)
        node.files.fail_at, node.files.failure = number, failure
        outcomes = {}
        with suppress(*([PrepareError] if act is start else [])):  # the driver tells, and tries again
            outcomes = act(node)
        node.files.fail_at = None
        for outcome in outcomes.values():
            assert not isinstance(outcome, str) or outcome == "" or "/" in outcome
        check_works_and_leaves_nothing(node)


@pytest.mark.parametrize("failure", [disk_full, read_only])
def test_while_the_disk_takes_nothing_everything_is_refused_in_words(tmp_path, failure):
    node = PreparedNode(tmp_path)
    node.prepare(OTHER)

    node.files.rename = lambda _source, target: failure(target)
    why = prepare(node)["uid-c"]
    assert "checkpoint.json" in why
    assert "free space on this disk, or make it writable" in why
    assert [found.placement.start for found in node.instances()] == [2]
    assert list(node.specs()) == ["nvidia.hami.io-claim_uid-other.json"]
    del node.files.rename
    check_works_and_leaves_nothing(node)


def test_a_cdi_folder_that_takes_nothing(tmp_path):
    node = PreparedNode(tmp_path)
    write = node.files.write_temporary

    def refuse(path, content, mode):
        if path.parent == node.cdi:
            read_only(path)
        write(path, content, mode)

    node.files.write_temporary = refuse
    why = prepare(node)["uid-c"]
    assert "ResourceClaim default/c" in why
    assert "Read-only file system" in why
    assert node.traces() == []
    assert not node.work.written
    node.files.write_temporary = write
    check_works_and_leaves_nothing(node)


def test_a_partition_in_use_keeps_the_claim_until_it_is_free(tmp_path):
    node = PreparedNode(tmp_path)
    prepare(node)

    def in_use(_card, _number):
        raise PartitionRefused("GPU GPU-2: instance 1 is in use by a process")

    node.partitioner.destroy, real = in_use, node.partitioner.destroy
    assert "in use by a process" in unprepare(node)["uid-c"]
    assert "default/c" in node.prepare(claim("next", result("gpu-2-mig-1g-5gb-0")))["uid-next"]
    node.partitioner.destroy = real
    check_works_and_leaves_nothing(node)


def test_a_partition_that_the_hardware_refuses(tmp_path):
    node = PreparedNode(tmp_path)

    def refuse(_place):
        raise PartitionRefused("GPU GPU-2: MIG instance 1g.5gb at memory slice 0 was not made: insufficient resources")

    node.partitioner.create, real = refuse, node.partitioner.create
    why = prepare(node)["uid-c"]
    assert "insufficient resources" in why
    assert "default/c" in why
    assert node.traces() == []
    node.partitioner.create = real
    check_works_and_leaves_nothing(node)
