"""What the driver says about an NVIDIA card; the other vendors: test_vendors_published.py."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Machine, PcieDistance
from hami_dra.api.options import InvalidOption
from hami_dra.api.quantity import Quantity
from hami_dra.driver.limits import check_pools
from hami_dra.driver.simulated import UnknownMachine, machine, machine_names
from hami_dra.driver.simulated.machines import DRIVERS, NotPublishedBy, foreign_devices
from hami_dra.driver.slices import machine_pools, pool_of, slice_bodies
from hami_dra.topology.islands import islands
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from hami_dra.vendors.nvidia.records import GpuRecord
from hami_dra.vendors.publishing import Unpublishable, version
from tests.support.settings import vendor_settings
from tests.support.slice_limits import check_slice

MIB = 1 << 20
OURS = ("dgx-1", "dgx-a100", "dgx-h100", "g4dn.12xlarge", "g5.12xlarge", "hgx-h200", "l40s-pcie-8", "v100-pairs-8")


def devices(name, sharing=None):
    return NvidiaPublishing().devices(machine(name, "n1").cards, sharing or vendor_settings())


def values(device):
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


@pytest.mark.parametrize(
    ("name", "count", "product", "mebibytes"),
    [
        ("g4dn.12xlarge", 4, "Tesla T4", 15360),
        ("g5.12xlarge", 4, "NVIDIA A10G", 23028),
        ("dgx-h100", 8, "NVIDIA H100 80GB HBM3", 81559),
        ("l40s-pcie-8", 8, "NVIDIA L40S", 46068),
        ("dgx-a100", 8, "NVIDIA A100-SXM4-80GB", 81920),
        ("hgx-h200", 8, "NVIDIA H200", 143771),
        ("v100-pairs-8", 8, "Tesla V100-SXM2-16GB", 16160),
        ("dgx-1", 8, "Tesla V100-SXM2-32GB", 32510),
    ],
)
def test_reference_machines(name, count, product, mebibytes):
    published = devices(name)
    assert [device["name"] for device in published] == [f"gpu-{index}" for index in range(count)]
    for index, device in enumerate(published):
        assert values(device)["hami.io/productName"] == product
        assert values(device)["hami.io/index"] == index
        assert Quantity.parse(device["capacity"]["memory"]["value"]).value() == mebibytes * MIB


def test_uuids_are_the_same_every_time_and_differ_between_nodes():
    first = [card.uuid for card in machine("dgx-h100", "a").cards]
    assert first == [card.uuid for card in machine("dgx-h100", "a").cards]
    other = [card.uuid for card in machine("dgx-h100", "b").cards]
    assert len({*first, *other}) == 16
    assert all(uuid.startswith("GPU-") for uuid in first)


def test_an_unknown_machine_names_the_choices():
    with pytest.raises(UnknownMachine, match=r"'dgx-h1000'.*choose one of: .*dgx-h100, g4dn"):
        machine("dgx-h1000", "n1")


def test_nvswitch_is_one_island_with_eighteen_lanes_to_everybody():
    published = devices("dgx-h100")
    assert {values(device)["hami.io/linkGroup"] for device in published} == {1}
    assert values(published[2])["hami.io/links"] == "ii-iiiii"
    assert values(published[2])["hami.io/distance"] == "CC-CXXXX"
    assert [values(device)["resource.kubernetes.io/numaNode"] for device in published] == [0] * 4 + [1] * 4


def test_pairs_are_islands_and_a_mesh_is_one_with_its_lanes_as_they_are():
    pairs = devices("v100-pairs-8")
    assert [values(device)["hami.io/linkGroup"] for device in pairs] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert values(pairs[3])["hami.io/links"] == "002-0000"
    mesh = devices("dgx-1")
    assert {values(device)["hami.io/linkGroup"] for device in mesh} == {1}
    # nvidia-smi topo -m of a DGX-1: GPU2 has NV1 NV2 X NV2 SYS SYS NV1 SYS
    assert values(mesh[2])["hami.io/links"] == "12-20010"
    assert all(sum(int(lanes) for lanes in values(device)["hami.io/links"].replace("-", "")) == 6 for device in mesh)


def test_cards_below_several_switches():
    published = devices("dgx-a100")
    assert values(published[0])["hami.io/distance"] == "-MXXXXXX"
    assert values(published[7])["hami.io/links"] == "ccccccc-"


def test_pcie_only_has_no_island_and_distances_by_switch_socket_and_machine():
    published = devices("l40s-pcie-8")
    assert all("hami.io/linkGroup" not in device["attributes"] for device in published)
    assert values(published[0])["hami.io/links"] == "-0000000"
    assert values(published[0])["hami.io/distance"] == "-SCCXXXX"
    assert values(devices("g4dn.12xlarge")[1])["hami.io/distance"] == "H-HH"


def test_sharing_policy_of_a_card():
    capacity = devices("g4dn.12xlarge")[0]["capacity"]
    assert capacity["memory"]["requestPolicy"] == {
        "default": "15Gi",
        "validRange": {"min": "1Mi", "max": "15Gi", "step": "1Mi"},
    }
    assert capacity["cores"] == {
        "value": "100",
        "requestPolicy": {"default": "100", "validRange": {"min": "0", "max": "100", "step": "1"}},
    }
    assert capacity["shares"] == {"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}}
    assert devices("g4dn.12xlarge")[0]["allowMultipleAllocations"] is True


def test_scaling_is_exact_and_keeps_whole_mebibytes():
    capacity = devices(
        "g5.12xlarge", vendor_settings(slots=4, memory_scaling=Fraction("1.8"), core_scaling=Fraction(2))
    )[0]["capacity"]
    assert Quantity.parse(capacity["memory"]["value"]).value() == (23028 * 18 // 10) * MIB
    assert capacity["cores"]["value"] == "200"
    assert capacity["cores"]["requestPolicy"]["default"] == "100"
    assert capacity["cores"]["requestPolicy"]["validRange"]["max"] == "100"
    assert capacity["shares"]["value"] == "4"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slots": 0}, "--slots: 0 is not a whole number from 1 to 1000000"),
        ({"memory_scaling": 0}, "--memory-scaling: 0 is not a number above 0"),
        ({"memory_scaling": "much"}, "--memory-scaling: 'much' is not a number such as 1.5"),
        ({"core_scaling": "1/1000"}, "--core-scaling: '1/1000' is not a number of at least 1/100"),
    ],
)
def test_impossible_sharing_is_refused_by_name(wrong, named):
    with pytest.raises(InvalidOption, match=named):
        vendor_settings(**wrong)


def test_memory_that_is_not_whole_mebibytes_is_rounded_down():
    card = replace(machine("g4dn.12xlarge", "n1").cards[0], memory=15360 * MIB + 4097)
    (device,) = NvidiaPublishing().devices([card], vendor_settings())
    assert device["capacity"]["memory"]["value"] == "15Gi"


def test_a_card_without_memory_cannot_be_published():
    card = replace(machine("g4dn.12xlarge", "n1").cards[0], memory=4096)
    with pytest.raises(Unpublishable, match="4096 bytes"):
        NvidiaPublishing().devices([card], vendor_settings())


def test_what_is_not_known_is_left_out():
    card = GpuRecord(vendor="nvidia", index=3, uuid="GPU-x", product="Card", memory=1 << 34, driver_version="n/a")
    (device,) = NvidiaPublishing().devices([card], vendor_settings())
    assert values(device) == {
        "hami.io/vendor": "nvidia",
        "hami.io/uuid": "GPU-x",
        "hami.io/productName": "Card",
        "hami.io/index": 3,
        "hami.io/links": "000-",
        "hami.io/distance": "000-",
        "type": "gpu",
    }


def test_a_missing_card_leaves_the_indices_of_the_others_alone():
    cards = [card for card in machine("dgx-h100", "n1").cards if card.index != 1]
    published = NvidiaPublishing().devices(cards, vendor_settings())
    assert [device["name"] for device in published][:3] == ["gpu-0", "gpu-2", "gpu-3"]
    assert len(values(published[0])["hami.io/links"]) == 8
    assert values(published[0])["hami.io/linkGroup"] == 1


def test_long_texts_are_cut_but_never_inside_a_character():
    card = Card(vendor="nvidia", index=0, uuid="GPU-x", product="x" + "ü" * 40, memory=1 << 34)
    (device,) = NvidiaPublishing().devices([card], vendor_settings())
    assert values(device)["hami.io/productName"] == "x" + "ü" * 31


def test_a_uuid_is_never_cut():
    card = Card(vendor="nvidia", index=7, uuid="G" * 65, product="x", memory=1 << 34)
    with pytest.raises(Unpublishable, match="card 7"):
        NvidiaPublishing().devices([card], vendor_settings())


def test_more_than_64_cards_go_without_matrices():
    cards = [
        Card(
            vendor="nvidia",
            index=index,
            uuid=f"GPU-{index}",
            product="x",
            memory=1 << 34,
            distances={0: PcieDistance.BOARD},
        )
        for index in range(65)
    ]
    published = NvidiaPublishing().devices(cards, vendor_settings())
    assert "hami.io/links" not in published[0]["attributes"]
    assert all(not check_slice(body) for body in slice_bodies([pool_of("nvidia.hami.io", "n1", published)]))


def test_lanes_beyond_one_digit_are_the_highest_digit():
    cards = [
        Card(vendor="nvidia", index=0, uuid="a", product="x", memory=1 << 34, links={1: 72}),
        Card(vendor="nvidia", index=1, uuid="b", product="x", memory=1 << 34, links={0: 10}),
    ]
    published = NvidiaPublishing().devices(cards, vendor_settings())
    assert [values(device)["hami.io/links"] for device in published] == ["-z", "a-"]


@pytest.mark.parametrize(
    ("text", "semantic"),
    [("550.90.07", "550.90.7"), ("9.0", "9.0.0"), ("12.4", "12.4.0"), ("535.104.05.01", "535.104.5"), ("8", "8.0.0")],
)
def test_vendor_versions_become_semantic(text, semantic):
    assert version(text) == {"version": semantic}


@pytest.mark.parametrize("text", ["", "n/a", "v", "-"])
def test_what_is_no_version_is_none(text):
    assert version(text) is None


@pytest.mark.parametrize("name", OURS)
def test_everything_published_is_inside_the_limits(name):
    bodies = slice_bodies(machine_pools(machine(name, "n1")))
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)


def test_quantities_are_written_as_the_server_writes_them():
    def quantities(value):
        if isinstance(value, dict):
            for key, item in value.items():
                if key in ("value", "default", "min", "max", "step"):
                    yield item
                elif key == "validValues":
                    yield from item
                else:
                    yield from quantities(item)

    for name in OURS:
        for device in devices(name, vendor_settings(memory_scaling=Fraction("1.37"))):
            for text in quantities(device["capacity"]):
                assert str(Quantity.parse(text)) == text


def test_cards_without_a_driver_of_ours_are_refused_by_name():
    stranger = replace(machine("g5.12xlarge", "n1").cards[0], vendor="nobody")
    with pytest.raises(Unpublishable, match=r"node n1 \(odd\).*'nobody'.*drivers for: nvidia, metax"):
        machine_pools(Machine(name="n1", instance_type="odd", cpu=1, memory=1, cards=(stranger,)))


# --- other people's drivers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_imitated_slices_are_inside_the_limits(driver):
    vendor, _ = DRIVERS[driver]
    for name in machine_names():
        found = machine(name, "n1")
        if found.cards[0].vendor == vendor:
            bodies = slice_bodies([pool_of(driver, "n1", foreign_devices(driver, found))])
            assert not [str(violation) for body in bodies for violation in check_slice(body)]


def test_neuron_groups_are_blocks_of_the_grid():
    published = foreign_devices("neuron.aws.com", machine("trn1.32xlarge", "n1"))
    for size in (4, 8, 16):
        groups = [values(device)[f"resource.aws.com/devicegroup{size}_id"] for device in published]
        assert [groups.count(group) for group in groups] == [size] * 16
        assert groups == sorted(groups, key=groups.index)
    assert len({values(device)["resource.aws.com/devicegroup1_id"] for device in published}) == 16
    other = foreign_devices("neuron.aws.com", machine("trn1.32xlarge", "n2"))
    name = "resource.aws.com/devicegroup16_id"
    assert values(other[0])[name] != values(published[0])[name]


def test_inferentia_has_no_grid_and_nothing_is_shared():
    published = foreign_devices("neuron.aws.com", machine("inf2.48xlarge", "n1"))
    assert len(published) == 12
    assert all("resource.aws.com/devicegroup4_id" not in device["attributes"] for device in published)
    assert all("allowMultipleAllocations" not in device for device in published)


def test_an_imitation_says_what_it_cannot_publish():
    with pytest.raises(NotPublishedBy, match=r"dgx-h100 has no cards that neuron.aws.com publishes"):
        foreign_devices("neuron.aws.com", machine("dgx-h100", "n1"))
    with pytest.raises(NotPublishedBy, match=r"'gpu.amd.com'; choose one of: gpu.nvidia.com"):
        foreign_devices("gpu.amd.com", machine("dgx-h100", "n1"))


# --- islands ---------------------------------------------------------------------------------------------------------


def test_islands_are_components_and_lonely_cards_are_in_none():
    links = {0: {1: 4}, 1: {0: 4}, 2: {3: 2}, 3: {}, 4: {4: 9}, 5: {9: 1}}
    assert islands(links) == ((0, 1), (2, 3))
    assert islands({0: {1: 0}, 1: {}}) == ()
