"""What kubelet asks of a driver, without gRPC: implemented by `driver.prepare` and `driver.node`, called by `service` and `health`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim as kubelet names it. kubelet sends no allocation: whoever prepares reads the claim and checks the uid."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device that a claim holds, and what a container that refers to it is given."""

    requests: tuple[str, ...]
    """Names of the claim's requests, never of subrequests; empty = every request."""
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


class Preparation(Protocol):
    """May be called for several claims at once, by several calls at once, and again for what is done: the same answer.

    kubelet gives up after 45 s, so an answer, if only that it takes longer, comes before. A call that kubelet gave up is cancelled; what was begun
    for it is finished nevertheless, for kubelet counts on its having been asked for.
    """

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Uid → devices, or a sentence that says why not. An entry for every claim."""

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Uid → a sentence that says why not, empty = done. A claim that nobody knows is done."""


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    pool: str
    device: str
    verdict: Verdict
    message: str = ""


class HealthSource(Protocol):
    """Several may look at once: `changed` is about the last look of anybody, so look again after every wait."""

    def current(self) -> Sequence[DeviceHealth]:
        """Every device of the driver: one that is left out turns Unknown."""

    async def changed(self) -> None:
        """Returns when `current` differs from what it last returned."""
