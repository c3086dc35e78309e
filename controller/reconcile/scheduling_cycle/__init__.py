"""One unit after the other: assess, decide, assume. The binding cycle writes the decision.

Created by `controller.reconcile.term` for the time this process leads. `cycle` is the loop, for one
pod as for a gang; `unplaced_units` says what becomes of a unit that gets no devices now; `gang_life`
has what only gangs need: members that are awaited, and what they hold meanwhile.
"""

from controller.reconcile.scheduling_cycle.collaborators import Acting, Deciding
from controller.reconcile.scheduling_cycle.cycle import SchedulingCycle
