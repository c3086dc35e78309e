"""What columns that are updated by difference share: change logs and their readers, caches, arrays
that grow, amounts that saturate. Pure.
"""

from controller.cluster.incremental.changes import LruCache
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.digests import digest_of, digest_of_text
from controller.cluster.incremental.growth import grown
from controller.cluster.incremental.node_scores import node_terms
from controller.cluster.incremental.saturation import MOST, sums
