"""Gangs: pods that run together or not at all, decided as one.

Called by `reconcile` and by `simulate`. Pure, as `decide`: the same inventory and request always
give the same answer. The members are placed on a `Trial`, which is taken back at the end.
"""

from controller.cluster.pods.gang_key import API_GROUPS, OPTIONAL_SOURCES, SOURCES, GangKey, Source, gang_of
from controller.gangs.gang_answers import DomainVerdict, GangDecision, GangUnschedulable
from controller.gangs.gang_members import has_terms
from controller.gangs.gang_request import GangRequest, TopologyConstraint
from controller.gangs.gang_search import decide_gang
from controller.gangs.gang_topology import constraints_of
from controller.gangs.membership import Gangs, GangState
from controller.gangs.trial_assumptions import Trial

__all__ = [
    "API_GROUPS",
    "OPTIONAL_SOURCES",
    "SOURCES",
    "DomainVerdict",
    "GangDecision",
    "GangKey",
    "GangRequest",
    "GangState",
    "GangUnschedulable",
    "Gangs",
    "Source",
    "TopologyConstraint",
    "Trial",
    "constraints_of",
    "decide_gang",
    "gang_of",
    "has_terms",
]
