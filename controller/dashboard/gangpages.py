"""Content of the page of gangs: those that run, wait or hold devices. HTML: `templates/gangs.html`.

Values only; see `cardpages`. Why a gang waits is the pending page's.
"""

from typing import Final, Literal

from msgspec import Struct

from controller.dashboard.pacing import paced
from controller.dashboard.reserved import reserved
from controller.dashboard.tables import PageTable, Query
from controller.gangs import GangState
from controller.views.columns import Column, Columns, plain
from controller.views.overview import Reservation

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


_COLUMNS: Final[Columns[GangRow]] = (
    Column(
        "gang",
        "Gang",
        lambda row: row.name,
        {
            "namespace": lambda row: row.gang.key.namespace,
            "gang": lambda row: row.gang.key.name,
            "source": lambda row: row.gang.key.source,
        },
    ),
    plain("age", lambda row: row.created, "Age", exported="created", sort=lambda row: (row.created, row.name)),
    plain("state", lambda row: row.state, "State", sort=lambda row: (STATES.index(row.state), row.name)),
    plain("size", lambda row: row.gang.min_count, "Needed", sort=True, exported="needed", number=True),
    plain("existing", lambda row: row.existing, "Existing", number=True),
    plain("running", lambda row: row.gang.bound, "Running", sort=True, number=True),
    plain("held", lambda row: len(row.held), "Held", number=True),
    plain("nodes", lambda row: row.nodes, "Nodes", classes=""),
    plain("topology", lambda row: row.topology, "Topology", classes=""),
)


class GangTable(PageTable[GangRow]):
    columns = _COLUMNS
    asks = ("q", "state")

    async def find(self, query: Query) -> list[GangRow]:
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
        return [row for row in rows if state in ("", row.state)]


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
