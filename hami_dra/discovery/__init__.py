"""Discovery of hardware; the results are always records of `hami_dra.api.hardware`."""
