"""Messages to the operator of a node, in the log and in events: once when a state begins, once when it ends.

Used by `service`, which reports the state after every change. It remembers only its last messages.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from hami_dra.api import names
from hami_dra.api.core import Node
from hami_dra.api.hardware import Card
from hami_dra.driver.node.cordon import cordon_of
from hami_dra.driver.node.events import NodeEvents
from hami_dra.driver.node.leftovers import NOT_REMOVED

log = logging.getLogger(__name__)

PLUGIN_PRESENT: Final = "DevicePluginPresent"
PLUGIN_GONE: Final = "DevicePluginGone"
UNKNOWN_CORDON: Final = "UnknownDeviceCordoned"


class Notices:
    def __init__(self, events: NodeEvents) -> None:
        self._events = events
        self._node_seen = True
        self._with_plugin: set[str] = set()
        self._unknown: tuple[str, ...] = ()

    def of_node(self, name: str, node: Node | None) -> None:
        seen = node is not None
        if not seen and self._node_seen:
            log.warning("there is no Node %s: nothing is published until it exists", name)
        self._node_seen = seen

    def of_plugin(self, node: Node, driver: str, offered: Mapping[str, str]) -> None:
        """Report a device plugin. `offered`: the resources that it advertises for this driver's cards, or empty."""
        if bool(offered) == (driver in self._with_plugin):
            return
        if offered:
            self._with_plugin.add(driver)
            what = ", ".join(f"{name}: {amount}" for name, amount in offered.items())
            note = (
                f"{driver} publishes none of its cards: a device plugin on this node offers them too ({what} in "
                "status.allocatable), and would give them to other pods. Remove the device plugin from this node, or start the "
                "driver with --publish-beside-plugin"
            )
            log.warning("%s", note)
            self._events.tell(node, PLUGIN_PRESENT, note)
        else:
            self._with_plugin.discard(driver)
            note = f"{driver} publishes its cards: no device plugin offers them any more"
            log.info("%s", note)
            self._events.tell(node, PLUGIN_GONE, note, warning=False)

    def of_partition(self, node: Callable[[], Node | None], reason: str, note: str) -> None:
        """Report a partition that was left behind; the log has it already."""
        if (found := node()) is not None:
            self._events.tell(found, reason, note, warning=reason == NOT_REMOVED)

    def of_cordon(self, node: Node, cards: Collection[Card] | None) -> None:
        """Report the cordon. `cards`: all served cards of the node; None: not known yet."""
        if cards is None:
            return
        unknown = cordon_of(node, cards).unknown
        if unknown and unknown != self._unknown:
            there = ", ".join(f"{card.name_number} ({card.uuid})" for card in cards) or "none"
            note = (
                f"annotation {names.DEVICE_CORDON}: {', '.join(unknown)}: there is no such card; the value is a "
                f"comma-separated list of numbers or uuids of the cards of this node: {there}"
            )
            log.warning("%s", note)
            self._events.tell(node, UNKNOWN_CORDON, note)
        self._unknown = unknown
