"""All vendors, by the driver whose devices they know. A driver that is not here has no vendor rules."""

from collections.abc import Iterable, Mapping

from hami_dra.vendors.containers import ContainerVendor
from hami_dra.vendors.enflame import Enflame
from hami_dra.vendors.enflame.containers import EnflameContainers
from hami_dra.vendors.enflame.legacy import EnflameLegacy
from hami_dra.vendors.enflame.publish import EnflamePublishing as EnflamePublished
from hami_dra.vendors.kunlunxin import Kunlunxin
from hami_dra.vendors.kunlunxin.containers import KunlunxinContainers
from hami_dra.vendors.kunlunxin.legacy import KunlunxinLegacy
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing as KunlunxinPublished
from hami_dra.vendors.legacy import LegacyVendor
from hami_dra.vendors.metax import Metax
from hami_dra.vendors.metax.containers import MetaxContainers
from hami_dra.vendors.metax.legacy import MetaxLegacy
from hami_dra.vendors.metax.publish import MetaxPublishing as MetaxPublished
from hami_dra.vendors.neuron import Neuron
from hami_dra.vendors.neuron.containers import NeuronContainers
from hami_dra.vendors.neuron.legacy import NeuronLegacy
from hami_dra.vendors.neuron.publish import NeuronPublishing as NeuronPublished
from hami_dra.vendors.nvidia import Nvidia
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from hami_dra.vendors.nvidia.legacy import NvidiaLegacy
from hami_dra.vendors.nvidia.publish import NvidiaPublishing as NvidiaPublished
from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.publishing import PublishingVendor
from hami_dra.vendors.quotas import QuotaName, Quotas

VENDORS: tuple[Vendor, ...] = (Nvidia(), Metax(), Kunlunxin(), Neuron(), Enflame())
LEGACY_VENDORS: tuple[LegacyVendor, ...] = (
    NvidiaLegacy(),
    MetaxLegacy(),
    NeuronLegacy(),
    EnflameLegacy(),
    KunlunxinLegacy(),
)
"""Whose old resource names the webhook converts; requests of a claim come in this order."""
PUBLISHING_VENDORS: tuple[PublishingVendor, ...] = (
    NvidiaPublished(),
    MetaxPublished(),
    KunlunxinPublished(),
    NeuronPublished(),
    EnflamePublished(),
)
"""Whose cards a driver of ours publishes; deviceclasses/ is made from them."""
CONTAINER_VENDORS: tuple[ContainerVendor, ...] = (
    NvidiaContainers(),
    MetaxContainers(),
    KunlunxinContainers(),
    NeuronContainers(),
    EnflameContainers(),
)
"""Whose cards a driver of ours hands to containers: the same vendors."""
WISH_ANNOTATIONS: frozenset[str] = frozenset().union(*(vendor.annotations for vendor in VENDORS))
"""Annotations of pods, claims, templates and classes that some vendor reads."""
OWN_DRIVERS: frozenset[str] = frozenset(vendor.driver for vendor in PUBLISHING_VENDORS)
"""hami-dra's own drivers: each publishes one pool on each node, and names it after the node."""
_BY_DRIVER = {vendor.profile.driver: vendor for vendor in VENDORS}
_CONTAINERS = {vendor.name: vendor for vendor in CONTAINER_VENDORS}
_QUOTAS = {vendor.driver: vendor.quotas for vendor in LEGACY_VENDORS}
QUOTA_NAMES: Mapping[str, QuotaName] = {name.key: name for quotas in _QUOTAS.values() for name in quotas.names}
"""Key in `hard` of a ResourceQuota (`limits.nvidia.com/gpumem`) → what it limits."""
_PLUGIN_RESOURCES = {vendor.driver: vendor.plugin_resources for vendor in LEGACY_VENDORS}


def vendor_of(driver: str) -> Vendor | None:
    return _BY_DRIVER.get(driver)


def quotas_of(driver: str) -> Quotas | None:
    """How quotas count the cards of a driver; None: they do not."""
    return _QUOTAS.get(driver)


def containers(vendor: str) -> ContainerVendor:
    """`vendor`: `Card.vendor`. Raises KeyError for one that is not here."""
    return _CONTAINERS[vendor]


def plugin_resources(drivers: Iterable[str]) -> tuple[str, ...]:
    """What device plugins call the cards of these drivers: a node that offers one of them hands out the same cards twice."""
    return tuple(name for driver in sorted(drivers) for name in _PLUGIN_RESOURCES.get(driver, ()))
