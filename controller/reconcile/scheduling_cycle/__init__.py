"""One pod after the other: assess, decide, assume. The binding cycle writes the decision.

Created by `controller.reconcile.term` for the time this process leads. `cycle` is the loop;
`unplaced_pods` says what becomes of a pod that gets no devices now.
"""

from controller.reconcile.scheduling_cycle.cycle import Acting, Decide, Deciding, SchedulingCycle

__all__ = ["Acting", "Decide", "Deciding", "SchedulingCycle"]
