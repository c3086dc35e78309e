"""Plans of moves: pods that free whole devices or nodes, or make room for one that waits, by going elsewhere.

Called by `hami-dra defrag`. In: documents and a `Goal`. Out: a `MovePlan`, proven by a replay with the
engine of `hami-dra simulate`, and thus of the controller. Pure.
"""

from controller.insight.defrag.goal import Goal
from controller.insight.defrag.plan import BadGoal, best_of_few, plan_moves
