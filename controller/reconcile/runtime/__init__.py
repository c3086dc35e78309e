"""What every loop of the controller shares: clock, settings, informers, guarded writes, events, metrics."""

from controller.reconcile.runtime import messages, patches
from controller.reconcile.runtime.clock import Clock, LoopClock
from controller.reconcile.runtime.context import Context
from controller.reconcile.runtime.decision_log import DecisionLog
from controller.reconcile.runtime.events import Events
from controller.reconcile.runtime.heartbeat import Heartbeat
from controller.reconcile.runtime.held_back import HeldBack
from controller.reconcile.runtime.in_flight import InFlight
from controller.reconcile.runtime.informers import TAINT_RULE_KINDS, Informer, Informers, taint_rule_kind, watch_name
from controller.reconcile.runtime.metrics import Metrics, QueueStats, State
from controller.reconcile.runtime.settings import DriverSettings, Mode, SchedulingSettings, SelectorLimits, Settings
from controller.reconcile.runtime.uninstall_lease import UninstallWatch, uninstalling_until
from controller.reconcile.runtime.watchdog import Watchdog
from controller.reconcile.runtime.writer import LeadershipLost, Writer
