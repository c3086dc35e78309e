"""Kubernetes' own answers for tests: the Go programs of hack/oracle."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.controlplane.build import BuildError
from hack.oracle.oracle import Conversation


def conversation(name: str) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """For a fixture to yield from: asks one question. Skips loudly where the program cannot be built (no Go, no module
    proxy); with REQUIRE_ALL=1 that is a failure.
    """
    try:
        talking = Conversation(name)
    except BuildError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"NOT RUN, the Go oracle is missing: {error}")
    with talking:
        yield talking.ask
