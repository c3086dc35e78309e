"""How hardware is found; the answer is always records of `hami_dra.api.hardware`."""
