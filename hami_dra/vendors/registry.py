"""All vendors, in one order; everything that depends on vendor or driver is derived from it.

A driver that is not here has no vendor rules. A vendor of this project is one folder next to this
module and one line in `_OWN`. A vendor of another project is an installed distribution with an
entry point of the group `hami_dra.vendors` that names its `VendorPlugin` (docs/design/adding-a-vendor.md).
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from hami_dra.api.containers import ContainerVendor
from hami_dra.api.options import VendorOption
from hami_dra.vendors import ascend, enflame, kunlunxin, metax, neuron, nvidia
from hami_dra.vendors.legacy import LegacyVendor
from hami_dra.vendors.plugin import InvalidPlugin, VendorPlugin
from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.publishing import PublishingVendor
from hami_dra.vendors.quotas import QuotaName, Quotas

ENTRY_POINTS: Final = "hami_dra.vendors"
_OWN: Final[tuple[VendorPlugin, ...]] = (
    nvidia.PLUGIN, metax.PLUGIN, neuron.PLUGIN, enflame.PLUGIN, kunlunxin.PLUGIN, ascend.PLUGIN,
)  # fmt: skip


def with_installed(own: tuple[VendorPlugin, ...]) -> tuple[VendorPlugin, ...]:
    """Return these plugins, then those of other distributions, by the name of their entry point.

    Raises InvalidPlugin for an entry point that cannot be loaded, names something else, or takes
    the name, the driver or a resource of another vendor: a program that silently lacks an installed
    vendor would decide wrongly.
    """
    found = list(own)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        where = f"entry point {entry.name} ({entry.value}) of group {ENTRY_POINTS}"
        try:
            plugin = entry.load()
        except Exception as error:
            raise InvalidPlugin(f"{where} cannot be loaded: {error!r}; fix or uninstall its distribution") from error
        if not isinstance(plugin, VendorPlugin):
            raise InvalidPlugin(f"{where} is a {type(plugin).__name__}: make it name a VendorPlugin")
        for other in found:
            taken = sorted(_claimed(plugin) & _claimed(other))
            if taken:
                raise InvalidPlugin(f"{where} uses {', '.join(taken)} of vendor {other.name}: give it names of its own")
        found.append(plugin)
    return tuple(found)


def _claimed(plugin: VendorPlugin) -> set[str]:
    """Return the names that only one vendor can have."""
    return {plugin.name, plugin.driver, *plugin.legacy.resources}


def options_of(plugins: Iterable[VendorPlugin]) -> Mapping[VendorOption[Any], tuple[VendorPlugin, ...]]:
    """Return each option with the vendors that read it. Raises InvalidPlugin for two of one name."""
    readers: dict[VendorOption[Any], tuple[VendorPlugin, ...]] = {}
    for plugin in plugins:
        for option in plugin.options:
            readers[option] = (*readers.get(option, ()), plugin)
    by_flag: dict[str, str] = {}
    for option, (plugin, *_) in readers.items():
        for flag in {option.name, option.field or option.name}:
            if flag in by_flag:
                raise InvalidPlugin(
                    f"vendor {plugin.name}: its option {flag} is not that of vendor {by_flag[flag]}: give it another name, or "
                    "use the same object"
                )
            by_flag[flag] = plugin.name
    return readers


PLUGINS: tuple[VendorPlugin, ...] = with_installed(_OWN)
"""The requests of a claim that the webhook converts come in this order."""
VENDORS: tuple[Vendor, ...] = tuple(plugin.rules for plugin in PLUGINS)
LEGACY_VENDORS: tuple[LegacyVendor, ...] = tuple(plugin.legacy for plugin in PLUGINS)
"""Vendors whose old resource names the webhook converts."""
PUBLISHING_VENDORS: tuple[PublishingVendor, ...] = tuple(plugin.publishing for plugin in PLUGINS)
"""Vendors whose cards hami-dra publishes; deviceclasses/ is generated from them."""
CONTAINER_VENDORS: tuple[ContainerVendor, ...] = tuple(plugin.containers for plugin in PLUGINS)
"""Vendors whose cards hami-dra hands to containers."""
PREFERENCE_ANNOTATIONS: frozenset[str] = frozenset().union(*(vendor.annotations for vendor in VENDORS))
"""Annotations of pods, claims, templates and classes that some vendor reads."""
OWN_DRIVERS: frozenset[str] = frozenset(plugin.driver for plugin in PLUGINS)
"""hami-dra's own drivers: each publishes one pool on each node, and names it after the node."""
OPTIONS: Mapping[VendorOption[Any], tuple[VendorPlugin, ...]] = options_of(PLUGINS)
"""What operators may choose for the cards of vendors → the vendors that read it."""
_BY_DRIVER = {plugin.driver: plugin.rules for plugin in PLUGINS}
_BY_NAME = {plugin.name: plugin for plugin in PLUGINS}
_QUOTAS = {vendor.driver: vendor.quotas for vendor in LEGACY_VENDORS}
QUOTA_NAMES: Mapping[str, QuotaName] = {name.key: name for quotas in _QUOTAS.values() for name in quotas.names}
"""Key in `hard` of a ResourceQuota (`limits.nvidia.com/gpumem`) → what it limits."""
_PLUGIN_RESOURCES = {vendor.driver: vendor.plugin_resources for vendor in LEGACY_VENDORS}


def plugin_of(vendor: str) -> VendorPlugin:
    """`vendor`: `Card.vendor`. Raises KeyError for one that is not here."""
    return _BY_NAME[vendor]


def plugin_names() -> tuple[str, ...]:
    return tuple(_BY_NAME)


def vendor_of(driver: str) -> Vendor | None:
    return _BY_DRIVER.get(driver)


def quotas_of(driver: str) -> Quotas | None:
    """Return how quotas count the cards of a driver; None: they do not."""
    return _QUOTAS.get(driver)


def containers(vendor: str) -> ContainerVendor:
    """`vendor`: `Card.vendor`. Raises KeyError for one that is not here."""
    return _BY_NAME[vendor].containers


def plugin_resources(drivers: Iterable[str]) -> tuple[str, ...]:
    """Return device plugins' names for these drivers' cards: a node that offers one hands out the cards twice."""
    return tuple(name for driver in sorted(drivers) for name in _PLUGIN_RESOURCES.get(driver, ()))
