"""Simulated fleets: many nodes with simulated devices, published by one process."""
