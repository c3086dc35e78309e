"""NVIDIA GPUs through NVML: `library` has the calls, `cards`, `links` and `mig` read them; other
packages use `backend` and `partitions`.
"""

from hami_dra.vendors.nvidia.nvml.backend import NvmlBackend
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed, optional
from hami_dra.vendors.nvidia.nvml.partitions import NvmlPartitioner
