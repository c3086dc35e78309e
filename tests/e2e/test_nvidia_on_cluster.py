"""NVIDIA on a real control plane: islands across nodes, required links, MIG; the examples in both forms."""

from hami_dra.driver.simulated import machine
from tests.e2e.lab import EXAMPLES
from tests.e2e.objects import legacy_pod, part, pod, request, template

H100, H200, PAIRS, PCIE, MIG = "dgx-h100", "hgx-h200", "v100-pairs-8", "l40s-pcie-8", "a2-ultragpu-2g-mig"
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
REQUIRED = {"hami.io/gpu-topology": "required"}
IN_PARTS = {"nvidia.com/vgpu-mode": "mig"}


def uuids(machine_name, node_name, *numbers):
    return ",".join(card.uuid for card in machine(machine_name, node_name).cards if card.index in numbers)


def devices(placement):
    """Without their pool, which is the node."""
    return sorted(device.rpartition("/")[2] for device in placement.devices)


def test_topology_across_nodes_in_both_forms(lab):
    """Four are free on `b`: an island that fits goes before splitting the eight of `a`; then one card of no island."""
    lab.machines(H100, "a", "b")
    lab.machines(PCIE, "c")
    held = {"nvidia.com/use-gpuuuid": uuids(H100, "b", 0, 2, 4, 6)}
    lab.create(legacy_pod("holds", gpu=4, annotations=held))
    lab.wait_running(names=["holds"])
    lab.create(legacy_pod("four", gpu=4, annotations=TOPOLOGY))
    lab.wait_running(names=["four"])
    assert lab.placement("four").node == "b"
    assert devices(lab.placement("four")) == ["gpu-1", "gpu-3", "gpu-5", "gpu-7"]
    whole = request(device_class="nvidia-gpu.hami.io", count=1)
    lab.create(template("one", whole, annotations=TOPOLOGY), pod("one", templates=["one"]))
    lab.wait_running(names=["one"])
    assert lab.placement("one").node == "c"
    assert {lab.bound_by(name) for name in ("four", "one")} == {"default-scheduler"}
    assert lab.overcommitted() == []


def test_required_waits_for_cards_that_nvlink_joins(lab):
    lab.machines(PCIE, "pcie")
    lab.machines(PAIRS, "pairs")
    own = template("four", request(device_class="nvidia-gpu.hami.io", count=4), annotations=REQUIRED)
    lab.create(own, legacy_pod("legacy", gpu=4, annotations=REQUIRED), pod("claims", templates=["four"]))
    for name in ("legacy", "claims"):
        lab.wait_event(name, "FilteringFailed", "TopologyNotFit")
    lab.create(legacy_pod("pair", gpu=2, annotations=REQUIRED))
    lab.wait_running(names=["pair"])
    assert lab.placement("pair").node == "pairs"
    lab.machines(H100, "switch")
    lab.wait_running(names=["legacy", "claims"])
    assert {lab.placement(name).node for name in ("legacy", "claims")} == {"switch"}
    assert lab.overcommitted() == []


def test_a_card_is_cut_or_shared(lab):
    """The seed's dynamic MIG: the smallest instance that holds the request. A card that is cut is not shared any more."""
    lab.machines(MIG, "mig")
    first = {"nvidia.com/use-gpuuuid": uuids(MIG, "mig", 0)}
    volcano = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "15000"}
    lab.create(
        legacy_pod("small", gpu=1, gpumem=8000, annotations={**IN_PARTS, **first}),
        pod("volcano", annotations={"volcano.sh/vgpu-mode": "mig", **first}, resources={"limits": volcano}),
    )
    lab.wait_running(names=["small", "volcano"])
    assert [device.rpartition("-")[0] for device in devices(lab.placement("small"))] == ["gpu-0-mig-1g-10gb"]
    assert [device.rpartition("-")[0] for device in devices(lab.placement("volcano"))] == ["gpu-0-mig-1g-20gb"]
    core = {"nvidia.com/vgpu-mode": "hami-core"}
    lab.create(legacy_pod("shared", gpu=1, gpumem=8000, annotations=core))
    lab.wait_running(names=["shared"])
    assert devices(lab.placement("shared")) == ["gpu-1"]
    # the other way round: the shared card is not cut
    second = {"nvidia.com/use-gpuuuid": uuids(MIG, "mig", 1)}
    lab.create(legacy_pod("late", gpu=1, gpumem=8000, annotations={**IN_PARTS, **second}))
    lab.wait_event("late", "FilteringFailed")
    lab.create(template("part", part("2Gi"), annotations=second), pod("beside", templates=["part"]))
    lab.wait_running(names=["beside"])
    assert devices(lab.placement("beside")) == ["gpu-1"]
    assert lab.overcommitted() == []


def test_the_examples_by_resource_names(lab):
    lab.machines(H100, "h100")
    lab.machines(H200, "h200")
    lab.machines(MIG, "mig")
    lab.apply_file(EXAMPLES / "nvidia" / "legacy.yaml")
    names = ["one-numa-node", "tensor-parallel", "gpu-topology-aware-job", "mig", "volcano-mig"]
    lab.wait_running(names=names)
    found = {name: lab.placement(name) for name in names}
    assert {found[name].node for name in ("mig", "volcano-mig")} == {"mig"}
    assert "-mig-1g-10gb-" in devices(found["mig"])[0]
    assert "-mig-2g-20gb-" in devices(found["volcano-mig"])[0]
    assert found["one-numa-node"].node == "h100"
    assert {int(device[-1]) // 4 for device in devices(found["one-numa-node"])} in ({0}, {1})
    assert {len(devices(found[name])) for name in ("tensor-parallel", "gpu-topology-aware-job")} == {4}
    assert lab.overcommitted() == []


def test_the_examples_by_claims(lab):
    lab.machines(H100, "h100")
    lab.machines(MIG, "mig")
    lab.apply_file(EXAMPLES / "nvidia" / "claims.yaml")
    names = ["tensor-parallel-by-claim", "one-numa-node-by-claim", "mig-by-claim"]
    lab.wait_running(names=names)
    assert lab.placement("tensor-parallel-by-claim").node == "h100"
    small, large = sorted(devices(lab.placement("mig-by-claim")), key=lambda device: "3g" in device)
    assert "-mig-1g-10gb-" in small
    assert "-mig-3g-40gb-" in large
    assert lab.overcommitted() == []
