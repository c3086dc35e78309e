"""What containers use of the cards that they share, as the library that limits them counts it.

Written by the vendors' readers (`VendorPlugin.usage`), run by the node driver. In: containers with
the cards that they were granted, and the files that they were given. Out: a `Sample`.

The numbers come from files that the container can write. So nothing of them but numbers is passed
on, numbers that cannot be are left out, and every text (card, pod, container) is the driver's own.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field

from hami_dra.monitor.readings import Sampler

SOURCE: Final = "hami-core"

MOST_SECONDS_AHEAD: Final = 86_400
"""A time that lies further ahead than this is no time: clocks are adjusted by less."""


class GrantedContainer(Struct, frozen=True, kw_only=True):
    """A container that alone has its edits, so that the files it was given are its own."""

    view: str
    """Unique on the node (`ContainerView.name`)."""
    label: str
    """`namespace/pod, container name`: for people."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The driver's variables in the container."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Path in the container → path on the host."""
    cards: Mapping[str, int] = field(default_factory=dict)
    """Uuid → bytes that it may have in use at most, by what is known of the card."""


class CardUsage(Struct, frozen=True, kw_only=True):
    """What one container uses of one card. None: not reported, or impossible."""

    memory_used: int | None = None
    """Bytes, of all its processes."""
    memory_context: int | None = None
    """The part that contexts take."""
    memory_module: int | None = None
    """The part that code takes."""
    memory_buffer: int | None = None
    """The part that data takes."""
    utilization: float | None = None
    """Percent of the card's cores, 0 to 100."""

    @property
    def memory_parts(self) -> tuple[int | None, int | None, int | None]:
        return self.memory_context, self.memory_module, self.memory_buffer


class ContainerUsage(Struct, frozen=True, kw_only=True):
    cards: Mapping[str, CardUsage] = field(default_factory=dict)
    """By uuid; only cards that the container was granted."""
    last_kernel: int | None = None
    """Unix time of the last kernel that it launched."""


class UsageReader(Sampler[GrantedContainer, ContainerUsage], Protocol):
    """Reads what containers use, from their files. A file that is missing, broken or hostile is left out."""

    def own_folders(self) -> Sequence[str]:
        """Return the paths of all folders that this driver has made for containers."""

    def release(self) -> Sequence[str]:
        """Take back what an earlier driver did to containers. Needs no prepared claim. Returns problems."""
