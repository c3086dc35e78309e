"""The cluster's cards for people and metrics: inventory, usage by tenant, and packing."""

from controller.views.overview.card_table import CORDONED, NO_CARD, READY, CardTable, driver_rank, troubles, vendor_name
from controller.views.overview.container_use import ContainerUse, container_uses, samples_of
from controller.views.overview.model import (
    Card,
    NamespaceView,
    NodeView,
    Overview,
    Packing,
    PlacedPod,
    Reservation,
    Tenant,
    Vanished,
)
from controller.views.overview.namespace_usage import NamespaceUsage, namespaces
from controller.views.overview.packing import linked_sizes, packing
from controller.views.overview.read import overview
from controller.views.overview.reservations import Held, by_card, decoded, device_id, encoded, node_of, reservations
from controller.views.overview.tenancies import Tenancies
