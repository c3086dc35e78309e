"""Readings by running a vendor's tool once or twice and joining its listings.

Used by `metax`, `kunlunxin` and `enflame`.
"""

from collections.abc import Callable, Sequence

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.readings import Sample, ToolReport, joined

Listing = tuple[tuple[str, ...], Callable[[str], ToolReport]]
"""Arguments of the tool, and the parser of its output."""


class ListingSampler:
    """Implements `hami_dra.monitor.readings.Sampler`.

    One successful listing is enough; more listings add values. If two listings report a value, the
    earlier listing counts.
    """

    def __init__(self, tool: Tool, listings: Sequence[Listing]) -> None:
        self.source = tool.name
        self._tool = tool
        self._listings = listings

    def sample(self, cards: Sequence[Card]) -> Sample:
        """Read the cards. Raises the first listing's error if none succeeds."""
        reports: list[ToolReport] = []
        refused: list[DiscoveryError] = []
        for arguments, parse in self._listings:
            try:
                reports.append(parse(self._tool.run(*arguments)))
            except DiscoveryError as error:
                refused.append(error)
        if not reports:
            raise refused[0]
        return joined(cards, [*reports, ToolReport((), tuple(map(str, refused)))])

    def close(self) -> None:
        """Do nothing: no resources are held."""
