"""What containers get of MetaX, Kunlunxin, Neuron and Enflame cards, and what all vendors have in common."""

import pytest

from hami_dra.api.containers import DeviceNode, Edits, Folder, Mount, Unpreparable, takes_all
from hami_dra.driver.simulated import machine, machine_names
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.registry import CONTAINER_VENDORS, PUBLISHING_VENDORS, containers
from tests.support.containers import GIB, PretendHost, card, place, tenancy
from tests.support.settings import vendor_settings


def paths(edits):
    return [node.path for node in edits.device_nodes]


# --- MetaX ---

METAX_NODES = ("/dev/mxcd", "/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/card2", "/dev/dri/renderD129")
DRM = {
    "/sys/bus/pci/devices/0000:08:00.0/drm": ("card1", "renderD128", "version"),
    "/sys/bus/pci/devices/0000:0e:00.0/drm": ("card2", "renderD129"),
}


def metax_card(index, bus="0000:08:00.0"):
    return card(index, vendor="metax", uuid=f"GPU-m{index}", product="MXC500", memory=64 * GIB, pci_bus_id=bus)


def metax(*tenancies, host=None):
    found = host or PretendHost(*METAX_NODES, folders=DRM)
    return containers("metax").edits(tenancies, place(), found)


def test_a_whole_metax_card():
    edits = metax(tenancy(metax_card(0), whole=True))
    assert edits.env == {}
    assert paths(edits) == ["/dev/mxcd", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert edits.notes == ()


def test_a_container_with_an_sgpu_sees_the_whole_card_and_the_status_says_so():
    """No public source names a variable that a runtime of MetaX reads, so none is set."""
    part = tenancy(metax_card(0), {"memory": 4 * GIB, "cores": 60}, config={"qos": "fixed-share"})
    edits = metax(part, tenancy(metax_card(1, "0000:0e:00.0"), whole=True))
    assert edits.env == {}
    assert len(paths(edits)) == 5
    assert "made on the host" in edits.notes[0]


def test_a_metax_card_without_drm_nodes():
    with pytest.raises(Unpreparable, match=r"/sys/bus/pci/devices/0000:08:00\.0/drm names no device node"):
        metax(tenancy(metax_card(0), whole=True), host=PretendHost("/dev/mxcd"))
    simulated = metax(tenancy(metax_card(0), whole=True), host=PretendHost("/dev/mxcd", nodes_required=False))
    assert paths(simulated) == ["/dev/mxcd"]


# --- Kunlunxin ---


def xpu(index, minor=None):
    return card(index, vendor="kunlunxin", uuid=f"X-{index}", product="P800 OAM", memory=96 * GIB, minor=minor)


def kunlunxin(*tenancies):
    host = PretendHost("/dev/xpuctrl", *(f"/dev/xpu{number}" for number in range(8)))
    return containers("kunlunxin").edits(tenancies, place(), host)


def test_whole_xpus_by_minor_number():
    edits = kunlunxin(tenancy(xpu(5), whole=True), tenancy(xpu(1, minor=2), whole=True))
    assert edits.env == {"CXPU_VISIBLE_DEVICES": "2,5"}
    assert paths(edits) == ["/dev/xpu2", "/dev/xpuctrl", "/dev/xpu5"]


def test_a_vxpu_is_limited_in_bytes():
    edits = kunlunxin(tenancy(xpu(3), {"memory": 24 * GIB, "cores": 25}))
    assert edits.env["CXPU_CONTAINER_MEMORY_LIMIT"] == str(24 * GIB)
    assert edits.notes == ()


def test_unequal_vxpus_have_the_smallest_limit():
    edits = kunlunxin(
        tenancy(xpu(3), {"memory": 24 * GIB, "cores": 25}), tenancy(xpu(4), {"memory": 48 * GIB, "cores": 50})
    )
    assert edits.env["CXPU_CONTAINER_MEMORY_LIMIT"] == str(24 * GIB)
    assert "smallest of its shares" in edits.notes[0]


# --- Neuron ---

NEURON = containers("neuron")


def device(index, cores=4):
    return NeuronRecord(
        vendor="neuron",
        index=index,
        uuid=f"n-{index}",
        product="Trainium",
        memory=32 * GIB,
        cores=cores,
        logical_cores=cores,
    )


def neuron(*tenancies):
    return NEURON.edits(tenancies, place(), PretendHost(*(f"/dev/neuron{number}" for number in range(16))))


def part(of, cores, assigned=None, **more):
    return tenancy(of, {"neuroncores": cores}, assigned={"cores": assigned} if assigned else {}, **more)


def test_whole_neuron_devices():
    edits = neuron(part(device(2), 4, "0,1,2,3"), tenancy(device(3), whole=True))
    assert edits.env == {"AWS_NEURON_VISIBLE_DEVICES": "2,3"}
    assert paths(edits) == ["/dev/neuron2", "/dev/neuron3"]


def test_cores_are_numbered_over_all_devices():
    edits = neuron(part(device(3), 2, "1,2"), part(device(1), 4, "0,1,2,3"))
    assert edits.env == {
        "AWS_NEURON_VISIBLE_DEVICES": "1,3",
        "NEURON_RT_VISIBLE_CORES": "4,5,6,7,13,14",
    }


def test_cores_that_nobody_assigned_are_refused():
    with pytest.raises(Unpreparable, match="request 'r' has; the claim must be prepared again"):
        neuron(part(device(0), 2))
    with pytest.raises(Unpreparable, match="prepared again"):
        neuron(part(device(0), 2, "3,4"))


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        ([], 1, "0"),
        ([], 4, "0,1,2,3"),
        (["0"], 2, "1,2"),
        (["1"], 1, "0"),  # the smallest gap
        (["1", "0"], 2, "2,3"),
        (["1"], 2, "2,3"),
        (["0,2"], 2, "1,3"),  # no neighbours are left
        (["0", "1", "2"], 1, "3"),
    ],
)
def test_which_cores_a_share_gets(held, wanted, expected):
    assigned = NEURON.assign(part(device(0), wanted), [{"cores": cores} for cores in held])
    assert assigned == {"cores": expected}


def test_cores_that_are_held_are_not_given_again():
    with pytest.raises(Unpreparable, match="2 NeuronCores are allocated, but 3 of its 4 are held"):
        NEURON.assign(part(device(0), 2), [{"cores": "0,1"}, {"cores": "3"}])


def test_who_looks_on_holds_no_cores():
    assert neuron(tenancy(device(1), {"neuroncores": 1}, admin=True)).env == {"AWS_NEURON_VISIBLE_DEVICES": "1"}


def test_a_device_without_an_amount_has_all_its_cores():
    assert NEURON.assign(tenancy(device(0), whole=True), []) == {"cores": "0,1,2,3"}


# --- Enflame ---


def gcu(index, product="Enflame S60"):
    return card(index, vendor="enflame", uuid=f"e-{index}", product=product, memory=48 * GIB)


def enflame(*tenancies):
    host = PretendHost("/dev/gcuctl", *(f"/dev/gcu{number}" for number in range(8)))
    return containers("enflame").edits(tenancies, place(), host)


def test_whole_gcus():
    edits = enflame(tenancy(gcu(1), whole=True), tenancy(gcu(0), whole=True))
    assert edits.env == {"ENFLAME_VISIBLE_DEVICES": "0,1"}
    assert paths(edits) == ["/dev/gcu0", "/dev/gcu1", "/dev/gcuctl"]


def test_the_share_of_a_slice():
    edits = enflame(tenancy(gcu(1), {"memory": 24 * GIB, "cores": 50, "slices": 2}))
    assert edits.env == {
        "ENFLAME_VISIBLE_DEVICES": "1",
        "ENFLAME_CONTAINER_SUB_CARD": "true",
        "ENFLAME_CONTAINER_USABLE_GLOBAL_MEM": "24",
        "ENFLAME_CONTAINER_USABLE_PROCESSOR": "12",
    }


def test_processors_of_an_unknown_gcu_are_not_guessed():
    edits = enflame(tenancy(gcu(1, "Enflame X1"), {"memory": 24 * GIB, "cores": 50}))
    assert "ENFLAME_CONTAINER_USABLE_PROCESSOR" not in edits.env


def test_a_slice_that_enflame_cannot_count_is_refused():
    with pytest.raises(Unpreparable, match="fewer slices"):
        enflame(tenancy(gcu(1), {"memory": GIB - 1, "cores": 5}))


# --- all of them ---


def test_every_vendor_that_publishes_hands_out():
    assert [(vendor.name, vendor.driver) for vendor in CONTAINER_VENDORS] == [
        (vendor.name, vendor.driver) for vendor in PUBLISHING_VENDORS
    ]


@pytest.mark.parametrize("name", machine_names())
def test_every_published_device_of_every_machine_has_a_site(name):
    cards = machine(name, "n1").cards
    for vendor in PUBLISHING_VENDORS:
        own = [card for card in cards if card.vendor == vendor.name]
        published = {device["name"] for device in vendor.devices(own, vendor_settings())}
        assert containers(vendor.name).sites(own).keys() == published


@pytest.mark.parametrize("vendor", [vendor.name for vendor in CONTAINER_VENDORS if vendor.name != "neuron"])
def test_most_vendors_assign_nothing(vendor):
    assert containers(vendor).assign(tenancy(card(0)), []) == {}


@pytest.mark.parametrize(
    ("consumed", "all_of_it"),
    [
        ({}, True),
        ({"memory": 10, "cores": 100, "shares": 1}, True),
        ({"memory": 9, "cores": 100, "shares": 1}, False),
        ({"memory": 10, "cores": 0, "shares": 1}, False),
    ],
)
def test_what_takes_a_card_for_itself(consumed, all_of_it):
    assert takes_all(consumed, {"memory": 10, "cores": 100, "shares": 10}) is all_of_it


@pytest.mark.parametrize(
    "edits",
    [
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A": "x\nB=y"}},
        {"env": {"A": "x\0"}},
        {"device_nodes": (DeviceNode("dev/x"),)},
        {"device_nodes": (DeviceNode("/dev/x", "/a/../b"),)},
        {"mounts": (Mount("/a\n", "/b"),)},
        {"mounts": (Mount("/a", "/b//c"),)},
        {"folders": (Folder("/", 0o700),)},
    ],
)
def test_edits_take_only_plain_texts(edits):
    with pytest.raises(Unpreparable):
        Edits(**edits)
