"""hami-dra as it ships, handed on from module to module: used by the fixtures of tests/e2e and tests/node.

To start it takes seconds of both cores, and most modules want nothing else. So a module that leaves it as it was hands it to the
next one on the same worker, if that wants the same; who else comes next finds the cluster without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from hack.controlplane.api import ApiError
from hack.controlplane.cluster import ControlPlane
from hack.installation import QUICK, Installation

_NEXT = pytest.StashKey[pytest.Item | None]()
_HANDED_ON = pytest.StashKey[Installation]()


def place(item: pytest.Item, longest: Sequence[str]) -> int:
    """For sorting: modules that take long first, so that none of them is begun last and runs alone at the end."""
    return longest.index(item.path.name) if item.path.name in longest else len(longest)


def note_next(item: pytest.Item, following: pytest.Item | None) -> None:
    """To be called at the end of each test, before anything is torn down."""
    item.config.stash[_NEXT] = following


def fixture_is_of(item: pytest.Item, name: str, folder: str) -> bool:
    """Whether the test gets the fixture from the conftest.py of `folder`, and from no module."""
    found = item._fixtureinfo.name2fixturedefs.get(name, ())
    return bool(found) and found[-1].baseid == folder


@contextmanager
def as_it_ships(
    config: pytest.Config, plane: ControlPlane, wanted_by: Callable[[pytest.Item], bool]
) -> Iterator[Installation]:
    """Exclusive mode, gate, webhook, one controller. `wanted_by`: whether a test wants this installation on this cluster."""
    handed_on = config.stash.get(_HANDED_ON, None)
    if handed_on is not None:
        del config.stash[_HANDED_ON]
    installation = handed_on or _begun(plane)
    processes = _processes(installation)
    yield installation
    following = config.stash.get(_NEXT, None)
    if following is not None and wanted_by(following) and _is_well(installation, processes):
        config.stash[_HANDED_ON] = installation
    else:
        installation.remove()


def _begun(plane: ControlPlane) -> Installation:
    installation = Installation(plane)
    try:
        installation.install()
        installation.start_controller(*QUICK)
        installation.start_webhook()
        installation.wait_ready()
    except BaseException:
        installation.remove()
        raise
    return installation


def _processes(installation: Installation) -> dict[str, int]:
    return {name: each.process.pid for name, each in installation.programs.items() if each.process.running}


def _is_well(installation: Installation, processes: dict[str, int]) -> bool:
    """Whether the same programs still run, and do what they are there for."""
    try:
        return (
            _processes(installation) == processes
            and installation.is_deciding()
            and installation.is_gating()
            and installation.is_refusing_tolerations()
            and installation.is_converting()
        )
    except ApiError:
        return False
