"""Pods and volume claims that write as much as is read, hundreds of them: no handler and no step of a decision is long, and others
pay nothing. Work is counted: requirements that are held against labels.
"""

import gc
import time
from itertools import count

import msgspec
import numpy as np
import pytest

from hami_dra.api.core import Namespace
from hami_dra.api.selectors import ParsedSelector
from hami_dra.api.weight import MOST_VOLUME_CLAIM_WEIGHT, MOST_WEIGHT, weight
from tests.cards import node, pod
from tests.hostile import test_volumes
from tests.hostile.test_volumes import using
from tests.support.examples import SOAK, examples
from tests.unit.rules.filtered import Filtered

HOST, ZONE = "kubernetes.io/hostname", "zone"
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
NODES, NAMESPACES, HONEST = examples(250), examples(250), examples(50)
WAITING, RUNNING = examples(5), examples(15)
MOST_WORK = 8_000
"""Requirements in one step: a portion, and the largest selector."""
MOST_SECONDS = 0.25
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
LENGTHS = {"many terms": (1, 1), "many requirements": (200, 1), "many values": (1, 400)}


@pytest.fixture
def evaluated(monkeypatch):
    """How many requirements were held against labels so far: `evaluated[0]`."""
    matches, total = ParsedSelector.matches, [0]

    def counted(self, labels):
        total[0] += 1 + self.size
        return matches(self, labels)

    monkeypatch.setattr(ParsedSelector, "matches", counted)
    return total


class Steps:
    """Seconds and counted work of each handler, and of each step of a decision between two reports to its meter."""

    def __init__(self, work):
        self._work = work
        self.most_work = 0
        self.most_seconds = 0.0
        self.in_handlers = 0
        self.charged = {}
        self.account, self.limits = "", None
        self._begin()

    def _begin(self):
        self._from = self._work[0], time.process_time()

    def _end(self):
        work, seconds = self._work[0] - self._from[0], time.process_time() - self._from[1]
        self.most_work, self.most_seconds = max(self.most_work, work), max(self.most_seconds, seconds)
        return work

    def clock(self):
        return float(self._work[0])

    def spend(self, seconds, owner=""):
        account = owner or self.account
        self.charged[account] = self.charged.get(account, 0) + seconds
        self._end()
        self._begin()

    def handle(self, handler, *arguments):
        self._begin()
        handler(*arguments)
        self.in_handlers = max(self.in_handlers, self._end())

    def decide(self, inventory, asked):
        self.account = asked.metadata.namespace
        self._begin()
        with inventory.verdicts.within(self):
            inventory.rules.refuses_by_labels(asked)
            inventory.rules.node_fit(asked)
            inventory.rules.shape_fit(asked)
            preferences = inventory.rules.preferences(asked)
            if preferences is not None:
                preferences.scores(np.arange(inventory.nodes.size))
        self._end()


def largest(make, most):
    """Return the result of `make(n)` for the largest n at which it is still read."""
    fewer, more = 1, 2
    while weight(make(more), most + 1) <= most:
        fewer, more = more, 2 * more
    while more - fewer > 1:
        middle = (fewer + more) // 2
        fewer, more = (middle, more) if weight(make(middle), most + 1) <= most else (fewer, middle)
    return make(fewer)


def evil(number, operator, length, **more):
    """A pod that has as many terms as are read, with such selectors; no two are equal."""
    requirements, values = length
    numbers = count()

    def selector():
        expressions = []
        for _ in range(requirements):
            key = f"none-{number}-{next(numbers)}" if operator == "DoesNotExist" else "app"
            texts = [f"{number}-{next(numbers)}" for _ in range(values)] if operator in {"In", "NotIn"} else []
            expressions.append({"key": key, "operator": operator, "values": texts})
        return {"matchExpressions": expressions}

    def made(terms):
        affinity = {
            "podAffinity": {REQUIRED: [], PREFERRED: []},
            "podAntiAffinity": {REQUIRED: [], PREFERRED: []},
        }
        spread = []
        for place in range(terms):
            keys = [{"key": f"x{number}-{place}", "operator": "DoesNotExist"}]
            term = {
                "topologyKey": (HOST, ZONE)[place % 2],
                "labelSelector": selector(),
                "namespaceSelector": ({}, {"matchExpressions": keys})[place // 2 % 2],
            }
            match place % 5:
                case 0:
                    affinity["podAntiAffinity"][REQUIRED].append(term)
                case 1 | 2 as kind:
                    affinity[("podAffinity", "podAntiAffinity")[kind - 1]][PREFERRED].append(
                        {"weight": 1, "podAffinityTerm": term}
                    )
                case 3 | 4 as kind:
                    hardness = ("DoNotSchedule", "ScheduleAnyway")[kind - 3]
                    constraint = {key: term[key] for key in ("topologyKey", "labelSelector")}
                    spread.append(
                        {**constraint, "maxSkew": 1, "whenUnsatisfiable": hardness, "matchLabelKeys": ["run"]}
                    )
        labels = {"app": f"evil-{number}", "run": str(number)}
        spec = {"affinity": affinity, "topologySpreadConstraints": spread, **more}
        return pod(f"evil-{number}", namespace="evil", labels=labels, **spec)

    return largest(made, MOST_WEIGHT)


def honest(number, **more):
    return pod(f"honest-{number}", namespace=f"team-{number % NAMESPACES}", labels={"app": f"shop-{number}"}, **more)


def crowd(steps):
    """A cluster of many namespaces where honest pods run, each with labels of its own."""
    found = Filtered(*[node(f"n{n}", labels={HOST: f"n{n}", ZONE: f"z{n % 3}"}) for n in range(NODES)])
    for number in range(NAMESPACES):
        labelled = {"metadata": {"name": f"team-{number}", "labels": {"name": f"team-{number}"}}}
        steps.handle(found.inventory.namespace_changed, None, msgspec.convert(labelled, Namespace))
    for number in range(HONEST):
        steps.handle(found.inventory.pod_changed, None, honest(number, nodeName=f"n{number % NODES}"))
    return found


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_terms_at_the_limit_make_no_step_long_and_cost_their_own_namespace(evaluated, operator, length):
    """40 waiting pods with long lists of values stopped the loop for 5 s at each pod of anybody with new labels."""
    steps = Steps(evaluated)
    found = crowd(steps)
    inventory = found.inventory
    running = [evil(number, operator, length, nodeName=f"n{number % NODES}") for number in range(RUNNING)]
    waiting = [evil(RUNNING + number, operator, length) for number in range(WAITING)]
    gc.disable()
    try:
        for each in running:
            steps.handle(inventory.pod_changed, None, each)
        for each in waiting:
            steps.decide(inventory, each)
        assert {*steps.charged} <= {"evil"}
        for number in range(HONEST, HONEST + 5):
            steps.decide(inventory, honest(number))
            steps.handle(inventory.pod_changed, None, honest(number, nodeName="n1"))
            steps.decide(inventory, honest(number))
        assert {*steps.charged} <= {"evil"}, "others pay for no term of this namespace"
        for each in waiting:
            steps.decide(inventory, each)
        renamed = {"metadata": {"name": "team-0", "labels": {"x0-2": "y"}}}
        before = inventory.namespaces["team-0"]
        steps.handle(inventory.namespace_changed, before, msgspec.convert(renamed, Namespace))
        for each in running:
            steps.handle(inventory.pod_changed, each, None)
    finally:
        gc.enable()
    assert steps.most_work <= MOST_WORK
    assert steps.most_seconds < MOST_SECONDS
    assert not steps.charged.get("")


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize("kind", ["local", "everywhere"])
@pytest.mark.parametrize("operator", ["NotIn", "DoesNotExist"])
def test_volume_claims_at_the_limit_are_matched_in_steps(evaluated, monkeypatch, operator, kind):
    """One pod with 250 claims of different sizes took 27 s in one piece next to 1,000 volumes."""
    monkeypatch.setattr(test_volumes, "NODES", NODES)
    found, steps, volumes = test_volumes.World(), Steps(evaluated), examples(100)
    for number in range(volumes):
        place = [test_volumes.requirement(HOST, "In", f"n{number % NODES}")] if kind == "local" else []
        found.volume(f"pv-{number}", *place, size=f"{1 + number % 50}Gi")

    def selector(number):
        def made(values):
            texts = [f"{number}-{each}" for each in range(values // 16 + 1)] if operator == "NotIn" else []
            keys = ["a" if operator == "NotIn" else f"none-{number}-{each}" for each in range(16)]
            return {"matchExpressions": [test_volumes.requirement(key, operator, *texts) for key in keys]}

        return largest(made, MOST_VOLUME_CLAIM_WEIGHT // 2) if operator == "NotIn" else made(0)

    claims = [f"claim-{number}" for number in range(200)]
    for number, each in enumerate(claims):
        found.claim(each, size=f"{1 + number}Mi", selector=selector(number))
    asked = using(*claims)
    assert weight(asked) <= MOST_WEIGHT
    gc.disable()
    try:
        steps.decide(found.inventory, asked)
        first = evaluated[0]
        assert first >= len(claims) * volumes, "each selector was read"
        steps.decide(found.inventory, asked)
        assert evaluated[0] == first, "and none a second time"
        steps.in_handlers = 0
        steps.handle(found.volume, "pv-new", test_volumes.requirement(HOST, "In", "n1"))
        assert not steps.in_handlers
        steps.decide(found.inventory, asked)
        assert evaluated[0] - first <= len(claims) * 17
    finally:
        gc.enable()
    assert {*steps.charged} == {"evil"}
    assert steps.most_work <= max(MOST_WORK, 20 * volumes)
    assert steps.most_seconds < MOST_SECONDS
