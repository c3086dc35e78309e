"""Preemption: the pods of lower priority that would have to be evicted so that a unit of scheduling fits.

Called for a unit that found no room, by the controller (`reconcile.preemption`), simulations and
explanations. Pure, as `decide`: the inventory is tried without some pods and is as before afterwards. What
may be a victim is kube-scheduler's rule, extended to devices (docs/preemption.md).
"""

from controller.preemption.bounds import NOT_ENOUGH
from controller.preemption.budgets import Budgets
from controller.preemption.deletion_costs import deletion_costs
from controller.preemption.plan import PATIENCE, NoPlan, PreemptionPlan, PreemptionRules
from controller.preemption.preempt import Preemption, Search, doubled
from controller.preemption.soonest import Vacancy, soonest
from controller.preemption.tenants import Tenants, grace_ends, latest_moment, must_run_until, seconds_of, why_it_stays
from controller.preemption.victims import OutOfSteps
