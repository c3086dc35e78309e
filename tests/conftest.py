"""For all tests: hypothesis without deadlines (this may be a busy machine; speed is the benchmarks' business).

`make test` asks the same questions every time, so that it fails for a change and not by chance. `make soak`
(HAMI_DRA_PROPERTIES=soak) asks others each time, and far more where a test does not say how many.
"""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.control_plane_fixtures", "tests.support.chart_fixtures"]


def pytest_collection_modifyitems(config, items):
    """Leave tests marked `soak` to `make soak` (HAMI_DRA_SOAK=1): they are not skipped but not part of the run."""
    if os.environ.get("HAMI_DRA_SOAK"):
        return
    slow = [item for item in items if item.get_closest_marker("soak")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


os.environ.pop("KUBECONFIG", None)  # no test asks the cluster of whoever runs it

settings.register_profile("default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("default"), derandomize=False, max_examples=3_000)
settings.load_profile(os.environ.get("HAMI_DRA_PROPERTIES", "default"))
