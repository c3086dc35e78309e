"""A Kubernetes API server in memory: the `Cluster` of the demo, of `simulate` and of most tests.

It keeps raw JSON objects and answers as the real one does where this project depends on it: optimistic concurrency,
no-op patches, finalizers, owner garbage collection, the status subresource, watches with a bounded history, selectors,
the rules of claim status. tests/unit/test_cluster_contract.py holds both to the same behaviour.
What it leaves out: authorisation, field ownership (server-side apply is a deep merge), graceful deletion of pods
(they go at once unless a finalizer holds them), and namespaces need not exist.

`cluster` has the verbs, `state` the stored objects, `history` their changes and watchers, `rules` what is checked per kind,
`patches` how bodies merge.
"""

from hami_dra.cluster.memory.cluster import Admission, MemoryCluster, Request, default_kinds

__all__ = ["Admission", "MemoryCluster", "Request", "default_kinds"]
