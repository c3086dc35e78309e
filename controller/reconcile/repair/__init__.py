"""Puts the cluster right: allocations that cannot be used, leaked claims, pods that were not converted, uninstall."""
