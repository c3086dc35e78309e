"""One pod after the other: assess, decide, assume. The binding cycle writes the decision.

Created by `controller.reconcile.term` for the time this process leads. `cycle` is the loop;
`unplaced_pods` says what becomes of a pod that gets no devices now; `gangs` decides pods that run
together or not at all.
"""

from controller.reconcile.scheduling_cycle.collaborators import Acting, Decide, Deciding
from controller.reconcile.scheduling_cycle.cycle import SchedulingCycle

__all__ = ["Acting", "Decide", "Deciding", "SchedulingCycle"]
