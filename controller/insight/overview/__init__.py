"""The cluster's cards for people and metrics: inventory, usage by tenant, and packing."""

from controller.insight.overview.card_table import (
    CORDONED,
    NO_CARD,
    READY,
    CardTable,
    driver_rank,
    troubles,
    vendor_name,
)
from controller.insight.overview.container_use import ContainerUse, container_uses
from controller.insight.overview.model import (
    Card,
    NamespaceView,
    NodeView,
    Overview,
    Packing,
    PlacedPod,
    Reservation,
    Tenant,
    Vanished,
    View,
)
from controller.insight.overview.namespace_usage import NamespaceUsage, namespaces
from controller.insight.overview.packing import linked_sizes, packing
from controller.insight.overview.placed import placed_pod
from controller.insight.overview.read import overview
from controller.insight.overview.reservations import reservations
from controller.insight.overview.tenancies import Tenancies

__all__ = [
    "CORDONED",
    "NO_CARD",
    "READY",
    "Card",
    "CardTable",
    "ContainerUse",
    "NamespaceUsage",
    "NamespaceView",
    "NodeView",
    "Overview",
    "Packing",
    "PlacedPod",
    "Reservation",
    "Tenancies",
    "Tenant",
    "Vanished",
    "View",
    "container_uses",
    "driver_rank",
    "linked_sizes",
    "namespaces",
    "overview",
    "packing",
    "placed_pod",
    "reservations",
    "troubles",
    "vendor_name",
]
