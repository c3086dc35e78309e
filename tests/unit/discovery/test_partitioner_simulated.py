"""Partitions of simulated cards."""

import errno

import pytest
from msgspec.structs import replace

from hami_dra.api.containers import PartitionPlace, PartitionRefused
from hami_dra.discovery.errors import ToolFailed
from hami_dra.driver.simulated import machine
from hami_dra.vendors.nvidia.mig import profiles
from hami_dra.vendors.nvidia.records import MigState
from hami_dra.vendors.nvidia.simulated_partitions import SimulatedPartitioner

ON = MigState(enabled=True, pending=True)
CARD = replace(machine("dgx-a100", "n1").cards[0], mig=ON)


def place(profile, start, card=CARD):
    return PartitionPlace(card_uuid=card.uuid, profile=profile, start=start)


def smallest():
    return profiles(CARD)[0]


def test_a_card_can_be_filled_and_emptied():
    partitioner = SimulatedPartitioner([CARD])
    profile = smallest()
    made = [partitioner.create(place(profile.name, spot.start)) for spot in profile.placements]
    assert len({each.uuid for each in made}) == len(made) == profile.instances
    assert partitioner.existing(CARD.uuid) == tuple(made)
    assert partitioner.create(place(profile.name, 0)) == made[0]
    for each in made:
        partitioner.destroy(CARD.uuid, each.id)
        partitioner.destroy(CARD.uuid, each.id)
    assert partitioner.existing(CARD.uuid) == ()


def test_what_does_not_fit_is_refused():
    partitioner = SimulatedPartitioner([CARD])
    name = smallest().name
    partitioner.create(place(name, 0))
    with pytest.raises(PartitionRefused, match=r"3g.* at memory slice 0 was not created: it does not fit"):
        partitioner.create(place(next(each.name for each in profiles(CARD) if each.name.startswith("3g.")), 0))
    with pytest.raises(PartitionRefused, match="this GPU has no such profile; it has 1g"):
        partitioner.create(place("9g.1gb", 0))
    with pytest.raises(PartitionRefused, match="can have that profile only at 0, 1"):
        partitioner.create(place(name, 7))
    with pytest.raises(PartitionRefused, match="no such GPU"):
        partitioner.existing("GPU-x")


def test_a_card_that_is_not_in_mig_mode():
    plain = replace(CARD, mig=None)
    with pytest.raises(PartitionRefused, match="not in MIG mode"):
        SimulatedPartitioner([plain]).existing(plain.uuid)


def test_a_file_outlives_the_process_and_is_shared_with_the_next_one(tmp_path):
    file = tmp_path / "partitions.json"
    old, new = SimulatedPartitioner([CARD], file), SimulatedPartitioner([CARD], file)
    made = old.create(place(smallest().name, 1))
    assert new.existing(CARD.uuid) == (made,)
    new.destroy(CARD.uuid, made.id)
    assert old.existing(CARD.uuid) == ()


def test_a_card_is_one_until_it_is_taken_back_or_cut(tmp_path):
    for file in (None, tmp_path / "partitions.json"):
        partitioner = SimulatedPartitioner([CARD], file)
        partitioner.unpartition(CARD.uuid)
        partitioner.unpartition(CARD.uuid)
        seen = SimulatedPartitioner([CARD], file) if file else partitioner
        assert (seen.unpartitioned_cards(), seen.existing(CARD.uuid)) == ({CARD.uuid}, ())
        seen.repartition(CARD.uuid)
        seen.repartition(CARD.uuid)
        assert seen.unpartitioned_cards() == set()
        seen.unpartition(CARD.uuid)
        made = seen.create(place(smallest().name, 1))
        assert seen.unpartitioned_cards() == set()
        with pytest.raises(PartitionRefused, match="cannot be used as one while it has GPU instances"):
            seen.unpartition(CARD.uuid)
        assert seen.existing(CARD.uuid) == (made,)


def disk_full(_descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    file = tmp_path / "partitions.json"
    file.write_text("{")
    with pytest.raises(ToolFailed, match=r"partitions\.json, cannot be read"):
        SimulatedPartitioner([CARD], file).existing(CARD.uuid)
    with pytest.raises(ToolFailed, match="cannot be written"):
        SimulatedPartitioner([CARD], tmp_path / "nowhere/partitions.json").create(place(smallest().name, 1))
    monkeypatch.setattr("hami_dra.discovery.durable.os.fsync", disk_full)
    with pytest.raises(ToolFailed, match=r"uncut-cards\.json cannot be written: No space left on device"):
        SimulatedPartitioner([CARD], tmp_path / "nowhere/partitions.json").unpartition(CARD.uuid)
