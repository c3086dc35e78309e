"""The life of a node: claims come and go, the driver is killed anywhere, the node reboots, cards change their numbers and names. What is on
the host is what is written down, and no card is given out twice.
"""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_dra.driver.prepare.batching import Unprepare
from hami_dra.driver.prepare.overcommit import ClaimHolding, check_overcommit
from hami_dra.driver.prepare.transaction import UNEXPECTED
from tests.support.preparing import Killed, PreparedNode, claim, kill, pod, prepare_job, result, share

RESULTS = [
    share("gpu-0", memory="6Gi", cores="40"),
    share("gpu-1", memory="10Gi", cores="10"),
    result("gpu-0", share_id="whole"),
    result("gpu-2-mig-1g-5gb-0"),
    result("gpu-2-mig-1g-5gb-3"),
    result("gpu-2-mig-2g-10gb-2"),
    result("gpu-2-mig-7g-40gb-0"),
    share("gpu-2", memory="6Gi", cores="40"),
    result("gpu-2", share_id="whole"),
]
NAMES = ("a", "b", "c")

allocations = st.lists(st.sampled_from(RESULTS), min_size=1, max_size=2)
prepares = st.dictionaries(st.sampled_from(NAMES), allocations, min_size=1, max_size=3).map(
    lambda found: ("prepare", found)
)
unprepares = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(
    lambda found: ("unprepare", found)
)
calls = prepares | unprepares
events = st.tuples(
    st.lists(calls, min_size=1, max_size=3),
    st.sampled_from(["", "", "restart", "reboot", "renumber"]),
    st.none() | st.integers(0, 40),
)


def job_of(call):
    kind, what = call
    if kind == "unprepare":
        return Unprepare(tuple(f"uid-{name}" for name in what))
    claims = [
        claim(name, *({**each, "request": f"r{number}"} for number, each in enumerate(results)))
        for name, results in what.items()
    ]
    return prepare_job(*claims, pods=[pod(f"pod-{name}", claims=(name,)) for name in what])


def reboot(node):
    for path in node.cdi.iterdir() if node.cdi.exists() else ():
        path.unlink()
    for found in node.instances():
        node.partitioner.destroy("GPU-2", found.id)


def renumber(node):
    """The two plain cards change places, and names with it, as if the driver had lost its list of names."""
    node.cards = [card if card.mig else replace(card, index=1 - card.index) for card in node.cards]
    node.inventory = node._inventory()


def check_each_card_once(records):
    """By uuid, and by nothing else."""
    held = [each for record in records.values() for each in record.held]
    for uuid, size in (("GPU-0", 16 << 30), ("GPU-1", 16 << 30)):
        given_out = [each.consumed.get("memory", 0) for each in held if each.card == uuid]
        assert sum(given_out) <= size
    as_one = [each for each in held if each.card == "GPU-2" and each.partition is None]
    assert not as_one or not [each for each in held if each.partition is not None]


def check(node):
    """Nothing but what is written down is there, all of it is, and it fits."""
    records = node.work.written
    assert {record.state for record in records.values()} <= {"prepared"}
    assert set(node.specs()) == {f"nvidia.hami.io-claim_{uid}.json" for uid in records}
    assert node.specs() == {f"nvidia.hami.io-claim_{uid}.json": record.spec for uid, record in records.items()}
    partitions = [held.partition for record in records.values() for held in record.held if held.partition is not None]
    assert sorted(found.uuid for found in node.instances()) == sorted(partition.uuid for partition in partitions)
    in_one = {held.card for record in records.values() for held in record.held if held.unpartitioned}
    assert node.partitioner.unpartitioned_cards() == in_one
    assert len(node.traces()) == len(records) + len(partitions) + len(in_one) + sum(
        folder.per_view for record in records.values() for folder in record.folders
    )
    check_each_card_once(records)
    for uid, record in records.items():
        others = [
            ClaimHolding(other.key, held) for other in records.values() if other.uid != uid for held in other.held
        ]
        check_overcommit(record.key, record.held, others, node.inventory)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events, min_size=1, max_size=6))
@example([([("prepare", {"a": [RESULTS[2]]})], "", None), ([("prepare", {"b": [RESULTS[1]]})], "renumber", None)])
def test_what_is_there_is_what_is_written_down(story):
    with TemporaryDirectory() as folder:
        node = PreparedNode(Path(folder))
        for calls_at_once, before, killed_at in story:
            if before:
                if before == "reboot":
                    reboot(node)
                if before == "renumber":
                    renumber(node)
                assert node.restart() == []
                check(node)
            node.files.steps.clear()
            node.files.fail_at, node.files.failure = killed_at, kill
            with suppress(Killed):
                for outcome in node.work.run([job_of(call) for call in calls_at_once]):
                    assert UNEXPECTED not in outcome.values()
            if killed_at is not None:
                assert node.restart() == []
            check(node)
        gone = node.work.run([job_of(("unprepare", NAMES))])
        assert set(gone[0].values()) == {""}
        assert node.traces() == []
