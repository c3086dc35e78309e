"""NVIDIA GPUs through NVML: `library` has the calls, `cards`, `links` and `mig` read them, `backend` is what others use."""

from hami_dra.discovery.nvml.backend import NvmlBackend

__all__ = ["NvmlBackend"]
