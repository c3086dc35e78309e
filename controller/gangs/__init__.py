"""Units of scheduling: one pod, or a gang, pods that run together or not at all and are decided as one.

Called by `reconcile` and by `simulate`. Pure, as `decide`: the same inventory and unit always
give the same answer. The members are placed on a `Trial`, which is taken back at the end.
"""

from controller.cluster.pods.gang_key import API_GROUPS, OPTIONAL_SOURCES, SOURCES, GangKey, Source, gang_of
from controller.gangs.decide_unit import Decide, decide_unit
from controller.gangs.gang_members import has_terms, members_of, reads_labels, shared_claims
from controller.gangs.gang_search import decide_gang
from controller.gangs.gang_topology import constraints_of
from controller.gangs.membership import Gangs, GangState
from controller.gangs.unit import TopologyConstraint, Unit
from controller.gangs.unit_answers import DomainVerdict, UnitDecision, UnitRefusal
