"""For all tests: hypothesis without deadlines (this may be a busy machine; speed is the benchmarks' business)."""

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
