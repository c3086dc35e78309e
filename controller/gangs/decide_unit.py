"""The decision on a unit: one pod by `decide`, the members of a gang by `decide_gang`. Pure."""

from collections.abc import Callable

from controller.decide.answers import Answer, Decision
from controller.decide.decision import decide as decide_pod
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.gangs.gang_search import decide_gang
from controller.gangs.unit import Unit
from controller.gangs.unit_answers import UnitDecision, UnitRefusal
from controller.inventory.inventory import Inventory

Decide = Callable[[Inventory, SchedulingRequest, Options], Answer]


def decide_unit(
    inventory: Inventory, unit: Unit, options: Options, decide: Decide = decide_pod
) -> UnitDecision | UnitRefusal:
    """Return a place for at least `least` members at once, or why there is none.

    `decide`: decides a pod that belongs to no gang. Raises SliceSpent, and AttemptSpent with
    `options.attempt`.
    """
    if unit.key is not None:
        return decide_gang(inventory, unit, options)
    (request,) = unit.members
    pod = request.pod
    with inventory.trial() as trial:
        # a pod that keeps an earlier claim counts on that claim's node: it must not block itself there
        trial.remove(pod.metadata.uid)
        answer = decide(inventory, request, options)
    if isinstance(answer, Decision):
        return UnitDecision(placed=((request, answer),))
    return UnitRefusal(answer.message, answer, pod.key, 0, reason=answer.reason)
