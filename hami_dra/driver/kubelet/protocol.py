"""kubelet's calls to a driver, without gRPC: implemented by `driver.prepare` and `driver.node`,
called by `service` and `health`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hami_dra.api.meta import Struct


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim in kubelet's call, without its allocation: the implementation reads it and checks the uid."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PreparedDevice(Struct, frozen=True, kw_only=True):
    """One device that a claim holds, and its CDI devices for containers that refer to it. Stored in the checkpoint."""

    requests: tuple[str, ...]
    """Names of the claim's requests, never of subrequests; empty = every request."""
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


class Preparation(Protocol):
    """Prepare claims. Supports several claims per call, concurrent calls, and repeated calls, which
    get the same answer.

    kubelet gives up after 45 s, so an answer, even if only that it takes longer, comes before. A
    call that kubelet gave up is cancelled; work begun for it is finished nevertheless, for kubelet
    relies on it.
    """

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Return uid → devices, or a sentence with the reason of the failure. An entry for every claim."""

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Return uid → a sentence with the reason of the failure, empty = done. An unknown claim is done."""


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
    """The health of devices. Several readers are possible: `changed` refers to the last read of any
    of them, so read again after every wait.
    """

    def current(self) -> Sequence[DeviceHealth]:
        """Return every device of the driver: one that is left out turns Unknown."""

    async def changed(self) -> None:
        """Return when `current` differs from its last result."""
