"""The search against trying everything: the same first solution, none where there is none, and every choice is valid."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.allocation.bounds import counts
from controller.allocation.chooser import FirstFit
from controller.allocation.request import AllocationInput
from controller.allocation.search import DEFAULT_BUDGET, Search, solve
from controller.inventory.model import Pool
from hami_dra.api.core import Node
from tests.support.allocation import (
    DRIVER,
    NODE,
    InUse,
    alternative,
    claim,
    device,
    exactly,
    first_of,
    parse,
    pools_of,
    problem_of,
    slice_of,
)

NODE_OBJECT = parse({"metadata": {"name": NODE}}, Node)
MEMORY, COUNTER = 4, 3

small = st.integers(0, 2)


@st.composite
def devices(draw):
    shared = draw(st.booleans())
    attributes = {name: draw(small) for name in ("island", "model") if draw(st.integers(0, 4))}
    extra = {}
    if draw(st.booleans()):
        counters = {"memory": {"value": str(draw(st.integers(0, 2)))}}
        extra["consumesCounters"] = [{"counterSet": "card", "counters": counters}]
    if draw(st.integers(0, 5)) == 0:
        extra["taints"] = [{"key": "t", "effect": "NoSchedule"}]
    capacity = {"memory": str(MEMORY)} if draw(st.integers(0, 3)) else None
    return {"shared": shared, "capacity": capacity, **attributes, **extra}


@st.composite
def drawn_request(draw, name=""):
    where = draw(st.sampled_from(["", "", f'device.attributes["{DRIVER}"].?model.orValue(9) != 1']))
    capacity = {"memory": str(draw(st.integers(0, 3)))} if draw(st.booleans()) else None
    rest = {"tolerations": [{"operator": "Exists"}]} if draw(st.integers(0, 3)) == 0 else {}
    return alternative(name, draw(st.sampled_from([1, 1, 2])), where=where, capacity=capacity, **rest)


@st.composite
def claims(draw, name):
    requests = []
    for index in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 0:
            requests.append(first_of(f"r{index}", draw(drawn_request("x")), draw(drawn_request("y"))))
        else:
            requests.append({"name": f"r{index}", "exactly": draw(drawn_request())})
    constraints = []
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        covered = draw(st.sampled_from([[], ["r0"], ["r0", "r1"], ["r0/x"]]))
        constraints.append({kind: f"{DRIVER}/{draw(st.sampled_from(['island', 'model']))}", "requests": covered})
    return claim(*requests, name=name, constraints=constraints)


@dataclass(frozen=True, repr=False)
class Case:
    """Its repr is the JSON it was made from: the objects themselves print as fifty thousand characters."""

    problem: AllocationInput
    pools: list[Pool]
    usage: InUse
    devices: list[dict[str, Any]]
    claims: list[dict[str, Any]]

    def __iter__(self):
        return iter((self.problem, self.pools, self.usage))

    def __repr__(self):
        usage = {"exclusive": sorted(self.usage.exclusive), "shared": self.usage.shared, "amounts": self.usage.amounts}
        return json.dumps({"devices": self.devices, "usage": usage, "claims": self.claims})


@st.composite
def cases(draw):
    made = [device(f"d{index}", **each) for index, each in enumerate(draw(st.lists(devices(), min_size=1, max_size=5)))]
    usage = InUse()
    for each in made:
        if draw(st.integers(0, 4)) == 0:
            if each.get("allowMultipleAllocations"):
                usage.shared[each["name"]] = 1
                usage.amounts[each["name"]] = {"memory": draw(st.integers(0, 3))} if "capacity" in each else {}
            else:
                usage.exclusive.add(each["name"])
    counters = slice_of(name="counters", count=2)
    counters["spec"]["sharedCounters"] = [{"name": "card", "counters": {"memory": {"value": str(COUNTER)}}}]
    del counters["spec"]["devices"]
    pools = pools_of(counters, slice_of(*made, name="devices", count=2))
    asked = [draw(claims(f"c{index}")) for index in range(draw(st.integers(1, 2)))]
    return Case(problem_of(*asked), pools, usage, made, asked)


# --- trying everything ----------------------------------------------------------------------------------------------------------


def options(group, pools):
    """What a request could be given, alternatives and ascending combinations in order: (view, devices)."""
    everything = [device_ for pool in pools for device_ in pool.devices]
    return [
        (view, chosen)
        for view in group.alternatives
        for chosen in combinations([each for each in everything if suits(view, each)], view.count)
    ]


def suits(view, device_):
    if device_.taints and not view.tolerations:
        return False
    return view.consumed(device_) is not None and all(
        selector.matches(device_) for selector in (*view.class_selectors, *view.selectors)
    )


def valid(problem, pools, usage, choice):
    """`choice`: (view, devices) of every request. Checked from scratch."""
    holders = Counter(each for _, chosen in choice for each in chosen if not each.shared)
    if any(count > 1 or usage.in_use(each.id) for each, count in holders.items()):
        return False
    consumed = defaultdict(int)
    for view, chosen in choice:
        for each in chosen:
            if each.shared:
                consumed[each] += view.consumed(each).get("memory", 0)
    if any(used + usage.consumed(each.id).get("memory", 0) > MEMORY for each, used in consumed.items()):
        return False
    return counters_hold(pools, usage, choice) and all(
        constraint_holds(
            constraint,
            [
                (view, each)
                for view, chosen in choice
                if view.claim is claimed.claim and index in view.constraints
                for each in chosen
            ],
        )
        for claimed in problem.claims
        for index, constraint in enumerate(claimed.claim.spec.devices.constraints)
    )


def counters_hold(pools, usage, choice):
    """The search refuses a device with counters when the card is overdrawn already, whatever it takes itself."""
    chosen = {each for _, devices_ in choice for each in devices_ if each.spec.consumes_counters}
    fresh = [each for each in chosen if not (usage.shares(each.id) or usage.in_use(each.id))]
    if not fresh:
        return True
    held = {each for pool in pools for each in pool.devices if usage.shares(each.id) or usage.in_use(each.id)}
    return sum(cost(each) for each in held | set(fresh)) <= COUNTER


def cost(device_):
    return sum(int(entry.counters["memory"].value) for entry in device_.spec.consumes_counters)


def constraint_holds(constraint, picks):
    name = (constraint.match_attribute or constraint.distinct_attribute).rpartition("/")[2]
    values = [each.spec.attributes[name].int_ if name in each.spec.attributes else None for _, each in picks]
    if None in values:
        return False
    return len(set(values)) <= 1 if constraint.match_attribute else len(set(values)) == len(values)


def first_by_trying(problem, pools, usage):
    groups = [group for claimed in problem.claims for group in claimed.requests]
    return next(
        (
            choice
            for choice in product(*(options(group, pools) for group in groups))
            if valid(problem, pools, usage, choice)
        ),
        None,
    )


def as_choice(problem, solution):
    chosen = defaultdict(list)
    for picks in solution.picks:
        for pick in picks:
            chosen[pick.request].append(pick.device)
    return tuple((view, tuple(chosen[view])) for view in problem.views if view in chosen)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_first_fit_finds_the_first_solution_there_is(case):
    problem, pools, usage = case
    expected = first_by_trying(problem, pools, usage)
    found = solve(problem, NODE_OBJECT, pools, usage, FirstFit())
    assert (found is None) == (expected is None)
    if found is not None:
        assert as_choice(problem, found) == expected


class Shuffled(FirstFit):
    """Any order, but always the same for a state."""

    def __init__(self, random):
        self._seed = random.random()

    def order(self, request, devices, tentative):
        state = f"{self._seed} {request.name} {sorted(map(str, tentative.added))}"
        return sorted(devices, key=lambda each: crc32(f"{state} {each.id}".encode()))


@settings(max_examples=200, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_any_order_finds_a_valid_solution_where_there_is_one(case, random):
    problem, pools, usage = case
    expected = first_by_trying(problem, pools, usage)
    found = solve(problem, NODE_OBJECT, pools, usage, Shuffled(random))
    assert (found is None) == (expected is None)
    if found is not None:
        assert valid(problem, pools, usage, as_choice(problem, found))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_search_that_finds_nothing_has_given_everything_back(case):
    problem, pools, usage = case
    search = Search(problem, NODE_OBJECT, pools, usage, FirstFit(), budget=DEFAULT_BUDGET)
    if not search.run():
        assert search.held.tentative.added == {}
        assert all(not picks for picks in search.held.picks)
        assert all(search.held.tentative.state(device_.id) is None for pool in pools for device_ in pool.devices)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_what_counting_calls_hopeless_has_no_solution(case):
    problem, pools, usage = case
    search = Search(problem, NODE_OBJECT, pools, usage, FirstFit(), budget=DEFAULT_BUDGET)
    constraints = search.held.constraints
    if any(counts(problem, search.candidates, constraints, usage)):
        assert first_by_trying(problem, pools, usage) is None


def test_the_reference_sees_a_solution_at_all():
    problem = problem_of(claim(exactly()))
    pools = pools_of(slice_of(device("d0")))
    assert first_by_trying(problem, pools, InUse()) is not None
