"""AWS Neuron on a real control plane: HAMi's examples in both forms, blocks, cores. Native mode: test_native.py."""

import pytest

from tests.e2e.lab import EXAMPLES
from tests.e2e.objects import pod, request, template

INF2, TRN1 = "inf2.48xlarge", "trn1.32xlarge"
DEVICES = "neuron-device.hami.io"


def numbers(placement):
    return [int(device.partition("/neuron-")[2]) for device in placement.devices]


def neighbours(found):
    return found == list(range(found[0], found[0] + len(found)))


@pytest.mark.parametrize("machine", [INF2, TRN1])
def test_hamis_examples_as_they_are(lab, machine):
    lab.machines(machine, "n")
    lab.apply_file(EXAMPLES / "neuron" / "legacy.yaml")
    lab.wait_running(names=["neuron-devices", "neuron-core"])
    block = numbers(lab.placement("neuron-devices"))
    assert len(block) == 4
    assert neighbours(block)
    assert machine == INF2 or block[0] % 4 == 0
    (claim,) = [item for item in lab.claims() if "neuron-core" in item["metadata"]["name"]]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["neuroncores"] == "1"
    assert {lab.bound_by(name) for name in ("neuron-devices", "neuron-core")} == {"default-scheduler"}
    assert lab.overcommitted() == []


def test_the_same_by_claims_and_three_neighbours(lab):
    lab.machines(INF2, "inf2")
    lab.machines(TRN1, "trn1")
    lab.apply_file(EXAMPLES / "neuron" / "claims.yaml")
    names = ["neuron-devices-by-claim", "neuron-core-by-claim", "inferentia-neighbours"]
    lab.wait_running(names=names)
    three = lab.placement("inferentia-neighbours")
    assert three.node == "inf2"
    assert len(numbers(three)) == 3
    assert all(neighbours(numbers(lab.placement(name))) for name in names)
    assert lab.overcommitted() == []


def test_trainium_gives_rows_or_nothing(lab):
    lab.machines(TRN1, "trn1")
    lab.create(*(template(f"t{count}", request(device_class=DEVICES, count=count)) for count in (3, 8)))
    lab.create(pod("three", templates=["t3"]))
    lab.wait_event("three", "FilteringFailed", "NumaNotFit")
    lab.create(pod("first", templates=["t8"]), pod("second", templates=["t8"]))
    lab.wait_running(names=["first", "second"])
    assert sorted(numbers(lab.placement(name)) for name in ("first", "second")) == [list(range(8)), list(range(8, 16))]
