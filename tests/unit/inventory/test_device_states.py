"""Devices by state: equal numbers for equal states, whatever happens, and sums by node in both ways."""

import random

import numpy as np
import pytest

from controller.inventory import device_states
from controller.inventory.columns import NOWHERE
from controller.inventory.device_states import DeviceStates, Looks
from tests.support.gang_requests import cluster, occupy


def states_of(inventory):
    states = inventory.derived(DeviceStates, DeviceStates)
    states.refresh()
    return states


@pytest.mark.parametrize("most", [1, 3, 1 << 15])
def test_equal_states_have_equal_numbers_also_when_all_are_numbered_again(monkeypatch, most):
    monkeypatch.setattr(device_states, "_MOST", most)
    draw, inventory = random.Random(1), cluster(6, 2)
    for step in range(12):
        occupy(inventory, f"n{draw.randrange(6):02}", 1, first=draw.randrange(2), memory=f"{1 + step % 4}Gi")
        states, devices = states_of(inventory), inventory.devices
        found = [*devices.states_of(np.arange(devices.size))]
        numbers = states.number[: devices.size].tolist()
        assert len({*zip(found, numbers, strict=True)}) == len({*found}) == len({*numbers})
        assert max(numbers) < len(states)
    assert (states.numbering > 0) == (most < 1 << 15)


def test_looks_follow_states_codes_and_nodes():
    inventory = cluster(3, 2)
    occupy(inventory, "n01", 1)
    codes = np.zeros(inventory.devices.size, dtype=np.uint8)
    looks = states_of(inventory).looks(codes)
    assert states_of(inventory).looks(codes) is looks
    keys = [*inventory.devices.states_of(np.arange(6))]
    assert all(keys[looks.rows[place]] == key for place, key in zip(looks.places.tolist(), keys, strict=True))
    codes[0] = 7
    assert len(states_of(inventory).looks(codes).rows) == len(looks.rows) + 1
    occupy(inventory, "n02", 1)
    assert states_of(inventory).looks(np.zeros(6, dtype=np.uint8)) is not looks


@pytest.mark.parametrize("few", [0, 64])
def test_sums_by_node_with_and_without_counts(monkeypatch, few):
    monkeypatch.setattr(device_states, "_FEW", few)
    places = np.array([0, 1, 1, 0, 2])
    looks = Looks(np.array([0, 1, 4]), places, np.array([0, 0, 1, NOWHERE, -2]), 3)
    assert looks.by_node(np.array([5, 7, 9])).tolist() == [12, 7, 0]
    assert looks.nowhere.tolist() == [1, 0, 0]
