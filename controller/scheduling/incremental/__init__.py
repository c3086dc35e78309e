"""What columns that are updated by difference share: change logs and their readers, caches, arrays
that grow, amounts that saturate. Pure.
"""
