"""Fixtures of the tests that run on a real node: kubelet, containerd, runc and CDI beside the real control plane (hack/node).

Where it cannot run (no root, no cgroups) the tests are skipped loudly, or fail with REQUIRE_ALL=1. Programs are built after
collection, outside any test's time limit.
"""

import os
import secrets

import pytest

from hack.controlplane import build
from hack.controlplane.cluster import ControlPlane
from hack.node import cuda
from hack.node import node as real
from hack.node.requirements import why_not
from tests.node.bench import Bench
from tests.support.installations import as_it_ships, fixture_is_of, note_next, place

_WHY_MISSING = pytest.StashKey[str]()
_CLIENT_QPS = 5000
_LONGEST = (
    "test_node_restarts.py",
    "test_node_load.py",
    "test_node_runs.py",
    "test_node_nvml.py",
    "test_node_memory.py",
)


def pytest_configure(config):
    config.stash[_WHY_MISSING] = why_not()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Long modules first; those that share an installation in a row."""
    for item in items:
        if "machine_room" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.node)
    items.sort(key=lambda item: (place(item, _LONGEST), _shares(item)))


def _shares(item):
    return fixture_is_of(item, "hami", "tests/node")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    note_next(item, nextitem)


def pytest_collection_finish(session):
    config = session.config
    wanted = any("machine_room" in getattr(item, "fixturenames", ()) for item in session.items)
    if config.option.collectonly or config.stash[_WHY_MISSING] or not wanted:
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    try:
        for target in (build.DEFAULT_VERSION, *real.TARGETS):
            build.ensure(target, reporter.write_line if reporter else print)
        cuda.ensure()
    except build.BuildError as error:
        config.stash[_WHY_MISSING] = str(error)


@pytest.fixture(scope="session")
def machine_room(request):
    """Nothing but the certainty that nodes can run here."""
    if why := request.config.stash[_WHY_MISSING]:
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(f"no real node: {why}", pytrace=False)
        pytest.skip(f"NO REAL NODE, NOT TESTED: {why}")


@pytest.fixture(scope="session")
def plane(machine_room):
    with ControlPlane(client_qps=_CLIENT_QPS) as one:
        yield one


@pytest.fixture(scope="module")
def node(plane):
    """A node of the module's own."""
    with real.Node(plane) as one:
        yield one


@pytest.fixture(scope="module")
def hami(plane, request):
    """hami-dra as it ships: exclusive mode, gate, webhook; one controller. A module may define its own."""
    with as_it_ships(request.config, plane, _shares) as installation:
        yield installation


@pytest.fixture
def bench(plane, node, hami):
    """See bench.py. What a test started is stopped, and its pods, claims and slices are gone."""
    one = Bench(plane, node, hami, f"test-{secrets.token_hex(4)}")
    yield one
    one.close()
