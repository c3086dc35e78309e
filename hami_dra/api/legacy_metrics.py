"""Sets of metric names that other programs have, which people choose by `--legacy-metrics`."""

from enum import StrEnum


class NameSet(StrEnum):
    """Metric names of other programs, exported next to our own for existing dashboards."""

    HAMI = "hami"
    """`hami_gpu_*`, `hami_vgpu_*`: HAMi's scheduler and monitor since they have names with units."""
    HAMI_2_7 = "hami-2.7"
    """`GPUDeviceMemoryLimit`, ...: HAMi up to 2.7.0."""
