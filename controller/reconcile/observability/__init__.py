"""What operators see: collectors for /metrics, the log of decisions, the usage on ResourceQuotas."""

from controller.reconcile.observability import decision_logging
from controller.reconcile.observability.bind_times import BindTimes
from controller.reconcile.observability.collectors.scrape import Scrape
from controller.reconcile.observability.quotas import QuotaNotes
from controller.reconcile.observability.side_thread import SideServices, watched
from controller.reconcile.observability.unreadable import UnreadableObjects
from controller.reconcile.observability.vanished import VanishedWatch
