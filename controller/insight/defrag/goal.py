"""What moves are planned for, and the pods that may be moved for it. Pure."""

from msgspec import Struct, field

from controller.insight.simulation import SimulatedCluster
from controller.moves import Movability, Movable
from controller.preemption import Preemption
from controller.rules import UNSCHEDULABLE_TAINT
from hami_dra.api import names
from hami_dra.api.core import Pod, Taint
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.selectors import tolerates


class Goal(Struct, frozen=True):
    """What is to be reached: a place for a pod, or more free devices or nodes."""

    pod: str = ""
    """Key of a pod that waits."""
    devices: int = 0
    """Devices, each entirely free."""
    nodes: int = 0
    """Nodes, all of whose devices are free."""
    least: int = 1
    """Nodes with fewer devices do not count."""
    moves: int | None = None
    """The most pods that may move; None: all."""
    labelled: bool = False
    """Only pods move that have the label `hami.io/movable`, or whose namespace has it."""

    def __str__(self) -> str:
        if self.pod:
            return f"a place for pod {self.pod}"
        if self.devices:
            return f"{self.devices} more free {'device' if self.devices == 1 else 'devices'}"
        size = f" with {self.least} devices or more" if self.least > 1 else ""
        return f"{self.nodes} more free {'node' if self.nodes == 1 else 'nodes'}{size}"


class Movables(Struct, frozen=True):
    pods: list[Movable] = field(default_factory=list)
    """In order of their keys."""
    refused: dict[str, str] = field(default_factory=dict)
    """Key of each other pod that holds devices → why it stays."""


def movables_of(view: SimulatedCluster, goal: Goal, preemption: Preemption) -> Movables:
    """Return the running pods with devices."""
    found = Movables()
    movability = Movability(view, view.settings.assessment, preemption, labelled=goal.labelled)
    for pod in sorted(view.pods.values(), key=lambda each: each.key):
        match movability.of(pod):
            case Movable() as movable if not (why := _comes_back(pod, view, goal)):
                found.pods.append(movable)
            case Movable():
                found.refused[pod.key] = why
            case str() as why:
                found.refused[pod.key] = why
    return found


def _comes_back(pod: Pod, view: SimulatedCluster, goal: Goal) -> str:
    """Return why the pod may come back to what is cordoned meanwhile; or empty."""
    cordon = Taint(key=names.CORDON_TAINT, effect="NoSchedule")
    claims = [claim for key in claim_keys(pod) if (claim := view.claims.get(key)) is not None]
    choices = [each for claim in claims for asked in claim.spec.devices.requests for each in asked.choices]
    if (not goal.devices and any(tolerates(each, UNSCHEDULABLE_TAINT) for each in pod.spec.tolerations)) or (
        not goal.nodes and any(tolerates(each, cordon) for choice in choices for each in choice.tolerations)
    ):
        return "it tolerates what is cordoned, and may come back to it"
    return ""
