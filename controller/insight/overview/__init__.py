"""The cluster's cards for people and metrics: inventory, usage by tenant, and packing."""
