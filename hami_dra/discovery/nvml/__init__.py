"""NVIDIA GPUs through NVML: `library` has the calls, `cards`, `links` and `mig` read them; others use `backend` and `partitions`."""

from hami_dra.discovery.nvml.backend import NvmlBackend
from hami_dra.discovery.nvml.partitions import NvmlPartitioner

__all__ = ["NvmlBackend", "NvmlPartitioner"]
