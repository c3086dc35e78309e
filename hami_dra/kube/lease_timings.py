"""The times of leader election (`hami_dra.kube.lease`), as an operator may choose them.

Apart from the election itself, so that help and completion are quick.
"""

from typing import Annotated, Final

from msgspec import Struct

from hami_dra.api.errors import ConfigError
from hami_dra.api.flags import Option
from hami_dra.api.flags import duration as seconds

MOST_WRITE_SECONDS: Final = 5.0
"""Upper bound of every write, whatever the settings; a new leader waits that long before it reads."""


class Timings(Struct, frozen=True):
    """Seconds. Raises ConfigError unless `duration - renew_deadline > write_timeout + clock_margin`."""

    duration: Annotated[
        int,
        Option(
            "Time without a renewal after which another replica may lead.",
            seconds(1, 3600, whole_seconds="the lease duration"),
            flags=("--lease-duration",),
        ),
    ] = 15
    renew_deadline: Annotated[float, Option("How long a leader continues without renewing.", seconds())] = 8.0
    retry: Annotated[
        float, Option("Time between two attempts to acquire or renew the lease.", seconds(), flags=("--retry-period",))
    ] = 2.0
    write_timeout: Annotated[
        float, Option("Longest duration of a write; a new leader waits that long before it acts.", seconds())
    ] = 5.0
    clock_margin: float = 1.0

    def __post_init__(self) -> None:
        if min(self.duration, self.renew_deadline, self.retry, self.write_timeout) <= 0 or self.clock_margin < 0:
            raise ConfigError(
                f"leader election: all times must be positive: lease duration {self.duration} s, renew deadline "
                f"{self.renew_deadline} s, retry period {self.retry} s, write timeout {self.write_timeout} s, "
                f"clock margin {self.clock_margin} s"
            )
        if self.duration - self.renew_deadline <= self.write_timeout + self.clock_margin:
            raise ConfigError(
                f"leader election: lease duration {self.duration} s - renew deadline {self.renew_deadline} s must be more than "
                f"write timeout {self.write_timeout} s + clock margin {self.clock_margin} s; "
                "raise the duration or lower the renew deadline"
            )
        if self.renew_deadline < 2 * self.retry:
            raise ConfigError(
                f"leader election: renew deadline {self.renew_deadline} s leaves no time for a second attempt after {self.retry} s; "
                "make it at least twice the retry period"
            )
