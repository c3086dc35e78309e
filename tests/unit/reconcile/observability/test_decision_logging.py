"""Log lines about decisions: one per node at level 4, one per card at level 5, as text and as JSON."""

import io
import json
import logging

import pytest

from controller.decide import Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.reconcile.observability import decision_logging
from controller.scoring.policies import Policies
from hami_dra import logs
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of

OPTIONS = Options(managed=frozenset({DRIVER}))


@pytest.fixture
def written():
    """Configures logging and gives what is written; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    named = {name: logging.getLogger(name).level for name in ("controller", "hami_dra", decision_logging.log.name)}
    stream = io.StringIO()

    def configure(verbosity, form):
        logs.configure(verbosity, form, stream)
        return stream

    yield configure
    root.handlers[:], root.level = handlers, level
    for name, value in named.items():
        logging.getLogger(name).setLevel(value)


def decided(memory="20Gi"):
    """n1 and n2 with a card of 24 and one of 16 GiB, n3 cordoned."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for name in ("n1", "n2"):
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, [card(0, memory="24Gi"), card(1)]))
    inventory.node_changed(None, node("n3", unschedulable=True))
    scheduling_request = SchedulingRequest(
        pod=pod("a"), claims=(PodClaim("gpu", claim("c", [request(memory=memory, cores="0")])),), policies=Policies()
    )
    decision_logging.details(inventory, scheduling_request, OPTIONS, decide(inventory, scheduling_request, OPTIONS))


def test_nothing_below_level_4(written):
    stream = written(3, logs.LogFormat.TEXT)
    decided()
    assert stream.getvalue() == ""


def test_level_4_is_one_line_for_each_node(written):
    stream = written(4, logs.LogFormat.TEXT)
    decided()
    lines = [line.partition("hami_dra.decisions: ")[2] for line in stream.getvalue().splitlines()]
    scores = "score=0.0000 shares=0.0000 cores=0.0000 memory=0.0000"
    assert lines == [
        f"NodeFitPod pod=default/a node=n1 {scores} chosen=true",
        f"NodeFitPod pod=default/a node=n2 {scores}",
        "NodeUnfitPod pod=default/a node=n3 reason=NodeUnschedulable",
    ]


def test_level_4_of_a_refusal_counts_cards_as_hami_does(written):
    stream = written(4, logs.LogFormat.JSON)
    decided(memory="30Gi")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["node"]: line["reason"] for line in lines} == {
        "n1": "2/2 CardInsufficientMemory",
        "n2": "2/2 CardInsufficientMemory",
        "n3": "NodeUnschedulable",
    }
    assert {line["code"] for line in lines} == {"NodeUnfitPod"}
    assert {line["pod"] for line in lines} == {"default/a"}


def test_level_5_adds_each_card_with_the_figures_compared(written):
    stream = written(5, logs.LogFormat.JSON)
    decided()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    cards = {(line["node"], line["device"][-5:]): line for line in lines if "device" in line}
    assert len(cards) == 4
    refused, chosen = cards["n1", "gpu-1"], cards["n1", "gpu-0"]
    assert refused["code"] == "CardInsufficientMemory"
    assert refused["figures"] == "asks 20480 MiB of memory, 16384 of 16384 MiB are free"
    assert refused["uuid"] == "GPU-1"
    assert (chosen["code"], chosen["chosen"], chosen["score"]) == ("CardFitPod", "true", "9.3333")
    assert chosen["memory"] == "20480 of 24576 MiB"
    assert chosen["level"] == "v5"
    assert 'figures="asks 20480 MiB of memory' in refused["message"]
