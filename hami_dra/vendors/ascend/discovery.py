"""Ascend NPUs, through `npu-smi`.

Called by the node driver. `npu-smi info` has all chips with health, place and memory; `npu-smi info
-t board` has the identity of one chip (VDie ID), which never changes and is read once; `npu-smi
info -t topo` has the links of HCCS, read once for a set of chips. A chip that is missing in the table
is there while its board answers. Parsers are pure.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault, IdentitySource, Provenance
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.errors import DiscoveryError, Unreadable, shown
from hami_dra.discovery.indented import values_of
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.matrix import Matrix, parse_matrix
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.reading import memory
from hami_dra.discovery.sysfs import SYS, placed
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.ascend.models import product_of
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.table import INFO, ChipRow, ChipTable, parse_table

VENDOR: Final = "ascend"
_DRIVER: Final = Path("/usr/local/Ascend/driver/lib64")
TOOL: Final = Tool(
    "npu-smi",
    (Path("/usr/local/sbin"), Path("/usr/local/bin")),
    libraries=(_DRIVER / "common", _DRIVER / "driver", _DRIVER),
)
_BOARD: Final = "npu-smi info -t board"
_TOPOLOGY: Final = "npu-smi info -t topo"
_DIES: Final = ("VDie ID", "DDie ID", "Die ID")
"""Names of the identity, the one that HAMi uses first."""
_DIE: Final = re.compile(r"[0-9A-Fa-f]{8}( [0-9A-Fa-f]{8}){4}")
_LINK: Final = "HCCS(?:_SW)?|SIO"
_HEALTHY: Final = "ok"
_WITHOUT_MATRIX: Final = 1
_WITHOUT_DIE: Final = 2
"""Ranks of a record (`Provenance.rank`), by what is missing."""

Chip = tuple[int, int, str]
"""Numbers of the board and of the chip on it, PCI address."""


class ChipDetails:
    """What is read of chips once: identities and links change only while the machine is off."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._dies: dict[Chip, str] = {}
        self._matrix: tuple[tuple[Chip, ...], Matrix] | None = None
        self._listed: frozenset[tuple[int | None, int | None]] = frozenset()
        """Numbers of board and chip in the latest table."""

    def look(self, rows: Sequence[ChipRow]) -> None:
        """Note the chips of the latest table."""
        self._listed = frozenset((row.npu, row.chip) for row in rows)

    def die(self, row: ChipRow) -> str:
        """Return the die's identity. Raises DiscoveryError."""
        key = _chip(row)
        if key not in self._dies:
            self._dies[key] = parse_board(self._board(row.npu, row.chip))
        return self._dies[key]

    def matrix(self, rows: Sequence[ChipRow]) -> Matrix:
        """Return how the chips are joined. Raises DiscoveryError."""
        chips = tuple(map(_chip, rows))
        if self._matrix is None or self._matrix[0] != chips:
            text = self._tool.run("info", "-t", "topo") if len(rows) > 1 else ""
            self._matrix = chips, parse_topology(text) if text else Matrix({}, {})
        return self._matrix[1]

    def witnesses(self, known: Iterable[Card]) -> Iterator[Trace]:
        """Yield the known chips that are not in the table, and of which the board still answers."""
        for card in known:
            if not isinstance(card, AscendRecord) or card.npu_id is None or card.chip_id is None:
                continue
            if (card.npu_id, card.chip_id) not in self._listed:
                with contextlib.suppress(DiscoveryError):
                    yield self._witness(card, self._board(card.npu_id, card.chip_id))

    def _witness(self, card: AscendRecord, board: str) -> Trace:
        """Return the chip that the board names. Raises Unreadable when it names none."""
        if card.provenance.identified_by is not IdentitySource.PLACE:
            return Trace(uuid=parse_board(board))
        numbers = values_of(board)
        if (numbers.get("NPU ID"), numbers.get("Chip ID")) != (str(card.npu_id), str(card.chip_id)):
            raise Unreadable(f"{_BOARD}: expected NPU {card.npu_id}, chip {card.chip_id}, got {shown(board)}")
        return Trace(minor=card.minor)

    def _board(self, npu: int, chip: int) -> str:
        return self._tool.run("info", "-t", "board", "-i", str(npu), "-c", str(chip))


def _chip(row: ChipRow) -> Chip:
    return row.npu, row.chip, row.bus_id


def backend(state_folder: Path | None = None, tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    cards = CardMemory(AscendRecord, state_folder and state_folder / CARDS_FILE)
    details = ChipDetails(tool)
    return PolledBackend(
        VENDOR,
        lambda: read(tool, sys, details),
        witnesses=lambda: details.witnesses(cards.cards.values()),
        memory=cards,
    )


def read(tool: Tool = TOOL, sys: Path = SYS, details: ChipDetails | None = None) -> Listing:
    """Return all Ascend NPUs of this machine. Raises DiscoveryError."""
    table = parse_table(tool.run("info"))
    details = details or ChipDetails(tool)
    details.look(table.rows)
    problems = list(table.problems)
    dies: dict[int, str] = {}
    failed: set[str] = set()
    if not table.complete:
        problems.append(f"{INFO}: expected a table of processes after the chips, got none: the output is not complete")
        failed.add(INFO)
    for row in table.rows:
        try:
            dies[row.index] = details.die(row)
        except DiscoveryError as error:
            problems.append(f"NPU {row.npu}, chip {row.chip}: {error}")
            failed.add(_BOARD)
    matrix: Matrix | None = None
    try:
        matrix = details.matrix(table.rows)
    except DiscoveryError as error:
        problems.append(str(error))
    found = join(table, dies, matrix, problems)
    return replace(found, cards=tuple(placed(found.cards, sys)), failed=frozenset(failed))


def join(table: ChipTable, dies: Mapping[int, str], matrix: Matrix | None, problems: list[str]) -> Listing:
    """Join the listings to cards. Raises Unreadable when no chip has memory."""
    cards = []
    reader = ListingReader(INFO, problems, list(table.seen))
    addresses: set[str] = set()
    for row in table.rows:
        die = dies.get(row.index, "")
        with reader.entry(
            f"{INFO}, NPU {row.npu}, chip {row.chip}", Trace(uuid=die, bus_id=row.bus_id, index=row.index)
        ):
            cards.append(_record(row, die, matrix, table.driver_version, shared=addresses))
        addresses.add(row.bus_id)
    problems += matrix.problems if matrix else ()
    return reader.settled(cards)


def parse_board(text: str) -> str:
    """Parse `npu-smi info -t board` of one chip: five words of the die, joined as HAMi does. Raises Unreadable."""
    values = values_of(text)
    given = next((value for key in _DIES if (value := values.get(key, ""))), "")
    # an output that broke off must not name another chip from then on
    if not _DIE.fullmatch(given) or set(given) <= set("0 "):
        raise Unreadable(
            f"{_BOARD}: expected the identity of a chip ({_DIES[0]}), got {shown(given) if given else 'none'}"
        )
    return given.replace(" ", "-")


def parse_topology(text: str) -> Matrix:
    """Parse the matrix. `HCCS` is a link; the tool does not count lanes. Raises Unreadable."""
    return parse_matrix(text, _TOPOLOGY, devices=("NPU",), link=_LINK)


def _record(row: ChipRow, die: str, matrix: Matrix | None, version: str, *, shared: set[str]) -> AscendRecord:
    """Return the record. `shared`: PCI addresses of chips before it; a board's second chip has the
    address of the first, which then names only that one.
    """
    by_place = f"{row.bus_id}/{row.chip}"
    return AscendRecord(
        vendor=VENDOR,
        index=row.index,
        uuid=die or by_place,
        provenance=Provenance(
            identified_by=IdentitySource.UUID if die else IdentitySource.PLACE,
            rank=_WITHOUT_DIE * (not die) + _WITHOUT_MATRIX * (matrix is None),
            listed_by=(INFO,),
        ),
        product=product_of(row.name),
        memory=memory(str(row.memory), "MiB"),
        pci_bus_id="" if row.bus_id in shared else row.bus_id,
        links=matrix.links.get(row.index, {}) if matrix else {},
        distances=matrix.distances.get(row.index, {}) if matrix else {},
        minor=row.index,
        faults=_faults(row),
        driver_version=version,
        npu_id=row.npu,
        chip_id=row.chip,
        matrix_known=matrix is not None,
    )


def _faults(row: ChipRow) -> tuple[Fault, ...]:
    """Return a fault unless the chip is well; HAMi takes no card with any alarm either."""
    if row.health.lower() == _HEALTHY:
        return ()
    message = f"{INFO} says Health: {shown(row.health)} of NPU {row.npu}, chip {row.chip}"
    return (Fault(code="unhealthy", message=message),)
