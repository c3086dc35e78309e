"""The search for moves within the controller's budget, in clusters of more nodes than it can try."""

import random
from typing import Final

import pytest

from controller.insight.defrag import Goal
from controller.insight.defrag.plan import _Planner, _quiet
from controller.moves import Mover, Places
from controller.preemption import OutOfSteps
from controller.reconcile.preemption.defragmenter import _NODES, _STEPS
from tests.support.gang_objects import REQUIRED_TOPOLOGY, annotated, in_labelled_group
from tests.support.scattered import PACKED, Scattered

CARDS: Final = 8
SIZE: Final = 16
MEMBERS: Final = 4
RACK: Final = "rack"


def scattered(nodes, seed, *, filled, pinned=0.0, rack=0, members=MEMBERS):
    """Pods of one card each on most cards of a cluster, of which some may not move. Whole nodes are wanted for a gang."""
    chance = random.Random(seed)
    names = [f"n{number:03}" for number in range(nodes)]
    found = Scattered(**{name: [SIZE] * CARDS for name in names})
    for raw in found.raws:
        if raw["kind"] == "Node" and rack:
            raw["metadata"]["labels"][RACK] = f"r{names.index(raw['metadata']['name']) // rack}"
    cards = [(name, index) for name in names for index in range(CARDS)]
    for number, (name, index) in enumerate(chance.sample(cards, int(filled * len(cards)))):
        owners = [] if chance.random() < pinned else None
        found.run(f"p{number}", name, [index], SIZE, cpu="100m", owners=owners)
    for number in range(members):
        found.wait(f"m{number}", CARDS, SIZE, cpu="100m")
        member = in_labelled_group(found.raws[-1], "team", members)
        found.raws[-1] = annotated(member, {REQUIRED_TOPOLOGY: RACK}) if rack else member
    return found


def least_moves(found, rack, members=MEMBERS):
    """The pods on the nodes that have the fewest, all of which may move; within one rack, if there are racks."""
    used, pinned = dict.fromkeys(found.cards, 0), set()
    for raw in found.raws:
        if raw["kind"] == "Pod" and "nodeName" in raw["spec"]:
            used[raw["spec"]["nodeName"]] += 1
            if not raw["metadata"]["ownerReferences"]:
                pinned.add(raw["spec"]["nodeName"])
    names = [*found.cards]
    racks = [names[at : at + rack] for at in range(0, len(names), rack)] if rack else [names]
    emptied = [sorted(used[name] for name in own if name not in pinned)[:members] for own in racks]
    return min(sum(each) for each in emptied if len(each) == members)


def searched(found, most):
    """The number of moves that the controller's budget finds."""
    planner = _Planner(found.documents(), PACKED, Goal(pod="default/m0"), _quiet)
    left = _STEPS

    def charge(decisions):
        nonlocal left
        left -= decisions
        if left < 0:
            raise OutOfSteps

    by_uid = {each.uid: each for each in planner.movables.pods}
    mover = Mover(planner.state.view.inventory, (), planner.mover.options, 0, charge=charge)
    unit = planner.state.unit
    best = Places(planner.preemption, unit, mover, lambda pod: by_uid.get(pod.metadata.uid), _NODES).best(most)
    return len(best[1].moved) if best is not None else 0


@pytest.mark.parametrize(
    "options",
    [
        {"filled": 0.8},
        {"filled": 0.8, "rack": 20},
        {"filled": 0.8, "pinned": 0.2},
        {"filled": 0.95},
        {"filled": 0.8, "rack": 10},
        {"filled": 0.8, "rack": 5},
        {"filled": 0.8, "pinned": 0.05, "rack": 10},
    ],
)
def test_a_gang_gets_the_nodes_with_the_fewest_pods_to_move_within_the_budget(options):
    found = scattered(200, 1, **options)
    assert searched(found, MEMBERS * CARDS) == least_moves(found, options.get("rack", 0))
