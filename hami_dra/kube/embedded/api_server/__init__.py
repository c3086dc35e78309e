"""A Kubernetes API server in memory: the `Cluster` of the demo, of `simulate` and of most tests.

It keeps raw JSON objects and answers as the real one does in everything that this project depends
on: optimistic concurrency, no-op patches, finalizers, owner garbage collection, the status
subresource, watches with a bounded history, selectors, the rules of claim status, eviction.
tests/unit/kube/test_contract.py holds both to the same behaviour. Not modelled: authorisation and
field ownership (server-side apply is a deep merge), and namespaces need not exist. Pods are removed
immediately unless a finalizer holds them, or the cluster is `graceful`.

`cluster` has the verbs, `state` the stored objects, `history` their changes and watchers, `rules`
the merging of bodies and the checks per kind, `eviction` what budgets allow.
"""

from hami_dra.kube.embedded.api_server.cluster import MemoryCluster
from hami_dra.kube.embedded.api_server.requests import Admission, Request, default_kinds
