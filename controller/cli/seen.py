"""Documents as an inventory and its objects, for commands that only read.

Called by `status` and `doctor`, after `controller.cli.state`. In: documents. Out: `Seen`. Objects
get UIDs derived from kind and name (`controller.insight.manifests.read`), so that files
without UIDs can be read, too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import TypeVar

from msgspec import Struct, field

from controller.allocation import FeatureGates
from controller.cluster.pods.gang_key import OPTIONAL_SOURCES, SOURCES, GangKey, gang_of
from controller.insight.manifests import Item, gather
from controller.inventory import Inventory
from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object, ObjectMeta
from hami_dra.api.times import latest
from hami_dra.kube.documents import Document
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles

T = TypeVar("T", bound=Object)


class Seen(Struct):
    inventory: Inventory
    items: dict[str, list[Item]] = field(default_factory=lambda: defaultdict(list))
    """By name of the kind, in order of arrival."""
    notes: list[str] = field(default_factory=list)
    """Assumptions, and what could not be read."""

    def of(self, kind: Kind[T]) -> tuple[T, ...]:
        return tuple(item.object for item in self.items[kind.name])

    def gang_of(self) -> Callable[[Pod], GangKey | None]:
        """Return the function that tells the gang of a pod, by its group where that is known."""
        groups = self.items[kinds.POD_GROUP.name]  # of every API group
        if not groups:
            return partial(gang_of, also=OPTIONAL_SOURCES)
        from controller.gangs import Gangs  # brings the search for placements along

        found = Gangs(OPTIONAL_SOURCES)
        for item in groups:
            found.group_changed(SOURCES[item.kind.group], None, item.object)
        for pod in self.of(kinds.POD):
            found.pod_changed(None, pod)
        return found.of

    def taken(self, now: datetime) -> datetime:
        """Return the latest timestamp of an object, of files about when they were taken; without any, `now`."""
        return latest(self._moments(), now)

    def _moments(self) -> Iterator[str | None]:
        for items in self.items.values():
            for item in items:
                metadata = item.object.metadata
                yield from (metadata.creation_timestamp, metadata.deletion_timestamp)
                allocation = (item.raw.get("status") or {}).get("allocation") or {}
                yield allocation.get("allocationTimestamp")


def seen(documents: Iterable[Document], profiles: DriverProfiles = BUILT_IN_PROFILES) -> Seen:
    """Return the state that the documents describe, of the kinds that are used. Raises BadManifest."""
    found = Seen(Inventory(FeatureGates().pool_gates, profiles=profiles))
    gathered = gather(documents)
    found.notes += gathered.unreadable
    feeds = found.inventory.feeds
    for item in gathered.items:
        found.items[item.kind.name].append(item)
        if (feed := feeds.get(item.kind)) is not None:
            feed(None, item.object)
    if not found.items[kinds.NODE.name]:
        _assume_nodes(found)
    return found


def _assume_nodes(found: Seen) -> None:
    """Assume ready nodes for slices if there is no Node at all, as `simulate` does."""
    wanted = dict.fromkeys(each.spec.node_name for each in found.of(kinds.RESOURCE_SLICE) if each.spec.node_name)
    for name in wanted:
        found.inventory.node_changed(None, Node(metadata=ObjectMeta(name=name, uid=f"Node//{name}")))
    if wanted:
        found.notes.append(f"no Node in the input: assumed {', '.join(wanted)}, ready and empty")
