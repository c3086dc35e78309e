"""Slices from machines, kept true on a cluster: limits, plan, publisher, and the simulated fleet on top."""
