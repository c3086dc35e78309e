"""The cluster as columns: devices, nodes, who holds what, which selectors match. Updated by difference."""

from controller.cluster.pods.existing_terms import Blamed, TermReading
from controller.inventory.columns import NOWHERE
from controller.inventory.inventory import Inventory
from controller.inventory.ledger import DeviceUsage, Holding, holdings_of
from controller.inventory.model import UNNUMBERED, Amount, Device, DeviceId
from controller.inventory.pools import PoolGates
from controller.inventory.products import products_of
from controller.inventory.quota_headroom import QuotaLine, owed
from controller.inventory.quota_limits import is_guarantee, limits_of
from controller.inventory.roles import Amounts, consumed_of, totals_of, used_of
from controller.inventory.selector_budget import Heartbeat, OverBudget, Overrun, Payer, SliceSpent
from controller.inventory.trials import Trial
from controller.inventory.vanished import VanishedClaim
