"""Which pending pod is tried next, and when: queue, fairness, queueing hints, backoff."""

from controller.reconcile.queueing.gang_queue import GangQueue
from controller.reconcile.queueing.node_backoff import NodeBackoff
from controller.reconcile.queueing.pod_assessment import Pending, PodAssessor, QueuedUnit
from controller.reconcile.queueing.queueing_hints import News, helpful
from controller.reconcile.queueing.refused_groups import FOREVER
from controller.reconcile.queueing.selector_budgets import NamespaceWaits, SelectorBudgets, content_of
from controller.reconcile.queueing.triggers import Triggers, rank
from controller.reconcile.queueing.volume_triggers import VolumeTriggers
from controller.reconcile.queueing.waiting_pods import Timeouts, WaitingPods
