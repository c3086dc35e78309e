"""Decide where a pod goes and which devices it gets. Pure: no I/O, no clock.

Bottom to top: `inventory` (the cluster as columns), `quota`, `allocation` (DRA semantics on one
node), `scoring`, `decide`.
"""
