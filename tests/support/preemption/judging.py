"""Judges a plan for a world: is it allowed, does it make room, and is it as good as kube-scheduler's, or the best there is?

Terminating pods cost nothing and are waited for; budgets are counted for the victims themselves. In both, kube-scheduler
differs: a terminating pod is a victim like any other, and budgets are counted once, as if all lower pods went.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.support.preemption.model import Cost, Model

Json = dict[str, Any]
Budgets = Literal["respect", "best-effort"]
"""Whether no budget may be exceeded, as the Eviction API enforces it, or as few as possible are."""

RULES: Final[tuple[Budgets, ...]] = ("respect", "best-effort")
MOST_EXACT: Final = 8
"""Pods of a node, up to which a plan must be the best of all."""
_PARTS: Final = ("violations", "highest priority", "sum of priorities", "number", "start")


@dataclass(frozen=True)
class Plan:
    """`node`: where the pod is placed, or waits for what terminates, or for its victims; empty: nowhere."""

    node: str = ""
    victims: frozenset[str] = frozenset()


@dataclass
class Verdict:
    """`faults`: what is wrong. `notes`: what is odd and allowed."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    better: bool = False
    """Than kube-scheduler's choice."""
    best: bool = False
    """Of all plans."""


def most_pods(world: Json) -> int:
    """Pods of the fullest node."""
    model = Model(world)
    return max(len(model.pods_of(node)) for node in model.nodes)


def judge(world: Json, answer: Json, plan: Plan, budgets: Budgets, *, exact: bool = False) -> Verdict:
    """`exact`: a plan that is not the best of all is wrong, too."""
    model, respect = Model(world, as_evicted=budgets == "respect"), budgets == "respect"
    verdict = Verdict()
    victims = plan.victims - model.terminating
    if plan.victims & model.terminating:
        verdict.notes.append("terminating pods named as victims")
    if unknown := victims - set(model.by_name):
        verdict.faults.append(f"unknown victims {sorted(unknown)}")
    elif answer["fits"]:
        if victims or plan.node not in answer["fits"]:
            verdict.faults.append("fits without preemption")
        verdict.best = not verdict.faults
    elif not plan.node:
        _judge_none(verdict, victims, _theirs(model, answer, respect=respect), _every(model, respect=respect), exact)
    else:
        _judge_rules(verdict, model, plan.node, victims, respect=respect)
        mine = model.cost([model.by_name[name] for name in victims])
        theirs, every = _theirs(model, answer, respect=respect), _every(model, respect=respect)
        verdict.best = not every or not min(every) < mine
        if theirs is not None and theirs < mine:
            worse = next(part for part, one, other in zip(_PARTS, theirs, mine, strict=True) if one != other)
            verdict.faults.append(f"worse than kube-scheduler: {worse}")
        elif not verdict.best:
            (verdict.faults if exact else verdict.notes).append("not the best")
        verdict.better = not verdict.faults and (theirs is None or mine < theirs)
    return verdict


def _judge_none(verdict: Verdict, victims: frozenset[str], theirs: Cost | None, every: list[Cost], exact: bool) -> None:
    if victims:
        verdict.faults.append("victims, but no node")
    if theirs is not None:
        verdict.faults.append("no plan, but kube-scheduler has one")
    elif every:
        (verdict.faults if exact else verdict.notes).append("no plan, but there is one")
    verdict.best = not every


def _judge_rules(verdict: Verdict, model: Model, node: str, victims: frozenset[str], *, respect: bool) -> None:
    """What holds for every plan, however good it is."""
    free, pods = model.terminating, [model.by_name[name] for name in victims]
    if model.pod.never and victims:
        verdict.faults.append("preemptionPolicy Never")
    if any(pod.priority >= model.pod.priority for pod in pods):
        verdict.faults.append("victim of equal or higher priority")
    if node not in model.nodes or not model.fits(node, victims | free):
        verdict.faults.append("does not fit when the victims are gone")
    elif any(model.fits(node, (victims | free) - {name}) for name in victims):
        verdict.faults.append("needless victim")
    if any(pod.node != node for pod in pods):
        verdict.notes.append("victims on other nodes")
    if respect and model.cost(pods)[0]:
        verdict.faults.append("exceeds a PodDisruptionBudget")


def _waits(model: Model) -> bool:
    """The pod has a place as soon as what terminates is gone."""
    return any(model.fits(node, model.terminating) for node in model.nodes)


def _theirs(model: Model, answer: Json, *, respect: bool) -> Cost | None:
    """The cost of kube-scheduler's choice; where that exceeds a budget that must hold, of its best candidate that does not."""
    if _waits(model):
        return model.cost([])
    if model.pod.never:
        return None
    costs = {}
    for node, candidate in answer["candidates"].items():
        # One that needs a terminating pod to stay, by pod affinity, is no place for long.
        lasts = model.fits(node, model.terminating.union(candidate["victims"]))
        cost = model.cost([model.by_name[name] for name in candidate["victims"] if name not in model.terminating])
        if lasts and not (respect and cost[0]):
            costs[node] = cost
    # Any of those that it holds for equal.
    chosen = [costs[node] for node in answer["tied"] if node in costs]
    return max(chosen) if chosen else min(costs.values(), default=None)


def _every(model: Model, *, respect: bool) -> list[Cost]:
    """The cost of the best plan of each node."""
    if _waits(model):
        return [model.cost([])]
    if model.pod.never:
        return []
    found = [model.best(node, model.terminating, respect=respect) for node in model.nodes]
    return [plan[0] for plan in found if plan is not None]


# --- plans to judge the judge by --------------------------------------------------------------------------------------


def best_plan(world: Json, answer: Json, budgets: Budgets) -> Plan:
    """Free, else what terminates, else the best set of victims."""

    def best(model: Model, respect: bool) -> list[tuple[Any, str, list[str]]]:
        found = [(model.best(node, model.terminating, respect=respect), node) for node in model.nodes]
        return [(plan, node, plan[1]) for plan, node in found if plan is not None]

    return _planned(world, answer, budgets, best)


def greedy_plan(world: Json, answer: Json, budgets: Budgets) -> Plan:
    """kube-scheduler's way, with terminating pods gone beforehand; `respect` leaves out nodes whose plan exceeds a budget."""

    def greedy(model: Model, respect: bool) -> list[tuple[Any, str, list[str]]]:
        model.pods = [pod for pod in model.pods if not pod.terminating]
        found = []
        for node in model.nodes:
            if greedy := model.greedy(node):
                pods = [model.by_name[name] for name in greedy[0]]
                if not (respect and model.violators(model.ordered(pods))):
                    found.append((model.cost(pods, greedy[1]), node, greedy[0]))
        return found

    return _planned(world, answer, budgets, greedy)


def _planned(
    world: Json,
    answer: Json,
    budgets: Budgets,
    choices: Callable[[Model, bool], list[tuple[Any, str, list[str]]]],
) -> Plan:
    """The place where nobody has to go, or the least of the choices: cost, node, victims."""
    respect = budgets == "respect"
    model = Model(world, as_evicted=respect)
    if place := _free_place(model, answer):
        return Plan(place)
    if model.pod.never:
        return Plan()
    _, node, victims = min(choices(model, respect), key=lambda each: each[:2], default=(None, "", []))
    return Plan(node, frozenset(victims))


def _free_place(model: Model, answer: Json) -> str:
    """A node where nobody has to go."""
    waiting = [node for node in model.nodes if model.fits(node, model.terminating)]
    return next(iter(answer["fits"] or waiting), "")


def wrong_plans(world: Json, answer: Json) -> dict[str, Plan]:
    """What is wrong → a plan that is wrong by construction; none where nobody has to go."""
    model, right = Model(world), best_plan(world, answer, "best-effort")
    if not right.victims:
        return {}
    here = [pod for pod in model.pods_of(right.node) if not pod.terminating]
    spared = [pod.name for pod in here if pod.priority < model.pod.priority and pod.name not in right.victims]
    high = [pod.name for pod in here if pod.priority >= model.pod.priority]
    fewer = right.victims - {min(right.victims)}
    wrong = {"none": Plan(), "one too few": Plan(right.node, fewer)}
    if spared:
        wrong["one too many"] = Plan(right.node, right.victims | {spared[0]})
        wrong["all lower pods"] = Plan(right.node, right.victims.union(spared))
    if high:
        wrong["equal priority"] = Plan(right.node, fewer.union(high))
    if others := [node for node in model.nodes if node != right.node]:
        wrong["another node's"] = Plan(others[0], right.victims)
    return wrong
