"""decide_gang against brute force on small clusters: what can be placed is placed, all or nobody, in
one domain, and the inventory is as before.
"""

import itertools
from dataclasses import dataclass
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from controller.gangs import UnitDecision, UnitRefusal, decide_gang
from tests.cards import card, claim, node, request, slice_of
from tests.support import assumed
from tests.support.gang_requests import DRIVER, OPTIONS, RACK, cluster, gang, held, member, within

STEPS = 20_000
CPU = 8


@dataclass(frozen=True)
class Spot:
    """A node: free GiB of each card, free halves of each divided card."""

    rack: str
    cards: tuple[int, ...]
    divided: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """`gib` of each of `count` cards; 0: a whole divided card or half of one, the whole preferred."""

    count: int
    gib: int
    cpu: int


spots = st.lists(
    st.builds(
        Spot,
        st.sampled_from(["", "a", "b"]),
        st.lists(st.sampled_from([16, 40]), max_size=2).map(tuple),
        st.lists(st.just(2), max_size=1).map(tuple),
    ),
    min_size=1,
    max_size=3,
)
asks = st.lists(
    st.builds(
        lambda count_gib, cpu: Ask(*count_gib, cpu),
        st.sampled_from([(1, 8), (1, 16), (1, 30), (2, 30), (1, 0)]),
        st.sampled_from([0, 3, 5]),
    ),
    min_size=1,
    max_size=4,
)
policies = st.sampled_from(["binpack", "spread"])


def inventory_of(spots):
    inventory = cluster(0)
    for number, spot in enumerate(spots):
        name = f"n{number:02}"
        inventory.node_changed(None, node(name, labels={RACK: spot.rack} if spot.rack else {}))
        devices = [card(index, memory=f"{gib}Gi") for index, gib in enumerate(spot.cards)]
        for index in range(len(spot.divided)):
            devices += [
                part(f"whole-{index}", "whole", index, 2),
                *(part(f"half-{index}-{half}", "half", index, 1) for half in range(2)),
            ]
        sets = [{"name": f"card-{index}", "counters": {"parts": {"value": "2"}}} for index in range(len(spot.divided))]
        inventory.slice_changed(None, slice_of(name, devices, count=2))
        inventory.slice_changed(
            None, slice_of(name, [], name=f"{name}-sets", count=2, nodeName=name, sharedCounters=sets)
        )
    return inventory


def part(name, size, index, amount):
    drawn = [{"counterSet": f"card-{index}", "counters": {"parts": {"value": str(amount)}}}]
    return {"name": name, "attributes": {"size": {"string": size}}, "consumesCounters": drawn}


def member_of(number, ask, node_policy, device_policy):
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": str(ask.cpu)}}}]}
    options = {"node_policy": node_policy, "device_policy": device_policy, "spec": spec}
    name = f"p{number}"
    if ask.gib:
        return member(name, ask.count, memory=f"{ask.gib}Gi", cores="0", **options)
    alternatives = []
    for size in ("whole", "half"):
        attributes = f'device.attributes["{DRIVER}"]'
        selector = f'"size" in {attributes} && {attributes}.size == "{size}"'
        alternatives.append({"name": size, **request(size, selectors=[selector])["exactly"]})
    wanted = claim(f"{name}-gpu", [{"name": "gpu", "firstAvailable": alternatives}])
    return member(name, claims=[wanted], **options)


def most_placeable(spots, asks, racks):
    """Return the most members that fit at once, of all ways to place them in one rack."""

    @cache
    def best(rack, at, state):
        if at == len(asks):
            return 0
        found = best(rack, at + 1, state)  # the member is left out
        for number, (cpu, cards, divided) in enumerate(state):
            if (rack and spots[number].rack != rack) or cpu < asks[at].cpu:
                continue
            for after in taken(asks[at], cards, divided):
                fresh = (*state[:number], (cpu - asks[at].cpu, *after), *state[number + 1 :])
                found = max(found, 1 + best(rack, at + 1, fresh))
        return found

    start = tuple((CPU, spot.cards, spot.divided) for spot in spots)
    names = {spot.rack for spot in spots if spot.rack} if racks else {""}
    return max((best(rack, 0, start) for rack in names), default=0)


def taken(ask, cards, divided):
    """Yield what is left of a node's cards, for each way to take what is asked for."""
    if ask.gib:
        for chosen in itertools.combinations(range(len(cards)), ask.count):
            if all(cards[index] >= ask.gib for index in chosen):
                yield tuple(free - ask.gib * (index in chosen) for index, free in enumerate(cards)), divided
        return
    for index, free in enumerate(divided):
        for amount in (1, 2):
            if free >= amount:
                yield cards, (*divided[:index], free - amount, *divided[index + 1 :])


def check(spots, asks, found):
    """The places of a decision do not exceed what there is."""
    cpu, used = {}, {}
    for request_, decision in found.placed:
        ask = asks[int(request_.pod.metadata.name[1:])]
        cpu[decision.node] = cpu.get(decision.node, 0) + ask.cpu
        for entry in decision.allocations:
            for result in entry.allocation["devices"]["results"]:
                device = result["device"]
                kind, _, rest = device.partition("-")
                if kind == "gpu":
                    key, amount = (decision.node, "gpu", int(rest)), ask.gib
                else:
                    key, amount = (decision.node, "divided", int(rest[0])), 2 if kind == "whole" else 1
                used[key] = used.get(key, 0) + amount
    assert all(each <= CPU for each in cpu.values())
    for (name, kind, index), amount in used.items():
        spot = spots[int(name[1:])]
        assert amount <= (spot.cards if kind == "gpu" else spot.divided)[index]


@given(spots, asks, st.booleans(), st.data())
def test_what_can_be_placed_is_placed_all_or_nobody(spots, asks, racks, data):
    least = data.draw(st.integers(1, len(asks)), label="least")
    node_policy, device_policy = data.draw(policies, label="node"), data.draw(policies, label="device")
    inventory = inventory_of(spots)
    members = [member_of(number, ask, node_policy, device_policy) for number, ask in enumerate(asks)]
    wanted = gang(*members, least=least, topology=(within(RACK),) if racks else ())
    before = held(inventory)
    found = decide_gang(inventory, wanted, OPTIONS, steps=STEPS)
    assert held(inventory) == before
    possible = most_placeable(spots, asks, racks) >= least
    assert isinstance(found, UnitDecision if possible else UnitRefusal), (found, possible)
    if isinstance(found, UnitDecision):
        assert least <= len(found.placed) == len(asks) - len(found.left)
        check(spots, asks, found)
        if racks:
            assert len({spots[int(decision.node[1:])].rack for _, decision in found.placed} | {""}) == 2
    else:
        assert found.placeable < least
        assert "given up" not in found.message
    assert decide_gang(inventory, wanted, OPTIONS, steps=STEPS) == found
    assert held(inventory) == before


def assume(inventory, other, answer):
    for entry in answer.allocations:
        assumed.assume(inventory, entry.claim.metadata.uid, entry.allocation)
    inventory.assume_pod(other.pod, answer.node)
