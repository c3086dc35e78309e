"""Fixtures of the tests that run against a real Kubernetes (tests/e2e, tests/hostile/cluster); how it is made: hack/controlplane.

Loaded as a plugin by tests/conftest.py, so that several folders share one control plane per worker.

`lab` is hami-dra installed, with a namespace and machines of the test's own (lab.py); a module shares one installation, and modules
that want it as it ships hand it on, as long as they leave it as it was.

A test that asks for `control_plane` (or `api`, `namespace`, `nodes`, `create`) shares one control plane per session and
variant (hack/controlplane/variants.py). It is $HAMI_DRA_K8S (default 1.37.1; several with commas), or what the test or
its module pins: `@pytest.mark.kubernetes("1.36.4", "1.37.1-gangs")`. Missing binaries are built after collection,
outside any test's time limit. Where they cannot be built the tests are skipped loudly, or fail with REQUIRE_ALL=1.
"""

import contextlib
import logging
import os
import secrets

import pytest

from hack.controlplane import build
from hack.controlplane.api import ApiError
from hack.controlplane.cluster import ControlPlane
from hack.controlplane.variants import variant
from hack.controlplane.workload_controllers import JOBSET, LEADER_WORKER_SET, WorkloadController
from hack.installation import Installation
from tests.e2e.lab import Lab
from tests.support.installations import as_it_ships, fixture_is_of, note_next, place

_LOG = logging.getLogger(__name__)
_VARIANTS = os.environ.get("HAMI_DRA_K8S", build.DEFAULT_VERSION).split(",")
_WHY_MISSING = pytest.StashKey[dict[str, str]]()
_RUNNING = pytest.StashKey[dict[str, ControlPlane]]()
"""Shared control planes by variant; pytest keeps one at a time."""
_LONGEST = (
    "test_load.py",
    "test_node_filter_churn.py",
    "test_preemption.py",
    "test_gang_life.py",
    "test_chart_on_cluster.py",
    "test_rights_used.py",
    "test_crash.py",
    "test_churn.py",
    "test_uninstall.py",
    "test_fleet_on_cluster.py",
    "test_http_cluster.py",
    "test_bad_input.py",
    "test_gangs.py",
    "test_node_filter.py",
    "test_spread_constraints.py",
    "test_webhook_down.py",
    "test_doctor_status.py",
)
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
# The components' own client limits bind about 10 pods/s; tests are not about them.
_CLIENT_QPS = 5000


def pytest_configure(config):
    config.addinivalue_line("markers", "kubernetes(*variants): run on these variants whatever HAMI_DRA_K8S says")
    config.stash[_WHY_MISSING] = {}
    config.stash[_RUNNING] = {}


def pytest_generate_tests(metafunc):
    if "control_plane" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kubernetes")
        variants = list(marker.args) if marker else _VARIANTS
        metafunc.parametrize("control_plane", variants, indirect=True, scope="session")


def _versions_of(item):
    """The versions that a collected test needs; none when it does not touch a control plane."""
    callspec = getattr(item, "callspec", None)
    if callspec and "control_plane" in callspec.params:
        return [variant(callspec.params["control_plane"]).version]
    asks = "make_control_plane" in getattr(item, "fixturenames", ())
    return [variant(each).version for each in _VARIANTS] if asks else []


def _built_for(item):
    """The targets of hack/controlplane/build.py that a collected test needs."""
    workloads = {"jobset_controller", "lws_controller"} & set(getattr(item, "fixturenames", ()))
    return [*_versions_of(item), *(["workloads"] if workloads else [])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Long modules first; those that share an installation in a row."""
    for item in items:
        if _versions_of(item):
            item.add_marker(pytest.mark.e2e)
    items.sort(key=lambda item: (place(item, _LONGEST), _shares(item)))


def _shares(item):
    """Whether the test wants hami-dra as it ships, on the shared control plane."""
    return all(fixture_is_of(item, name, "") for name in ("hami", "control_plane"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    note_next(item, nextitem)


def pytest_collection_finish(session):
    if session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter else print
    for target in sorted({target for item in session.items for target in _built_for(item)}):
        try:
            build.ensure(target, say)
        except build.BuildError as error:
            session.config.stash[_WHY_MISSING][target] = str(error)


def _require(config, target):
    if why := config.stash[_WHY_MISSING].get(target):
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(f"not built: {target}: {why}", pytrace=False)
        pytest.skip(f"NOT BUILT, NOT TESTED: {target}: {why}")


@pytest.fixture(scope="session")
def control_plane(request):
    """The shared `ControlPlane`; leave it as found."""
    chosen = variant(request.param)
    _require(request.config, chosen.version)
    running = request.config.stash[_RUNNING]
    with ControlPlane(client_qps=_CLIENT_QPS, **chosen.options) as plane:
        running[request.param] = plane
        yield plane
        del running[request.param]


@pytest.fixture
def make_control_plane(request):
    """`make_control_plane(version=..., feature_gates=..., ...)`: a started one of the test's own, for rough handling."""
    planes = []

    def make(version=_VARIANTS[0], **options):
        chosen = variant(version)
        _require(request.config, chosen.version)
        plane = ControlPlane(**{"client_qps": _CLIENT_QPS, **chosen.options, **options})
        planes.append(plane)
        return plane.start()

    yield make
    for plane in planes:
        plane.stop()


@pytest.fixture
def api(control_plane):
    """The administrator's client."""
    return control_plane.api


@pytest.fixture
def namespace(control_plane):
    """A namespace of the test's own; afterwards its pods and claims are gone, and it follows by itself."""
    name = f"test-{secrets.token_hex(4)}"
    api = control_plane.api
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    api.wait_for(
        "its service account", lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"), seconds=60
    )
    yield name
    _remove(api, name)


def _remove(api, namespace):
    # First the namespace, so that controllers make nothing new in it; a namespace on its way out still takes deletes.
    api.delete(f"/api/v1/namespaces/{namespace}")
    pods, claims = f"/api/v1/namespaces/{namespace}/pods", _CLAIMS.format(namespace)

    def gone():
        for path in (pods, claims):
            api.delete(path, gracePeriodSeconds=0)
        return not api.list(pods) and not api.list(claims)

    try:
        api.wait_for(f"pods and claims of {namespace} gone", gone, seconds=20, every=0.2)
    except TimeoutError:
        # Allocated claims that nobody frees. The test that made them has been judged; the next needs the devices.
        for claim in api.list(claims):
            name = claim["metadata"]["name"]
            _LOG.warning("left behind: claim %s/%s", namespace, name)
            with contextlib.suppress(ApiError):  # it may go at this very moment
                api.patch(f"{claims}/{name}", {"metadata": {"finalizers": None}})


@pytest.fixture
def nodes(control_plane):
    """The fake nodes of the control plane; those that the test created are deleted after it."""
    yield control_plane.nodes
    control_plane.nodes.delete_all()
    control_plane.nodes.run_pods = True


@pytest.fixture
def create(control_plane, namespace):
    """`create(object)` adds it, in the test's namespace unless it names one, and removes it after the test."""
    api = control_plane.api
    created = []

    def add(item):
        if api.is_namespaced(item):
            item = {**item, "metadata": {"namespace": namespace, **item["metadata"]}}
        created.append(api.add(item))
        return created[-1]

    yield add
    for item in reversed(created):
        if item["metadata"].get("namespace") != namespace:  # the namespace takes its own with it
            api.remove(item)


@pytest.fixture(scope="module")
def make_installation(control_plane):
    """`make_installation(mode="native", ...)` applies what ships; programs are the caller's to start. Removed after the module."""
    made = []

    def make(**choices):
        made.append(Installation(control_plane))
        made[-1].install(**choices)
        return made[-1]

    yield make
    for installation in reversed(made):
        installation.remove()


@pytest.fixture(scope="module")
def hami(control_plane, request):
    """hami-dra as it ships: exclusive mode, gate, webhook; one controller. A module may define its own."""

    def wanted_by(item):
        running = request.config.stash[_RUNNING]
        return _shares(item) and running.get(item.callspec.params["control_plane"]) is control_plane

    with as_it_ships(request.config, control_plane, wanted_by) as installation:
        yield installation


@pytest.fixture
def jobset_controller(control_plane, request):
    """JobSet's controller with its CRD and webhooks, for one test."""
    _require(request.config, "workloads")
    with WorkloadController(control_plane, JOBSET) as running:
        yield running


@pytest.fixture
def lws_controller(control_plane, request):
    """LeaderWorkerSet's controller with its CRDs and webhooks, for one test."""
    _require(request.config, "workloads")
    with WorkloadController(control_plane, LEADER_WORKER_SET) as running:
        yield running


@pytest.fixture
def lab(control_plane, hami, namespace):
    """See lab.py. Leaves neither pods nor claims nor machines; claims that stay fail the test."""
    one = Lab(control_plane, hami, namespace)
    yield one
    one.close()
