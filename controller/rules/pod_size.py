"""The refusal of a pod that is too large to be read (`hami_dra.api.weight`): on every node alike."""

from controller.reasons import catalogue
from controller.rules.plugin import PodRefusal
from hami_dra.api.core import Pod


def excess_of(pod: Pod) -> PodRefusal | None:
    """Return the refusal of a pod of which only a stub was kept; None: all of it was read."""
    problem = pod.spec.unreadable
    return PodRefusal(catalogue.NODE_AFFINITY, f"the pod is {problem}") if problem else None
