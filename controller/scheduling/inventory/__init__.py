"""The cluster as columns: devices, nodes, who holds what, which selectors match. Updated by difference."""

from controller.scheduling.inventory.columns import NOWHERE
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.ledger import DeviceUsage, Holding, holdings_of
from controller.scheduling.inventory.model import UNNUMBERED, Amount, Device, DeviceId
from controller.scheduling.inventory.pools import PoolGates
from controller.scheduling.inventory.products import products_of
from controller.scheduling.inventory.quota_headroom import QuotaLine
from controller.scheduling.inventory.quota_limits import limits_of
from controller.scheduling.inventory.roles import Amounts, consumed_of, totals_of, used_of
from controller.scheduling.inventory.selector_budget import Heartbeat, OverBudget, Overrun, Payer, SliceSpent
from controller.scheduling.inventory.vanished import VanishedClaim
from controller.scheduling.node_filter.existing_terms import Blamed, TermReading

__all__ = [
    "NOWHERE",
    "UNNUMBERED",
    "Amount",
    "Amounts",
    "Blamed",
    "Device",
    "DeviceId",
    "DeviceUsage",
    "Heartbeat",
    "Holding",
    "Inventory",
    "OverBudget",
    "Overrun",
    "Payer",
    "PoolGates",
    "QuotaLine",
    "SliceSpent",
    "TermReading",
    "VanishedClaim",
    "consumed_of",
    "holdings_of",
    "limits_of",
    "products_of",
    "totals_of",
    "used_of",
]
