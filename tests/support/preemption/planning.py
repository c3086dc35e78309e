"""hami-dra's plan for a world, by `hami-dra simulate` in this process, and whether it is accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from controller.insight.simulation import SimulationReport, SimulationSettings, simulate
from hami_dra.kube.documents import Document, read_documents
from tests.support.preemption.dra_form import in_dra_form
from tests.support.preemption.judging import MOST_EXACT, RULES, Budgets, Plan, judge, most_pods

Json = dict[str, Any]

_CLASS = Path(__file__).resolve().parents[3] / "deviceclasses" / "nvidia-gpu.hami.io.yaml"


def planned(world: Json, budgets: Budgets) -> Plan:
    """Return where hami-dra places the pod that waits, and whom it evicts for that."""
    report = simulated(
        in_dra_form(world), SimulationSettings(preemption=True, exceeds_budgets=budgets == "best-effort")
    )
    name = world["pod"]["metadata"]["name"]
    made = [each for each in report.preemptions or () if name_of(each["pod"]) == name]
    victims = {name_of(victim) for each in made for victim in each["victims"]}
    nodes = {each["node"] for each in made} or {placed_on(report, name)}
    (node,) = nodes
    return Plan(node, frozenset(victims))


class Refused(AssertionError):
    """The judge does not accept a plan; the message says why."""


def check(world: Json, ask: Callable[[Json], Json]) -> Counter[str]:
    """Return what hami-dra's plans for a world are like, under each rule. Raises Refused."""
    nodes = {node["metadata"]["name"] for node in world["nodes"]}
    if not all(pod["spec"].get("nodeName") in {None, *nodes} for pod in world["pods"]):
        raise ValueError("a pod runs on a node that is not there: kube-scheduler's plugins would end")
    answer = ask(world)
    if answer.get("error"):
        raise RuntimeError(f"the oracle cannot answer: {answer['error']}")
    return Counter(f"{budgets}: {accepted(world, answer, budgets)}" for budgets in RULES)


def accepted(world: Json, answer: Json, budgets: Budgets) -> str:
    """Return what hami-dra's plan is like. Raises Refused."""
    plan = planned(world, budgets)
    verdict = judge(world, answer, plan, budgets, exact=most_pods(world) <= MOST_EXACT)
    if verdict.faults:
        raise Refused(f"{', '.join(verdict.faults)}: {budgets}: node {plan.node!r}, victims {sorted(plan.victims)}")
    if not plan.victims:
        return "a place, nobody goes" if plan.node else "no plan"
    against = "better than kube-scheduler's" if verdict.better else "as good as kube-scheduler's"
    return f"{against}, {'the best' if verdict.best else 'not the best'}"


def place_without_victims(world: Json) -> str:
    """Return where hami-dra places the pod that waits if nobody has to go; empty: nowhere."""
    return placed_on(simulated(in_dra_form(world), SimulationSettings()), world["pod"]["metadata"]["name"])


def simulated(objects: Iterable[Json], settings: SimulationSettings) -> SimulationReport:
    return simulate([*_classes(), *_documents(objects)], settings)


def placed_on(report: SimulationReport, name: str) -> str:
    return next((placement["node"] for placement in report.placements if name_of(placement["pod"]) == name), "")


def name_of(key: str) -> str:
    return key.rpartition("/")[2]


@cache
def _classes() -> tuple[Document, ...]:
    return tuple(read_documents([_CLASS]))


def _documents(objects: Iterable[Json]) -> list[Document]:
    return [Document(Path("world.json"), index, raw) for index, raw in enumerate(objects, 1)]
