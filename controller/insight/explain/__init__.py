"""Explanations of decisions: why a pod got its node and cards, or none, with all figures.

Called by `controller.reconcile.runtime.decision_log` (past decisions), `hami-dra explain` (a
decision made now) and the log at levels 4 and 5. Pure: reads the inventory and the trace of
`decide`, and decides nothing itself.
"""

from controller.insight.explain.explain import explain, explained_gang, of_unmanaged, with_gang, with_plan
from controller.insight.explain.render import explanation_of
from controller.insight.explain.snapshot import DecisionSnapshot, bare, share_parts, take
