"""Whatever a vendor's tool prints, its parser gives cards that can be published or an error that says what was expected."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.hardware import Card
from hami_dra.discovery.backend import Listing
from hami_dra.discovery.errors import Unreadable
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.vendors.ascend import discovery as ascend
from hami_dra.vendors.ascend.table import parse_table as ascend_table
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.publishing import common_attributes
from tests.support.examples import examples
from tests.support.mutations import mutated
from tests.support.tools import FIXTURES


def enflame_cards(text):
    """Each listing alone: as the other one's gap filler it is parsed all the same."""
    listing = enflame.parse_query(text) if "DEV ID" in text else enflame.parse_table(text)
    return enflame.join(listing, enflame.Devices())


def ascend_cards(text):
    """The table alone: no identities and no matrix."""
    return ascend.join(ascend_table(text), {}, None, [])


PARSERS = {
    "ascend": (ascend_cards, ["ascend/info.910b3.txt", "ascend/info.310p3.two-chips.txt"]),
    "ascend board": (ascend.parse_board, ["ascend/board.txt", "ascend/board.old.txt"]),
    "ascend topology": (ascend.parse_topology, ["ascend/topo.mesh.txt", "ascend/topo.pcie.txt"]),
    "metax list": (lambda text: metax.parse_list(text, ListingReader("mx-smi -L")), ["metax/list.txt"]),
    "metax table": (metax.parse_table, ["metax/table.v2.1.txt", "metax/table.v2.3.txt"]),
    "metax dmon": (metax.parse_memory, ["metax/dmon.csv"]),
    "metax topology": (metax.parse_topology, ["metax/topology.txt", "metax/topology.pcie.txt"]),
    "kunlunxin xml": (kunlunxin.parse_xml, ["kunlunxin/query.oam.xml"]),
    "kunlunxin text": (kunlunxin.parse_query, ["kunlunxin/query.pcie.txt"]),
    "kunlunxin columns": (kunlunxin.parse_columns, ["kunlunxin/columns.txt"]),
    "neuron json": (neuron.parse_json, ["neuron/devices.synthetic.json", "neuron/device.single.json"]),
    "neuron table": (neuron.parse_table, ["neuron/table.txt"]),
    "enflame": (
        enflame_cards,
        ["enflame/query.txt", "enflame/query.old.txt", "enflame/table.txt", "enflame/table.old.txt"],
    ),
    "enflame topology": (enflame.parse_topology, ["enflame/topology.synthetic.txt"]),
}
TEXTS = {
    name: [(FIXTURES / path).read_text(encoding="utf-8") for path in paths] for name, (_, paths) in PARSERS.items()
}


def check_card(card: Card) -> None:
    assert 0 <= card.index <= 4095
    assert re.fullmatch(r"[!-~]{1,64}", card.uuid)
    assert card.product
    assert card.product.isprintable()
    assert 0 < card.memory <= 1 << 50
    assert not card.pci_bus_id or re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", card.pci_bus_id)
    assert all(lanes > 0 for lanes in card.links.values())
    if isinstance(card, NeuronRecord):
        assert card.cores > 0
        assert 0 <= card.logical_cores <= card.cores


def check(name, text):
    try:
        found = PARSERS[name][0](text)
    except Unreadable as error:
        message = str(error)
        found = None
    if found is None:
        assert "expected" in message
        assert message.isprintable()
    if isinstance(found, Listing):
        for card in found.cards:
            check_card(card)
        common_attributes(found.cards)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=examples(75))
@given(data=st.data())
def test_mishaps(name, data):
    check(name, data.draw(mutated(TEXTS[name])))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=examples(50))
@given(text=st.one_of(st.text(), st.binary().map(lambda raw: raw.decode(errors="replace"))))
def test_anything(name, text):
    check(name, text)


@pytest.mark.parametrize("name", PARSERS)
def test_every_cut(name):
    """Output that breaks off, at every line end and in the middle of each line."""
    for text in TEXTS[name]:
        ends = [match.end() for match in re.finditer("\n", text)]
        for end in ends:
            check(name, text[:end])
            check(name, text[: max(0, end - 20)])


@pytest.mark.parametrize("name", PARSERS)
def test_line_ends_of_another_system(name):
    for text in TEXTS[name]:
        check(name, text.replace("\n", "\r\n"))
