"""Which pending pod is tried next, and when: queue, fairness, queueing hints, backoff."""

from controller.reasons import FOREIGN, Change
from controller.reconcile.queueing.gang_assessment import GangAssessment, assess_gang
from controller.reconcile.queueing.gang_queue import GangQueue
from controller.reconcile.queueing.node_backoff import NodeBackoff
from controller.reconcile.queueing.pod_assessment import Answer, Conversion, Pending, PodAssessor, Schedulable
from controller.reconcile.queueing.queueing_hints import News, helpful
from controller.reconcile.queueing.refused_groups import FOREVER
from controller.reconcile.queueing.selector_budgets import NamespaceWaits, SelectorBudgets, content_of
from controller.reconcile.queueing.triggers import Triggers, rank
from controller.reconcile.queueing.volume_triggers import VolumeTriggers
from controller.reconcile.queueing.waiting_pods import WaitingPods

__all__ = [
    "FOREIGN",
    "FOREVER",
    "Answer",
    "Change",
    "Conversion",
    "GangAssessment",
    "GangQueue",
    "NamespaceWaits",
    "News",
    "NodeBackoff",
    "Pending",
    "PodAssessor",
    "Schedulable",
    "SelectorBudgets",
    "Triggers",
    "VolumeTriggers",
    "WaitingPods",
    "assess_gang",
    "content_of",
    "helpful",
    "rank",
]
