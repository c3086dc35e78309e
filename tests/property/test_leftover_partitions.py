"""Partitions that a container runtime leaves behind, in random lives of claims and containers: none that a container has, or is
about to have, is ever removed; every other one is, once no claim can have it."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import ToolFailed
from hami_dra.driver.node.leftovers import GRACE, LeftoverSources, LeftoverWatch
from hami_dra.kube.guard import LoopGuard
from hami_dra.vendors.ascend.vnpus import parse_vnpus
from tests.support.examples import examples
from tests.support.virtual_time import run
from tests.support.vnpu_listing import FREE, TAKEN, Row, listing

CARD = Card(vendor="ascend", index=0, uuid="die", product="Ascend910B4", memory=32 << 30)
PROFILES = ("vir05_1c_8g", "vir10_3c_16g")
EVERY = 300.0


@dataclass
class Made:
    profile: str
    owner: object = None
    """The container that lives; None: left behind."""
    used: bool = False
    group: int = 0


@dataclass(eq=False)
class Claim:
    profile: str
    containers: int


class Node:
    """A card, its partitions, and the claims that the driver has prepared."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.made: dict[int, Made] = {}
        self.claims: list[Claim] = []
        self.results = Counter()
        self.told = []
        self.silent = self.stuck = self.unknown = False
        self.broken = 0.0
        """How often npu-smi cannot read a vNPU."""

    # --- implements RuntimePartitions ---

    def existing(self, card):
        if self.silent:
            raise ToolFailed("npu-smi gave no answer")
        rows = [
            Row(number, str(made.group), TAKEN if made.used else FREE, int(made.used), made.profile)
            for number, made in sorted(self.made.items())
        ]
        return parse_vnpus(listing(rows, [number for number in self.made if self.dice.random() < self.broken]))

    def destroy(self, card, number):
        assert self.made[number].owner is None, "a container has it"
        if self.stuck:
            raise ToolFailed("the device is busy")
        del self.made[number]

    # --- what happens ---

    def step(self):
        what = self.dice.choice(
            ["prepare", "create", "create", "use", "use", "end", "end", "leak", "unprepare", "trouble"]
        )
        alive = [number for number, made in self.made.items() if made.owner is not None]
        if what == "prepare":
            self.claims.append(Claim(self.dice.choice(PROFILES), self.dice.choice([1, 1, 2])))
        elif what == "create" and self.claims:
            claim = self.dice.choice(self.claims)
            if sum(made.owner is claim for made in self.made.values()) < claim.containers:
                free = next(number for number in range(100, 200) if number not in self.made)
                self.made[free] = Made(claim.profile, claim, group=self.dice.randrange(4))
        elif what == "use" and alive:
            self.made[self.dice.choice(alive)].used = True
        elif what in ("end", "leak") and alive:
            number = self.dice.choice(alive)
            if what == "end":
                del self.made[number]  # the runtime's hook
            else:
                self.made[number].owner, self.made[number].used = None, False
        elif what == "unprepare":
            idle = [claim for claim in self.claims if all(made.owner is not claim for made in self.made.values())]
            if idle:
                self.claims.remove(self.dice.choice(idle))
        elif what == "trouble":
            self.silent, self.stuck, self.unknown = (self.dice.random() < 0.3 for _ in range(3))

    async def held(self):
        found = Counter()
        for claim in self.claims:
            found[CARD.uuid, claim.profile] += claim.containers
        return None if self.unknown else found

    def watch(self, call):
        sources = LeftoverSources(
            cards=lambda: [CARD],
            held=self.held,
            tell=lambda reason, note: self.told.append((asyncio.get_running_loop().time(), reason, note)),
            count=lambda result: self.results.update([result]),
        )
        return LeftoverWatch("ascend.hami.io", self, sources, call)


async def at_once(work):
    await asyncio.sleep(0.1)
    return work()


async def lives(node, steps):
    counted = []
    node.broken = node.dice.choice([0.0, 0.05, 0.5])
    task = asyncio.create_task(node.watch(at_once).run(EVERY, LoopGuard("leftovers", counted.append)))
    for _ in range(steps):
        await asyncio.sleep(node.dice.choice([0.05, 1, 20, 100, 400]))
        node.step()
    node.silent = node.stuck = node.unknown = False
    node.broken = 0.0
    node.claims.clear()
    for made in node.made.values():
        if made.owner is not None:
            made.owner, made.used = None, False  # a crash of the node
    await asyncio.sleep(40 * EVERY)
    task.cancel()
    assert not counted, "an unexpected error"


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 120))
def test_only_what_nobody_has_is_removed_and_all_of_it_in_the_end(seed, steps):
    node = Node(seed)
    run(lives(node, steps))
    assert not node.made
    assert node.results["failed"] == sum(reason == "LeftoverPartitionNotRemoved" for _, reason, _ in node.told)


def removals(node, seconds, change=lambda node: None):
    """Let the watch run; return the times of what it told."""

    async def scenario():
        task = asyncio.create_task(node.watch(at_once).run(EVERY, LoopGuard("leftovers", lambda _: None)))
        await asyncio.sleep(10)
        change(node)
        await asyncio.sleep(seconds - 10)
        task.cancel()

    run(scenario())
    return [at for at, _, _ in node.told]


def test_what_was_left_before_the_start_goes_after_the_grace():
    node = Node(0)
    node.made = {100: Made("vir05_1c_8g"), 101: Made("vir10_3c_16g")}
    first, second = removals(node, EVERY)
    assert GRACE <= first <= second <= GRACE + 2
    assert "100 (vir05_1c_8g) was left behind" in node.told[0][2]


def test_one_that_a_new_claim_may_have_meanwhile_stays():
    node = Node(0)
    node.made = {100: Made("vir05_1c_8g")}
    assert removals(node, 5 * EVERY, lambda node: node.claims.append(Claim("vir05_1c_8g", 1))) == []


def test_the_one_that_is_left_goes_while_all_claims_of_its_profile_use_theirs():
    node = Node(0)
    claim = Claim("vir05_1c_8g", 1)
    node.claims, node.made = [claim], {100: Made("vir05_1c_8g", claim, used=True), 101: Made("vir05_1c_8g")}
    assert len(removals(node, EVERY)) == 1
    assert list(node.made) == [100]


def test_with_partitions_of_someone_else_in_use_nothing_is_certain():
    node = Node(0)
    node.made = {100: Made("vir05_1c_8g", "somebody", used=True), 101: Made("vir05_1c_8g")}
    assert removals(node, 5 * EVERY) == []


def test_a_removal_that_fails_is_told_and_tried_less_and_less_often():
    node = Node(0)
    node.made, node.stuck = {100: Made("vir05_1c_8g")}, True
    times = removals(node, 40 * EVERY)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] < 1.6 * GRACE
    assert max(waits) <= 1.5 * EVERY + 2
    assert 20 < len(times) < 100
    assert {note for _, _, note in node.told} == {node.told[0][2]}, "one event, not one for each try"
    assert "could not be removed: the device is busy" in node.told[0][2]


@pytest.mark.parametrize("trouble", ["silent", "unknown"])
def test_while_cards_or_claims_cannot_be_read_nothing_happens(trouble, caplog):
    node = Node(0)
    node.made = {100: Made("vir05_1c_8g")}
    setattr(node, trouble, True)
    assert removals(node, 10 * EVERY) == []
    assert caplog.text.count("not looked for: npu-smi gave no answer") == (trouble == "silent")
