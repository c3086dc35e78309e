"""How long to wait after the nth failure in a row: exponential, bounded, jittered so that many clients do not come back at once."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Seconds. `next()` gives first, 2·first, 4·first, ... up to `most`, each times a random factor in [0.5, 1.5)."""

    first: float = 0.2
    most: float = 15.0
    uniform: Callable[[], float] = field(default=random.random)
    failures: int = 0

    def next(self) -> float:
        seconds = min(self.first * float(1 << min(self.failures, 30)), self.most)
        self.failures += 1
        return seconds * (0.5 + self.uniform())

    def reset(self) -> None:
        self.failures = 0
