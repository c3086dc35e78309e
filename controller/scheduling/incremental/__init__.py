"""What columns that are updated by difference share: change logs and their readers, caches, arrays
that grow, amounts that saturate. Pure.
"""

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.incremental.derived_column import LogReader
from controller.scheduling.incremental.digests import digest_of, digest_of_text
from controller.scheduling.incremental.growth import grown
from controller.scheduling.incremental.node_scores import node_terms
from controller.scheduling.incremental.saturation import MOST, sums

__all__ = [
    "MOST",
    "LogReader",
    "LruCache",
    "digest_of",
    "digest_of_text",
    "grown",
    "node_terms",
    "sums",
]
