"""Slices from machines, kept up to date on a cluster: limits, plan, publisher, and the simulated fleet on top."""
