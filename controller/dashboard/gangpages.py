"""Content of the page of gangs: those that run, wait or hold devices. HTML: `templates/gangs.html`.

Values only; see `cardpages`. Why a gang waits is the pending page's.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from controller.dashboard.cardpages import Context, Query
from controller.dashboard.pacing import paced
from controller.dashboard.paging import page_slice
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import ordered
from controller.insight.overview import Reservation
from controller.scheduling.gangs import GangState

ON_LEAF: Final = 50
State = Literal["running", "growing", "held", "waiting", "incomplete", "invalid"]
"""What a gang does.

- `running`: all members that exist have a node. `growing`: enough run, and more wait.
- `held`: devices are kept for members, and the gang does not run yet. `waiting`: none is placed.
- `incomplete`: members are still to be created. `invalid`: its size is missing or contradictory.
"""
STATES: Final[tuple[State, ...]] = ("running", "growing", "held", "waiting", "incomplete", "invalid")


class GangRow(Struct, frozen=True):
    gang: GangState
    state: State
    kind: str
    """What states the gang: `PodGroup team/train`, `gang team/train`."""
    created: str
    """Of its oldest member, RFC 3339; empty if it has none."""
    nodes: tuple[str, ...]
    """On which members run or devices are held, by name."""
    held: tuple[Reservation, ...]
    topology: tuple[str, ...]
    """Node labels within one value of which the members must be, or should be."""

    @property
    def name(self) -> str:
        return f"{self.gang.key.namespace}/{self.gang.key.name}"

    @property
    def existing(self) -> int:
        return len(self.gang.members)

    @property
    def held_until(self) -> str:
        return min((each.until for each in self.held if each.until), default="")


_COLUMNS: Final[Mapping[str, Callable[[GangRow], Any]]] = {
    "gang": lambda row: row.name,
    "age": lambda row: (row.created, row.name),
    "state": lambda row: (STATES.index(row.state), row.name),
    "size": lambda row: row.gang.min_count,
    "running": lambda row: row.gang.bound,
}


class GangPages:
    def __init__(self, source: Source) -> None:
        self._source = source

    async def gangs(self, query: Query) -> Context:
        found, asked = await self._found(query)
        return {"leaf": page_slice(found, query.get("leaf", ""), ON_LEAF), "states": STATES, "asked": asked}

    async def exported_gangs(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the rows of the page without pagination."""
        for row in (await self._found(query))[0]:
            yield {
                "namespace": row.gang.key.namespace,
                "gang": row.gang.key.name,
                "source": row.gang.key.source,
                "created": row.created,
                "state": row.state,
                "needed": row.gang.min_count,
                "existing": row.existing,
                "running": row.gang.bound,
                "held": len(row.held),
                "nodes": row.nodes,
                "topology": row.topology,
            }

    async def _found(self, query: Query) -> tuple[list[GangRow], dict[str, str]]:
        """Return the gangs that the query asks for, in its order, and what was asked."""
        text, state = query.get("q", "").strip(), query.get("state", "")
        held: dict[str, list[Reservation]] = {}
        for each in reserved(self._source):
            held.setdefault(each.holder, []).append(each)
        rows = []
        async for key in paced(self._source.gang_keys()):
            if text in f"{key.namespace}/{key.name}":
                gang = self._source.gang(key)
                if gang.members:
                    rows.append(_row(gang, tuple(held.get(str(key), ()))))
        found, sort = await ordered([row for row in rows if state in ("", row.state)], _COLUMNS, query)
        return found, {"q": text, "state": state, **sort}


def _row(gang: GangState, held: tuple[Reservation, ...]) -> GangRow:
    nodes = {pod.spec.node_name for pod in gang.members} | {each.node for each in held}
    return GangRow(
        gang,
        _state(gang, is_held=bool(held)),
        str(gang.key),
        min((pod.metadata.creation_timestamp or "" for pod in gang.members), default=""),
        tuple(sorted(filter(None, nodes))),
        held,
        tuple(each.key for each in gang.topology),
    )


def _state(gang: GangState, *, is_held: bool) -> State:
    if gang.problem:
        return "invalid"
    if not gang.least:
        return "growing" if gang.pending else "running"
    if is_held:
        return "held"
    return "incomplete" if gang.missing else "waiting"
