"""The cluster as columns: devices, nodes, who holds what, which selectors match. Updated by
difference.
"""
