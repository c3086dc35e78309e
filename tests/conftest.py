"""For all tests: hypothesis without deadlines (this may be a busy machine; speed is the benchmarks' business).

HAMI_DRA_PROPERTIES=soak (`make soak`) tries far more examples where a test does not say how many.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("default"), max_examples=3_000)
settings.load_profile(os.environ.get("HAMI_DRA_PROPERTIES", "default"))
